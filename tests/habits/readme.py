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
from kimi_nb.params import fields, load, recipes, schema, site_file
from kimi_nb.plan import derivation
from kimi_nb.plan.memory import device
from kimi_nb.plan.memory.terms import GIB

ROOT = Path(__file__).resolve().parents[2]
RULES = "docs/rules"
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
# The words of the tables in the languages other than English.
_WORDS: Mapping[str, Mapping[str, str]] = {
    "zh": {
        "tiny": "微型",
        "hardware": "硬件",
        "documented": "有文档",
        "undocumented": "无文档",
        "derived": "可推导",
        "impossible": "不可行",
        "notebook": "Notebook",
        "about": "内容",
        "for": "适用范围",
        "all": "全部",
        "every layout": "所有布局",
        "layout": "布局",
    }
}


def matrix(language: str = "en") -> str:
    """Which layouts are documented, derived or impossible for each model on each hardware."""
    chips = {name: load.hardware(name) for name in load.names("hardware")}
    standing = {name for chip in chips.values() for name in chip.models.values()}
    models = [name for name in recipes.models() if name not in standing]
    there = {(one.model, one.hardware, one.layout): one.word for one in derivation.cells()}

    def cell(model: str, chip: schema.Hardware) -> str:
        if chip.models and not load.model(model).no_stand_in:
            return f"{', '.join(chip.models)} ({_word('tiny', language)})"
        words: dict[str, list[str]] = {}
        for layout in fields.LAYOUTS:
            word = there.get((model, chip.name, layout), "impossible")
            words.setdefault(word, []).append(layout)
        if len(words) == 1:
            return f"{_word('all', language)} {_word(next(iter(words)), language)}".strip()
        return "; ".join(
            f"{', '.join(words[word])} {_word(word, language)}"
            for word in ("documented", "undocumented", "derived", "impossible")
            if word in words
        )

    return _table(
        [_word("hardware", language), *(f"`{name}`" for name in models)],
        [[name, *(cell(model, chip) for model in models)] for name, chip in chips.items()],
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


def devices() -> str:
    """What each hardware is, and how much of its memory can be planned with."""
    rows = []
    for name, chip in _chips().items():
        found, seen = device.usable(chip), chip.devices.usable
        tool = f"{seen.tool_mib} MiB" if seen and seen.tool_mib else ""
        rows.append(
            [
                f"`{name}`",
                chip.title.replace("|", "\\|"),
                tool,
                f"{found.bytes / GIB:.2f} GiB",
                f"{found.bytes / GIB * 0.9:.2f} GiB",
                f"{found.mark}: {found.source}",
            ]
        )
    headings = ["name", "node", "vendor's tool", "torch sees", "share of 0.9", "how it is known"]
    return _table(headings, rows)


def peaks() -> str:
    """The peaks of a device of each hardware of which some are published."""
    fields = list(schema.Peaks.model_fields)
    return _table(
        [
            "name",
            *(re.sub("_(gb_s|tflops|tops)$", "", field).replace("_", " ") for field in fields),
        ],
        [
            [
                f"`{name}`",
                *(
                    f"{peak.value:g}" if (peak := getattr(chip.peaks, field)) else ""
                    for field in fields
                ),
            ]
            for name, chip in _chips().items()
            if any(vars(chip.peaks).values())
        ],
    )


def _chips() -> dict[str, schema.Hardware]:
    """Every hardware but the CPU, by name."""
    chips = {name: load.hardware(name) for name in load.names("hardware")}
    return {name: chip for name, chip in chips.items() if chip.vendor != "cpu"}


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
    "docs/hardware.md": {"devices": devices, "peaks": peaks},
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
