"""Other people's scripts, read with real grammars, never executed.

    deployment = reading.read([Path("decode")], engine="vllm-ascend", version="0.18.0")

`files` finds and opens, `bash` evaluates words, `quirks` sees what the shell would do to the
text, `markdown` and `compose` find commands in other formats, `assemble` makes a deployment.
"""

from kimi_nb.check.reading.assemble import read

__all__ = ["read"]
