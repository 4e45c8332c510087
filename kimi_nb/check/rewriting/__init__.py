r"""Rewrite a script for a version of the engine, by what the catalog knows and nothing else.

>>> from kimi_nb import catalog
>>> from kimi_nb.check import rewriting
>>> script = "export VLLM_ASCEND_ENABLE_MLAPO=1\nvllm serve m\n"
>>> print(rewriting.text(script, catalog.engine("vllm-ascend", "0.22.1rc1")).new, end="")
vllm serve m \
    --additional-config '{"enable_mlapo": true}'

A file is rewritten in place, and ``run.sh.orig`` keeps the old text::

    print(rewriting.file("run.sh", "vllm-ascend", "0.22.1rc1"))  # the diff

Variables that moved become keys of ``--additional-config``, variables that nothing reads are
removed, and renamed flags get their new names. Edits are made at places of the syntax tree;
everything else stays byte for byte. If an edit would change what the script means, or if that
cannot be told, nothing is done and ``left`` says so: a setting is never lost.

`parsed` is the script, and `edits` holds what is to be changed. `engine_commands` finds what starts
an engine, `exports` (with `scopes`: which commands see an export) and `flags` collect edits,
`leftovers` reports what stays, and `json_keys` writes the JSON. `rewrite` takes these steps in
order, and `result` is the outcome.
"""

from kimi_nb.check.rewriting.result import Rewritten
from kimi_nb.check.rewriting.rewrite import file, text

__all__ = ["Rewritten", "file", "text"]
