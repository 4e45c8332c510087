"""The English texts that people read, found in the source by ast and in the data files.

`extracted()` gives each text once, with the places where it stands. A text with values (an f-string)
becomes a template with named placeholders; a choice inside one ({'a' if x else 'b'}) becomes two.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kimi_nb.i18n.templates import Template, placeholders

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kimi_nb"
DATA = PACKAGE / "data"
# Whose sentences with values, and whose fixed ones, people read: findings and diagnoses, what notebooks,
# panel and report show, and what the command line says of itself. The beginning of a path each.
SENTENCES = (
    *("check/", "diagnose/", "core/", "cli/", "drill/", "report/", "sizing/"),
    *("notebook/", "show/", "service/", "prove/", "rehearse/faults", "rehearse/rehearsal"),
    *("plan/build", "plan/derivation/", "plan/memory/", "plan/ports", "plan/roles", "plan/router"),
    *("plan/sizes", "plan/store.py", "plan/tables", "catalog/language", "catalog/known_faults"),
    *("catalog/differences", "catalog/model_versions", "deploy/lifecycle", "params/recipes"),
    "params/errata",
)
# Whose errors; each text inside the call that makes the error.
ERRORS = ("params", "core", "plan", "cli", "check", "diagnose")
# Keys of YAML files whose texts people read, by files; "" is every text of a file.
FACTS = {
    "diagnose/signatures.yaml": ("cause", "help", "question"),
    "diagnose/remedies.yaml": ("",),
    "diagnose/components.yaml": ("title", "help"),
    "catalog/known_faults.yaml": ("symptom", "way_out"),
    "params/errata.yaml": ("says", "uses", "why"),
    "notebook/notebooks.yaml": ("title",),
    "plan/derivation.yaml": ("why",),
    "plan/glossary.yaml": ("flags", "env"),
    "plan/memory_evidence.yaml": ("reason",),
    "prove/checks.yaml": ("title",),
    "prove/load_clients.yaml": ("",),
    "prove/performance.yaml": ("title",),
    "sizing/factors.yaml": ("source",),
    "../../params/hardware/*.yaml": ("title", "expect", "notes", "reason"),
    "../../params/models/*.yaml": ("title", "notes", "reason"),
    "i18n/words.yaml": ("",),
    "../../params/features.yaml": ("title", "reason", "price"),
}
_ALTERNATIVES = 8  # sentences that one f-string with choices becomes, at most
_PROSE = re.compile(r"[A-Za-z][a-z'-]+,? (?:[^ ]+ )*?[a-z'-]+")
_LETTERS = re.compile(r"[A-Za-z]{2,}")
_MARKUP = re.compile(r"</\w|<\w+ [\w-]+=|\bfont-\w+:|\bconst \w+=|^--?[\w-]+=\S*$")
_PATTERN = re.compile(r"\\[bdswSWDAZ.\[\]|()$]|\(\?[:P=!i]|\.\*|\[\^|\|\^|\)\|\(|\]\+")
_OF_PATTERNS = ("re.", "_compile", "compile", "importlib", "getattr")
# Modules whose texts are patterns, words of logs, prompts, files that are written in English for every
# reader, or pages of the documentation.
_APART = (
    "diagnose/prefilter.py",
    "diagnose/events.py",
    "diagnose/event_lines.py",
    "core/secret_forms.py",
    "check/rule_pages.py",
    "notebook/cell_merge.py",
    "notebook/choice.py",
    "notebook/pictures/diagram.py",
    "notebook/workspace.py",
    "notebook/panel/panel_style.py",
    "prove/accuracy/ais_bench.py",
    "prove/accuracy/evaluation_commands.py",
    "prove/accuracy/lm_eval.py",
    "prove/bench/bench_commands.py",
    "prove/bench/load_session.py",
    "plan/memory/engine_report.py",
    "prove/tune/winner.py",
    "prove/verify/offered_tools.py",
    "service/cpu_engine.py",
    "service/installed_engine.py",
)


@dataclass
class Message:
    """A text, and where it stands ("path:line")."""

    text: str
    places: list[str] = field(default_factory=list)


def extracted() -> dict[str, Message]:
    """Every text by itself, in the order of the files."""
    out: dict[str, Message] = {}
    shapes: dict[tuple[str, ...], str] = {}
    for text, place in itertools.chain(_of_source(), _of_facts()):
        shape = Template(text).literals
        # Sentences that differ in the names of their values only are one.
        known = shapes.setdefault(shape, text)
        places = out.setdefault(known, Message(known)).places
        if place not in places:
            places.append(place)
    return out


def _of_source() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] == "data" or inside.as_posix() in _APART:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [*_tables(tree)]
        if inside.as_posix().startswith(SENTENCES):
            found += _sentences(tree)
        elif inside.parts[0] in ERRORS:
            found += _errors(tree)
        for node, text in sorted(found, key=lambda one: one[0]):
            yield text, f"kimi_nb/{inside}:{node}"


def _of_facts() -> Iterator[tuple[str, str]]:
    found = ((path, name) for name in FACTS for path in sorted(DATA.glob(name)))
    for path, name in found:
        path, keys = path.resolve(), FACTS[name]
        for text in _texts(yaml.safe_load(path.read_text(encoding="utf-8")), keys, False):
            if name == "i18n/words.yaml" or _LETTERS.search(text):
                yield " ".join(text.split()), path.relative_to(DATA.parents[1]).as_posix()


def _texts(data: Any, keys: tuple[str, ...], wanted: bool) -> Iterator[str]:
    """Each text below one of the keys."""
    if isinstance(data, str) and (wanted or "" in keys) and data:
        yield data
    elif isinstance(data, list):
        for one in data:
            yield from _texts(one, keys, wanted)
    elif isinstance(data, dict):
        for key, value in data.items():
            if key != "changes":  # values of single settings
                yield from _texts(value, keys, wanted or key in keys)


def _tables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Title and headings of each Table(...)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == "Table" and len(node.args) > 1:
            yield from _told(node.args[0], fixed=1)
            headings = node.args[1]
            if isinstance(headings, ast.Tuple):
                for one in headings.elts:
                    yield from _told(one, fixed=1)


def _errors(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of each error that a user can cause."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func).endswith("Error"):
            for one in node.args:
                yield from _told(one, fixed=2)


def _sentences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each text of a module that reads like prose; no docstrings, patterns or sources."""
    passed = set(_passed(tree))
    inner = {id(part) for node in ast.walk(tree) for part in _inside(node)}
    for node in ast.walk(tree):
        if id(node) not in passed | inner:
            yield from _told(node, fixed=3)


