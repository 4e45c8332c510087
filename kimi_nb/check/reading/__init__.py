"""Read other people's scripts with real grammars, without executing them.

For example::

    deployment = reading.read([Path("decode")], engine="vllm-ascend", version="0.18.0")

`files` finds and opens files, `bash` follows the statements and `words` evaluates their words.
`quirks` finds what the shell would do to the text, `markdown` and `compose` find commands in other
formats, and `inference` finds what is not stated. `script_reader` reads every piece of shell text,
`script_calls` finds which ones start which, `command_reader` follows their commands to engines, and
`assemble` builds the deployment.
"""

from kimi_nb.check.reading.assemble import read, read_all

__all__ = ["read", "read_all"]
