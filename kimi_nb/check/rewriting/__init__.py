"""Rewriting a script in the words of a version: what the catalog knows, and nothing else.

    print(rewriting.file("run.sh", "vllm-ascend", "0.22.1rc1"))   # the diff; run.sh.orig is kept
    rewriting.text(script, engine).new                            # the same without a file

Variables that moved become keys of ``--additional-config``, what nothing reads goes, renamed
flags take their new names. Edits are made at places of the syntax tree; everything else stays
byte for byte. Where the script would mean something else afterwards, or that is not plain,
nothing is done and ``left`` says so: a setting is never lost.

`parsed` is the script, `changes` what is to become of it. `engines` finds what starts one,
`variables` (with `scopes`: who sees an export) and `flags` collect edits, `leftovers` tells what
stays, `json_keys` writes the JSON. `rewrite` puts them in order, `result` is what comes of it.
"""

from kimi_nb.check.rewriting.result import Rewritten
from kimi_nb.check.rewriting.rewrite import file, text

__all__ = ["Rewritten", "file", "text"]