def _passed(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)
        if isinstance(node, ast.Call):
            name = _dotted(node.func)
            if name == "rule":  # where it is from: a public page or a version
                skipped = [*node.args[4:5], *(k.value for k in node.keywords if k.arg == "source")]
            elif name.startswith(_OF_PATTERNS) or name.endswith(_OF_PATTERNS):
                skipped = list(node.args)
            else:
                skipped = []
            yield from (id(part) for one in skipped for part in ast.walk(one))


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """What is part of a larger text, and told with it."""
    if isinstance(node, ast.JoinedStr):
        parts: list[ast.AST] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                parts += [part.value] if isinstance(part.value, ast.IfExp) else []
            else:
                parts.append(part)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    else:
        return
    for one in parts:
        if _is_text(one):
            yield one
            yield from _inside(one)


def _is_text(node: ast.AST) -> bool:
    """Whether an expression is a text by its form: a string, or strings that are joined or chosen."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and (_is_text(node.left) or _is_text(node.right))
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _told(node: ast.AST, fixed: int) -> Iterator[tuple[int, str]]:
    """The texts that an expression can be; ``fixed`` words at least where it has no values."""
    if not isinstance(node, ast.expr) or not _is_text(node):
        return
    for text in _forms(node, {}):
        text = (
            _joined(text if isinstance(node, ast.Constant) else " ".join(text.split()))
            .strip()
            .lstrip(";, ")
        )
        values = bool(placeholders(text))
        plain = " ".join(Template(text).literals)
        prose = _PROSE if fixed > 2 and not values else _LETTERS
        enough = len(_LETTERS.findall(plain)) >= min(fixed, 2 if values else fixed)
        findable = not values or Template(text).words()
        if prose.search(plain) and enough and findable and not _code(text):
            yield node.lineno, text


def _code(text: str) -> bool:
    """Return whether a text is a pattern, markup, or a name that is put together."""
    named = " " not in text and bool(placeholders(text))
    return named or bool(_PATTERN.search(text) or _MARKUP.search(text))


def _forms(node: ast.AST, names: dict[str, str]) -> list[str]:
    """Each form of a text: one, or one for each combination of its choices."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.FormattedValue):
        if isinstance(node.value, ast.IfExp) and _is_text(node.value):
            return _forms(node.value, names)
        return ["{" + _placeholder(node.value, names) + "}"]
    if isinstance(node, ast.IfExp) and _is_text(node):
        return [*_forms(node.body, names), *_forms(node.orelse, names)]
    if isinstance(node, ast.JoinedStr):
        return _product([_forms(part, names) for part in node.values])
    if isinstance(node, ast.BinOp) and _is_text(node):
        return _product([_forms(node.left, names), _forms(node.right, names)])
    return ["{" + _placeholder(node, names) + "}"]


def _product(parts: list[list[str]]) -> list[str]:
    """Every combination, as long as they are few; else a placeholder for each choice."""
    count = math.prod(map(len, parts))
    if count > _ALTERNATIVES:
        parts = [
            one if len(one) == 1 else ["{" + f"choice{at}" + "}"] for at, one in enumerate(parts)
        ]
    return ["".join(form) for form in itertools.product(*parts)]


def _joined(text: str) -> str:
    """A template in which placeholders that touch are one: nothing tells where the first ends."""
    while touching := re.search(r"\{(\w+)\}\{(\w+)\}", text):
        text = text.replace(touching[0], "{" + f"{touching[1]}_{touching[2]}" + "}", 1)
    return text


def _placeholder(node: ast.AST, names: dict[str, str]) -> str:
    """The name of a value in a template: the same for the same expression, else another one."""
    source = ast.unparse(node)
    if source not in names:
        stem = _stem(node)
        taken = set(names.values())
        name = next(
            one
            for one in itertools.chain([stem], (f"{stem}{n}" for n in itertools.count(2)))
            if one not in taken
        )
        names[source] = name
    return names[source]


def _stem(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id.strip("_") or "value"
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_")
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.left, ast.Constant)
        and node.left.value == "s"
    ):
        return "s"  # of a plural
    if isinstance(node, ast.Call):
        if node.args and _name(node.func) in ("join", "len", "sorted", "str", "short", "shown"):
            return _stem(node.args[0])
        return _name(node.func).strip("_") or "value"
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return re.sub(r"\W", "_", node.slice.value)
        return _stem(node.value)
    if isinstance(node, ast.BoolOp):
        return _stem(node.values[0])
    if isinstance(node, ast.IfExp):
        return _stem(node.test)
    return "value"


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _name(node: ast.AST) -> str:
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )
