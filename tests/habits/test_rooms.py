"""The rooms of the package: what stands where, no cycle, names that mean one thing.

Computed from the source by ast, apart from import-linter: imports inside functions and for types
count like any other.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from kimi_nb.check.rules import registry as rules
from kimi_nb.prove.verify import registry as checks

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kimi_nb"
# Families of rules and checks are named by the ids of their members, in every room alike.
FAMILIES = (PACKAGE / "check" / "rules", PACKAGE / "prove" / "verify")
# Several kinds of thing that have one name everywhere: a registry is where members are found.
KINDS = {"__init__", "registry"}


def modules(package: Path) -> dict[str, Path]:
    """Every module by its dotted name, from the folder that holds the package."""
    out = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        if "data" not in parts:
            out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return out


def imports(path: Path, known: dict[str, Path]) -> Iterator[tuple[str, bool, int]]:
    """(module, whether inside a function, line) of each import of the project's own."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: a relative import"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    name = full if full in known else str(child.module)
                    if name in known:
                        yield name, inside, child.lineno
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    if alias.name in known:
                        yield alias.name, inside, child.lineno
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, inside or function)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), False)


def graph(package: Path) -> dict[str, set[str]]:
    """Who imports whom; the package's own root (its version) is left out."""
    known = modules(package)
    return {
        name: {other for other, _, _ in imports(path, known)} - {package.name}
        for name, path in known.items()
        if name != package.name
    }


def room(module: str) -> str:
    """The room of a module."""
    return module.split(".")[1]


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """The modules of a cycle; [] where there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_cycle_between_modules():
    assert cycle(graph(PACKAGE)) == []


def test_no_cycle_between_rooms():
    edges = defaultdict(set)
    for name, others in graph(PACKAGE).items():
        edges[room(name)] |= {room(other) for other in others} - {room(name)}
    assert len(edges) > 12 and cycle(edges) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import kimi.b\n",
        "def f():\n    from kimi import b\n",
        "if TYPE_CHECKING:\n    import kimi.b\n",
    ],
)
def test_a_planted_cycle_is_found(tmp_path, planted):
    package = tmp_path / "kimi"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(planted)
    (package / "b.py").write_text("from kimi.a import f\n")
    assert set(cycle(graph(package))) == {"kimi.a", "kimi.b"}


def test_only_the_face_stands_outside_a_room():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}
    assert not [path for path in (PACKAGE / "data").iterdir() if path.is_file()]


def test_every_room_says_what_it_is_for():
    for folder in sorted({path.parent for path in modules(PACKAGE).values()}):
        told = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert told and len(told) > 30, folder


def test_the_contracts_name_every_room_and_ignore_nothing():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(one for one in table["contracts"] if one["type"] == "layers")
    named = {name for layer in layers["layers"] for name in layer.split(" | ")}
    there = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert named == there | {"__main__"} and layers["exhaustive"]
    assert not [one for one in table["contracts"] if "ignore_imports" in one]


def test_a_module_s_name_means_one_thing():
    counts: Counter[str] = Counter()
    for name, path in modules(PACKAGE).items():
        # A command is named after what it calls; a room's main module may have its name.
        own = name.count(".") > 1 and room(name) != "cli" and path.stem != path.parent.name
        if own and path.parent not in FAMILIES and path.stem not in KINDS:
            counts[path.stem] += 1
    assert [name for name, count in counts.items() if count > 1] == []


def test_an_id_begins_with_its_module():
    for one in rules.all_rules().values():
        module = one.find.__module__.rpartition(".")[2]
        assert one.id.partition("/")[0] == module.partition("_")[0], one.id
    for name, check in checks.all_checks().items():
        module = check.run.__module__.rpartition(".")[2]
        assert name.partition("/")[0] == module.replace("_", "-"), name


def test_an_import_inside_a_function_says_why():
    """Only start-up time is a reason; the modules that do it throughout say so at the top."""
    bare, known = [], modules(PACKAGE)
    for name, path in known.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        said = ast.get_docstring(ast.parse("\n".join(lines))) or ""
        if name == PACKAGE.name or room(name) == "cli" or "imported inside" in said:
            continue
        previous = -1
        for _, inside, line in imports(path, known):
            text = f"{lines[line - 2]}{lines[line - 1]}"
            if inside and "#" not in text and previous != line - 1:
                bare.append(f"{path}:{line}")
            previous = line
    assert bare == []
