"""Lay out what Sphinx reads: documents, executed notebooks, generated pages, in one folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from website import fault_pages, notebook_pages, reference_pages
from website.markup import toctree

ROOT = Path(__file__).resolve().parents[2]
# Where the pages find the files of the run, beside the folder of the notebooks.
EXAMPLE = "example-run"
TRANSLATED = ("zh",)  # languages beside English, whose notebooks have outputs of their own
# The home page is the README; GitHub Pages shows index.html.
HOME, CHINESE = "index", "README.zh-CN"
# The parts of the navigation. A page of docs/ that is not among these comes last.
GUIDES = (
    "notebooks",
    "day",
    "rehearse",
    "drills",
    "deploy",
    "verify-measure-tune",
    "check",
    "doctor",
)
FACTS = ("command-line", "hardware", "memory", "glossary")
PROJECT = ("CONTRIBUTING", "CHANGELOG", "SECURITY")
_FENCED = re.compile(r"(^ *(`{3,}).*?^ *\2`*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\((?:\.\./)*)README\.md(?=[)#])")


def lay_out(source: Path, executed: Path, runs: Path) -> None:
    """Write the source folder anew.

    Args:
        source: The folder that Sphinx reads.
        executed: Executed notebooks, by the names that they have in ``notebooks/``.
        runs: The folder of the run that they belong to, whose place on this machine is not shown.
    """
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    others = {f"{runs.parent / one / runs.name}": "runs/k2.5-a3" for one in TRANSLATED}
    paths = {**others, f"{runs}": "runs/k2.5-a3", f"{ROOT}/": "", f"{ROOT}": "."}
    paths |= {f"{EXAMPLE}/{name}.html": f"notebooks/{name}.html" for name in _names(executed)}
    books = _notebooks(source, executed, paths)
    pages = reference_pages.parameters() | fault_pages.faq()
    pages["reference/commands"] = reference_pages.commands()
    pages["reference/api"] = reference_pages.api()
    pages["reference/errata"] = fault_pages.errata_page()
    for name, text in pages.items():
        _write(source / f"{name}.md", text)
    _documents(source)
    _navigation(source, books)
    shutil.copyfile(ROOT / "LICENSE", source / "LICENSE")


def _names(folder: Path) -> list[str]:
    return [path.stem for path in folder.glob("*.ipynb")]


def _notebooks(source: Path, executed: Path, paths: Mapping[str, str]) -> list[str]:
    """Write the notebooks of every language, with outputs; return the names of their pages."""
    names = []
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        name = path.relative_to(ROOT).with_suffix("")
        ran = executed.joinpath(*name.parts[1:-1], path.name)
        if ".ipynb_checkpoints" in name.parts or not ran.exists():
            continue
        outputs = json.loads(ran.read_text(encoding="utf-8"))
        if len(name.parts) > 2:
            written = json.loads(path.read_text(encoding="utf-8"))
            outputs = notebook_pages.grafted(written, outputs)
        up = "../" * (len(name.parts) - 2)  # of a folder for a language
        deeper = {f'"../{folder}/': f'"{up}../{folder}/' for folder in ("notebooks", EXAMPLE)}
        page = notebook_pages.page(outputs, {**paths, **(deeper if up else {})})
        _write(source / f"{name}.ipynb", json.dumps(page, indent=1, ensure_ascii=False))
        names.append(str(name))
    return names


def _documents(source: Path) -> None:
    """Copy the documents; the README is the home page."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/rules/**/*.md")):
        name = path.relative_to(ROOT)
        text = home_links(path.read_text(encoding="utf-8"), of_rules="rules" in name.parts)
        _write(source / (f"{HOME}.md" if str(name) == "README.md" else name), text)
    for path in ROOT.glob("docs/*.png"):
        shutil.copyfile(path, source / path.relative_to(ROOT))


def home_links(text: str, of_rules: bool = False) -> str:
    """Return a document whose links to the README lead to the home page, outside of code.

    >>> home_links("[start](../README.md#start)")
    '[start](../index.md#start)'
    """
    if of_rules:  # README.md there is the list of the rules
        return text
    parts = _FENCED.split(text)
    return "".join(
        _LINK.sub(rf"\g<1>{HOME}.md", part) if at % 3 == 0 else part if at % 3 == 1 else ""
        for at, part in enumerate(parts)
    )


def _navigation(source: Path, books: Iterable[str]) -> None:
    """Append the navigation to the home page, to the list of rules and to the Chinese one."""
    listed = list(books)
    chinese = [name for name in listed if name.startswith("notebooks/zh/")]
    others = {path.stem for path in (source / "docs").glob("*.md")} - {*GUIDES, *FACTS}
    _append(
        source / f"{HOME}.md",
        toctree("Notebooks", (name for name in listed if name not in chinese)),
        toctree("Guides", _there(source, GUIDES)),
        toctree(
            "Reference",
            (
                "faq/index",
                "docs/rules/README",
                "reference/parameters",
                "reference/commands",
                "reference/api",
                "reference/errata",
                *_there(source, FACTS),
            ),
        ),
        toctree("Project", (*_there(source, sorted(others)), *PROJECT)),
        toctree("简体中文", (CHINESE, *chinese)),
    )
    rules = sorted((source / "docs" / "rules").glob("*/*.md"))
    names = (str(path.relative_to(source / "docs" / "rules").with_suffix("")) for path in rules)
    _append(source / "docs" / "rules" / "README.md", toctree("", names))


def _there(source: Path, names: Iterable[str]) -> list[str]:
    return [f"docs/{name}" for name in names if (source / "docs" / f"{name}.md").exists()]


def _append(path: Path, *parts: str) -> None:
    _write(path, path.read_text(encoding="utf-8") + "".join(parts))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
