"""Rewrite one script: the steps from its old text to the new one.

For example::

    rewrite.file("run.sh", "vllm-ascend", "0.22.1rc1", dry=True).diff
    rewrite.text(script, engine).left
"""

from __future__ import annotations

from pathlib import Path

from kimi_nb import catalog
from kimi_nb.check.reading import files, inference, syntax
from kimi_nb.check.rewriting import engine_commands, exports, flags, leftovers, result
from kimi_nb.check.rewriting.edits import Changes
from kimi_nb.check.rewriting.parsed import Parsed
from kimi_nb.check.rewriting.result import Rewritten
from kimi_nb.core.errors import ParameterError


def file(path: str | Path, package: str = "", version: str = "", dry: bool = False) -> Rewritten:
    """Rewrite a bash script in place, and keep the old one as FILE.orig.

    With ``dry`` the file stays as it is.

    Raises:
        ParameterError: The path is no bash script, or the engine's version is not known.
        WriteError: The file cannot be written; it is then as before.
    """
    place = Path(path)
    if place.is_dir():
        raise ParameterError(f"{path}: a folder; --fix rewrites one file after another.")
    texts, _ = files.collect([place])
    if texts[0].kind != "bash":
        raise ParameterError(f"{path}: only bash scripts are rewritten.")
    spoken = inference.engine([texts[0]], package, version)
    if not spoken.known:
        raise ParameterError(
            f"{path}: nothing says which version this is for: name it with "
            "--engine and --engine-version."
        )
    raw = place.read_bytes().decode("utf-8")  # as it is, byte order mark and line ends included
    made = text(raw, spoken.engine, str(path))
    if made.new != made.old and not dry:
        result.save(place, made)
    return made


def text(script: str, engine: catalog.Engine, name: str = "script") -> Rewritten:
    """Rewrite a text, like `file` but without writing anything.

    The lines in ``left`` are those of the rewritten script.
    """
    ends = script.count("\r\n")
    mixed = 0 < ends < script.count("\n")
    old = script if mixed else script.replace("\r\n", "\n")
    changes = _changes(Parsed.of(old, engine))
    new, left = changes.made(old.encode()), changes.told(old.encode())
    if new != old and (
        mixed or (syntax.tree(new).root_node.has_error and not syntax.tree(old).root_node.has_error)
    ):
        why = "some lines end in CR LF and some do not" if mixed else "bash would not read it then"
        return Rewritten(name, script, script, (), (f"nothing is rewritten: {why}",))
    if ends and not mixed:
        new = new.replace("\n", "\r\n")
    return Rewritten(name, script, new, tuple(dict.fromkeys(changes.done)), left)


def _changes(script: Parsed) -> Changes:
    """Collect the edits, and what is said about them."""
    changes = Changes()
    serves = engine_commands.find(script)
    exports.rewrite(script, changes, serves)
    flags.rewrite(script, changes, serves)
    for slot in {one.slot.start: one.slot for one in serves if not one.why}.values():
        engine_commands.fill(script, changes, slot)
    leftovers.tell(script, changes)
    return changes
