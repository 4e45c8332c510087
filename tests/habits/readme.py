"""The parts of README.md, README.zh-CN.md and docs/ that are made from the project.

    python tests/habits/readme.py            # writes them (make readme)
    python tests/habits/readme.py --check    # exit code 1 where one is out of date

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. The pages of the rules, a
file for each in docs/rules/, are made as a whole.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from habits import licences
from kimi_nb.check import memory_evidence, rule_pages
from kimi_nb.check.rules import registry
from kimi_nb.core import data_files
from kimi_nb.params import load, recipes, site_file

ROOT = Path(__file__).resolve().parents[2]
RULES = "docs/rules"
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
# The words of the tables in the languages other than English.
_WORDS: Mapping[str, Mapping[str, str]] = {
    "zh": {
        "model": "模型",
        "tiny": "微型",
        "container only": "仅容器",
        "notebook": "Notebook",
        "about": "内容",
        "for": "适用范围",
        "all": "全部",
        "every layout": "所有布局",
        "layout": "布局",
    }
}


def matrix(language: str = "en") -> str:
    """Which layouts there are for each model on each hardware."""
    chips = {name: load.hardware(name) for name in load.names("hardware")}
    standing = {name for chip in chips.values() for name in chip.models.values()}
    container = set(recipes.container_only())

    def cell(model: str, chip: str) -> str:
        there = recipes.of(load.model(model), load.hardware(chip))
        layouts = ", ".join(dict.fromkeys(recipe.layout for recipe in there))
        if layouts and recipes.served(load.model(model), chips[chip]).name != model:
            return f"{layouts} ({_word('tiny', language)})"
        only = _word("container only", language)
        return layouts or (only if (model, chip) in container else "-")

    models = [name for name in recipes.models() if name not in standing]
    return _table(
        [_word("model", language), *chips],
        [[f"`{model}`", *(cell(model, chip) for chip in chips)] for model in models],
    )


def notebooks(language: str = "en") -> str:
    """The notebooks in their order. Raises ValueError for one that does not say what about."""
    key = "about" if language == "en" else f"about_{language}"
    rows = []
    for name, entry in data_files.facts("notebook/notebooks").items():
        if not entry.get(key):
            raise ValueError(
                f"kimi_nb/data/notebook/notebooks.yaml, {name}: {key}: is missing; some words "
                "for the README's index are wanted."
            )
        general = {"": "all", "any": "every layout"}.get(entry["layout"])
        layout = (
            _word(general, language)
            if general
            else f"{_word('layout', language)} `{entry['layout']}`"
        )
        rows.append([f"[`{name}`](notebooks/{name}.ipynb)", entry[key], layout])
    return _table([_word(word, language) for word in ("notebook", "about", "for")], rows)


def _word(word: str, language: str) -> str:
    return word if language == "en" else _WORDS[language][word]


def package() -> str:
    """Every module of the package with the first sentence of its docstring."""
    folders = sorted({path.parent for path in (ROOT / "kimi_nb").rglob("*.py")})
    return "\n\n".join(
        f"`{folder.relative_to(ROOT)}/`\n\n"
        + _modules(path for path in sorted(folder.glob("*.py")))
        for folder in folders
    )


def tests() -> str:
    """The same of the tests."""
    return "\n\n".join(
        f"`{folder.relative_to(ROOT)}/`\n\n" + _modules(sorted(folder.glob("test_*.py")))
        for folder in sorted({path.parent for path in (ROOT / "tests").rglob("test_*.py")})
    )


def site() -> str:
    """Every key of a site file."""
    return _table(
        ["key", "meaning (value without it)"],
        [[f"`{key}`", meaning] for key, meaning in site_file.meanings()],
    )


def licence_table() -> str:
    """The packages of constraints.txt by their licence."""
    return _table(
        ["licence", "packages"],
        [
            [one, ", ".join(f"`{name}`" for name in some)]
            for one, some in licences.by_licence().items()
        ],
    )


def evidence() -> str:
    """What public logs said of memory, and what the account says of the same engines."""
    found = memory_evidence.table()
    rows = [[str(cell).replace("|", "\\|") for cell in row] for row in found.rows]
    return _table(found.headings, rows)


def rules() -> str:
    """Every rule of `kimi-nb check`, with a link to its page."""
    return rule_pages.index(registry.all_rules().values())


def pages() -> dict[str, str]:
    """The files that are made as a whole: the page of each rule, by its name from the root."""
    return {
        f"{RULES}/{rule_pages.path(rule.id)}": rule_pages.page(rule)
        for rule in registry.all_rules().values()
    }


def _modules(paths: Iterable[Path]) -> str:
    return _table(["module", "what it is"], [[f"`{path.stem}`", _says(path)] for path in paths])


def _says(path: Path) -> str:
    """The first paragraph of a module's docstring. Raises ValueError where there is none."""
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not told:
        raise ValueError(
            f"{path.relative_to(ROOT)}: no docstring; one that begins with what the "
            "module is for is wanted."
        )
    return " ".join(told.split("\n\n")[0].split()).replace("|", "\\|")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    # Not padded: one longer word would change every line.
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"matrix": matrix, "notebooks": notebooks},
    "README.zh-CN.md": {"matrix": partial(matrix, "zh"), "notebooks": partial(notebooks, "zh")},
    "docs/deploy.md": {"site": site},
    "docs/licences.md": {"licences": licence_table},
    "docs/memory.md": {"evidence": evidence},
    "docs/modules.md": {"package": package, "tests": tests},
    f"{RULES}/README.md": {"rules": rules},
}


def renewed(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """A document with its generated parts made anew.

    Raises ValueError where a part has no place, or a place no part.
    """
    places = [match[2] for match in _PART.finditer(text)]
    if sorted(places) != sorted(parts):
        raise ValueError(
            f"generated parts: found {', '.join(places) or 'none'}; wanted "
            f"{', '.join(parts)}, each once, as <!-- generated: NAME --> ... "
            "<!-- end -->."
        )
    return _PART.sub(lambda match: f"{match[1]}\n{parts[match[2]]()}\n\n{match[3]}", text)


def main(words: Sequence[str]) -> int:
    """Write what is out of date, or with --check say so; 0 where all is current."""
    if list(words) not in ([], ["--check"]):
        print("readme.py takes --check, or nothing.", file=sys.stderr)
        return 2
    made = pages()
    for name, parts in PARTS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        try:
            made[name] = renewed(text, parts)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    there = {str(path.relative_to(ROOT)) for path in (ROOT / RULES).glob("*/*.md")}
    stale = [name for name, new in made.items() if _text(ROOT / name) != new]
    gone = sorted(there - set(made))  # pages of rules that are no more
    for name in [*stale, *gone]:
        path = ROOT / name
        if words:
            print(f"{name}: its generated parts are out of date. Run: make readme")
        elif name in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[name], encoding="utf-8")
            print(f"{name}: written")
        else:
            path.unlink()
            print(f"{name}: removed")
    return 1 if words and (stale or gone) else 0


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
