"""The form that all notebooks have, and what of it a notebook lacks.

    python tests/habits/notebook_form.py notebooks/*.ipynb      # exit code 1 where something is wrong

    for flaw in notebook_form.flaws(Path("notebooks/05_pd.ipynb")): print(flaw)

A person who knows one notebook finds the way in any other: the same first parameters, the same
headings in the same order, short cells, each below a sentence that says what OK looks like.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from kimi_nb.core import data_files

PARAMETERS = ("hw", "model", "site", "action", "confirm", "run_dir", "language")
FIRST = ("Parameters", "Start")
LAST = ("Next",)
# What a notebook of a kind begins and ends with; the manifest names the kind where it is no stage.
ENDS = {
    "stage": (FIRST, LAST),
    "report": (("Parameters", "Start", "Verdict"), ()),
    "drill": (FIRST, LAST),
}
# Between them, all or none: a notebook that writes scripts also shows, gates and verifies what they do.
STAGES = ("Plan", "Findings", "Write", "Preflight", "Gate", "Act", "Verify")
CELLS = (15, 40)
# Read at 200 words a minute, in ten minutes, and the tables of results with it.
WORDS = 1500
LINES = 5
_HELP = 10  # characters that say something
_DEFINITIONS = {
    ast.FunctionDef: "def",
    ast.AsyncFunctionDef: "async def",
    ast.ClassDef: "class",
    ast.Lambda: "lambda",
}
_UNALIGNED = re.compile(r"^\|(?:.*\|)? *-{3,} *\|", re.MULTILINE)
_MAGIC = re.compile(r"^\s*(?:[\w.,\s]+=\s*)?(!|%)", re.MULTILINE)


@dataclass(frozen=True)
class Flaw:
    """What is wrong in a notebook, and what is allowed. ``cell`` counts from 1; None: all of it."""

    path: Path
    cell: int | None
    what: str
    allowed: str

    def __str__(self) -> str:
        where = "" if self.cell is None else f", cell {self.cell}"
        return f"{self.path}{where}: {self.what}. {self.allowed}."


def flaws(path: Path) -> list[Flaw]:
    """All that is wrong with a notebook, in the order of its cells; [] is good."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (
        OSError,
        ValueError,
        nbformat.ValidationError,
        AttributeError,
        KeyError,
        TypeError,
    ) as error:  # the last three: JSON that nbformat's own code stumbles over
        reason = str(error).splitlines()[0][:160]
        return [
            Flaw(
                path,
                None,
                f"cannot be read as a notebook: {reason}",
                "Write it with JupyterLab, in nbformat 4",
            )
        ]
    found = [
        Flaw(path, *one)
        for one in (
            *_whole(notebook),
            *_cells(notebook),
            *_parameters(notebook),
            *_skeleton(notebook, *ENDS[_kind(path.stem)]),
        )
    ]
    # What papermill reads of a notebook that has other faults tells nothing new.
    if not found and (fault := _as_papermill_reads(notebook, path)):
        found = [Flaw(path, *fault)]
    return sorted(found, key=lambda flaw: flaw.cell or 0)


_Found = Iterator[tuple[int | None, str, str]]  # cell, what, allowed


def _whole(notebook: NotebookNode) -> _Found:
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield None, f"the kernel is {kernel!r}", "Choose python3, which every Jupyter has"
    count = len(notebook.cells)
    if not CELLS[0] <= count <= CELLS[1]:
        yield (
            None,
            f"it has {count} cells",
            (f"{CELLS[0]} to {CELLS[1]}: join what belongs together, or make it two notebooks"),
        )
    words = sum(len(cell.source.split()) for cell in notebook.cells if _is_text([cell]))
    if words > WORDS:
        yield None, f"it has {words} words", f"At most {WORDS}, ten minutes: say it once, and link"
    if not (_is_text(notebook.cells[:1]) and notebook.cells[0].source.startswith("# ")):
        yield 1, "no title", 'The first cell is markdown and begins with "# "'


def _cells(notebook: NotebookNode) -> _Found:
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "markdown" and _UNALIGNED.search(cell.source):
            yield (
                number,
                "a table without alignment, whose headings JupyterLab centres",
                "Write | :--- | below the headings",
            )
        if cell.cell_type != "code":
            continue
        if cell.outputs or cell.execution_count is not None:
            yield number, "it holds outputs of a run", "Strip them: make strip"
        above = notebook.cells[number - 2 : number - 1]
        if not _is_text(above):
            yield (
                number,
                "no sentence above",
                ("Each code cell stands right below a markdown cell that says what it does"),
            )
        elif not _is_tagged(cell) and not re.search(r"\bOK\b", above[0].source):
            yield (
                number,
                "the sentence above does not say what OK looks like",
                ('Write "OK is ..." into the markdown cell above'),
            )
        lines = len(cell.source.splitlines())
        if not _is_tagged(cell) and not 1 <= lines <= LINES:
            yield (
                number,
                f"{lines} lines",
                (f"1 to {LINES}: what is longer is two cells, or belongs into kimi_nb"),
            )
        yield from ((number, *one) for one in _code(cell.source))


def _code(source: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        if magic := _MAGIC.search(source):
            yield (
                f"a line with {magic[1]}",
                (f"Plain Python only; what a shell or {magic[1]} would do is a call of kimi_nb"),
            )
        else:
            yield f"not Python: {error.msg}, line {error.lineno}", "Plain Python only"
        return
    for kind in dict.fromkeys(type(node) for node in ast.walk(tree)):
        if kind in _DEFINITIONS:
            yield (
                f"it has a {_DEFINITIONS[kind]}",
                ("Cells call; what is to be defined belongs into kimi_nb, with a test"),
            )


def _parameters(notebook: NotebookNode) -> _Found:
    tagged = [number for number, cell in enumerate(notebook.cells, 1) if _is_tagged(cell)]
    if len(tagged) != 1:
        cells = f" ({', '.join(map(str, tagged))})" if tagged else ""
        yield None, f"{len(tagged)} cells are tagged parameters{cells}", "Exactly one"
        return
    number = tagged[0]
    source = notebook.cells[number - 1].source
    names = []
    for line in source.splitlines():
        name, fault = _parameter(line)
        names.append(name)
        if fault:
            yield (
                number,
                f"{line.strip()[:60]!r} {fault}",
                (
                    "A line is `name: type = literal  # what it is for`, which papermill shows as help"
                ),
            )
    if tuple(names[: len(PARAMETERS)]) != PARAMETERS:
        yield (
            number,
            f"it begins with {', '.join(names[: len(PARAMETERS)]) or 'nothing'}",
            (f"First come {', '.join(PARAMETERS)}, in this order, then those of the stage"),
        )


def _parameter(line: str) -> tuple[str, str]:
    """(name, what is wrong) of a line of the parameters' cell."""
    code, _, told = line.partition("  # ")
    try:
        (statement,) = ast.parse(code).body
    except (SyntaxError, ValueError):
        return code.strip()[:20], "is no parameter"
    if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
        return code.partition("=")[0].strip(), "has no type"
    name = statement.target.id
    try:
        value = ast.literal_eval(statement.value) if statement.value else None
    except ValueError:
        return name, "is no literal"
    if value is None:
        return name, "has no value"
    if type(value).__name__ != ast.unparse(statement.annotation):
        return name, f"is a {type(value).__name__}, and says another type"
    return name, "" if len(told) > _HELP else "does not say what it is for"


def _as_papermill_reads(notebook: NotebookNode, path: Path) -> tuple[int, str, str] | None:
    """What is wrong where papermill reads other parameters than a person does."""
    import papermill  # takes seconds

    (number,) = (number for number, cell in enumerate(notebook.cells, 1) if _is_tagged(cell))
    names = [_parameter(line)[0] for line in notebook.cells[number - 1].source.splitlines()]
    inferred = papermill.inspect_notebook(str(path))
    if list(inferred) == names and all(len(one["help"]) > _HELP for one in inferred.values()):
        return None
    return (
        number,
        f"papermill reads {', '.join(inferred) or 'none'}",
        ("One parameter a line, in a form that papermill's help shows whole"),
    )


def _kind(name: str) -> str:
    """Return what kind of notebook it is; one that the manifest does not list is a stage."""
    return str(data_files.facts("notebook/notebooks").get(name, {}).get("kind", "stage"))


def _skeleton(notebook: NotebookNode, first: Sequence[str], last: Sequence[str]) -> _Found:
    headings = [
        line.removeprefix("## ")
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("## ")
    ]
    begin, end = headings[: len(first)], headings[len(headings) - len(last) :]
    stages = STAGES if last and {"Write", "Act"} <= set(headings) else ()
    wanted = [*first, *stages, *last]
    order = f"The headings, in this order: {', '.join(wanted)}; others of your own between them"
    if missing := [name for name in wanted if name not in headings]:
        yield None, f"no heading {', '.join(missing)}", order
    elif [name for name in headings if name in wanted] != wanted:
        found = ", ".join(name for name in headings if name in wanted)
        yield None, f"the headings are {found}", order
    elif begin != [*first] or end != [*last]:
        yield (
            None,
            f"the headings begin with {', '.join(begin)} and end with {', '.join(end)}",
            order,
        )


def _is_text(cells: Sequence[NotebookNode]) -> bool:
    return bool(cells) and cells[0].cell_type == "markdown" and bool(cells[0].source.strip())


def _is_tagged(cell: NotebookNode) -> bool:
    return "parameters" in cell.metadata.get("tags", [])


def main(paths: Sequence[str]) -> int:
    """Print what is wrong with each; 0 where nothing is."""
    if not paths:
        print(
            "python tests/habits/notebook_form.py NOTEBOOK ...: name the notebooks to look at.",
            file=sys.stderr,
        )
        return 2
    found = [flaw for path in paths for flaw in flaws(Path(path))]
    for flaw in found:
        print(flaw)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
