"""Notebooks in other languages: the same code as the English ones, current, and they run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from habits import catalogues
from habits import translated_notebooks as translated

import kimi_nb
from kimi_nb import i18n
from kimi_nb.core.errors import ParameterError

MADE = sorted((translated.FOLDER / "zh").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[str]:
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


@pytest.fixture(scope="module")
def catalog():
    path = translated.FOLDER / "zh.po"
    return catalogues.merged(path, translated.template(""))


def test_the_notebooks_are_those_of_the_catalogue(catalog):
    files = translated.made("zh", catalogues.certain(catalog))
    assert catalogues.out_of_date(files, check=True) == [], "make i18n"
    assert translated.stale("zh", [path for path, _ in files]) == [], "make i18n"
    assert len(files) == len(translated.english())


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.stem)
def test_code_is_that_of_the_english_notebook(path):
    english = translated.FOLDER / path.name
    first, *rest = cells(path, "code")
    assert [first.replace('language: str = "zh"', 'language: str = ""', 1), *rest] == (
        cells(english, "code")
    )
    assert 'language: str = "zh"' in first
    ours, theirs = json.loads(path.read_text()), json.loads(english.read_text())
    for one, other in zip(ours["cells"], theirs["cells"], strict=True):
        assert {**one, "source": ""} == {**other, "source": ""}


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.stem)
def test_text_is_chinese_and_keeps_code_and_ok(path):
    for text, told in zip(
        cells(translated.FOLDER / path.name, "markdown"), cells(path, "markdown"), strict=True
    ):
        if told == text:
            warnings.warn(f"{path.name}: no translation yet: {text.splitlines()[0]}", stacklevel=1)
            continue
        assert set(re.findall(r"`[^`]+`", text)) == set(re.findall(r"`[^`]+`", told)), text
        assert bool(re.search(r"\bOK\b", text)) == bool(re.search(r"\bOK\b", told)), text
        assert text.count("\n#") == told.count("\n#")


def test_a_cell_without_translation_stays_english(tmp_path, monkeypatch):
    notebook = {"cells": [], "metadata": {}}
    for text in ("# A", "see [b](../docs/b.md)", "c"):
        notebook["cells"].append({"cell_type": "markdown", "source": [text]})
    (tmp_path / "a.ipynb").write_text(json.dumps(notebook))
    monkeypatch.setattr(translated, "FOLDER", tmp_path)
    assert translated.made("zh", {"c": "丙"}) == []
    [(path, text)] = translated.made("zh", {"# A": "# 甲", "c": "丙"})
    made = [cell["source"] for cell in json.loads(text)["cells"]]
    assert path == tmp_path / "zh" / "a.ipynb"
    assert made == [["# 甲"], ["see [b](../../docs/b.md)"], ["丙"]]


def test_links_lead_to_the_translated_headings(tmp_path, monkeypatch):
    books = {
        "a.ipynb": [
            "# A",
            "[b](b.ipynb#If-it-fails), [c](c.ipynb#C), [here](#A), [web](https://e.org/#A)",
        ],
        "b.ipynb": ["# B", "## If it fails"],
        "c.ipynb": ["# C"],
    }
    for name, texts in books.items():
        found = [{"cell_type": "markdown", "source": [text]} for text in texts]
        (tmp_path / name).write_text(json.dumps({"cells": found, "metadata": {}}))
    monkeypatch.setattr(translated, "FOLDER", tmp_path)
    made = translated.made("zh", {"# A": "# 甲", "# B": "# 乙", "## If it fails": "## 失败 时"})
    assert [path.name for path, _ in made] == ["a.ipynb", "b.ipynb"]
    assert json.loads(made[0][1])["cells"][1]["source"] == [
        "[b](b.ipynb#失败-时), [c](../c.ipynb#C), [here](#甲), [web](https://e.org/#A)"
    ]


def test_a_chinese_notebook_shows_chinese_tables(tmp_path):
    out = tmp_path / "out.ipynb"
    environment = {name: one for name, one in os.environ.items() if name != "KIMI_NB_LANG"}
    subprocess.run(
        [
            *(sys.executable, "-m", "papermill", "--cwd", translated.FOLDER / "zh"),
            *(translated.FOLDER / "zh" / "10_faq.ipynb", out),
            *("-p", "run_dir", tmp_path / "run", "-p", "question", "显存不足"),
        ],
        env={**environment, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
        timeout=240,
    )
    told = out.read_text(encoding="utf-8")
    assert (
        "不改动其他任何内容" in told
        and "解决办法" in told
        and "显存不足（out of memory）" in told
        and "硬件" in told
    )


def test_the_language_of_a_notebook_is_a_parameter(tmp_path):
    out = tmp_path / "out.ipynb"
    subprocess.run(
        [
            *(sys.executable, "-m", "papermill", "--cwd", translated.FOLDER),
            *(translated.FOLDER / "00_start.ipynb", out),
            *("-p", "run_dir", tmp_path / "run", "-p", "language", "zh"),
        ],
        capture_output=True,
        check=True,
        timeout=240,
    )
    cells = json.loads(out.read_text(encoding="utf-8"))["cells"]
    told = "".join(
        "".join(output.get("data", {}).get("text/html", ""))
        for cell in cells
        for output in cell.get("outputs", ())
    )
    assert "硬件" in told and "服务入口" in told and 'lang="zh"' in told


def test_a_language_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"language 'fr' is not known\. Allowed: en, zh\."):
        kimi_nb.start(hw="a3", model="k2.5", language="fr", run_dir=str(tmp_path))
    with i18n.using("en"):
        kimi_nb.start(hw="a3", model="k2.5", language="zh", run_dir=str(tmp_path)).close()
        assert i18n.current() == "zh"


def test_a_run_in_chinese_has_chinese_pages_and_a_chinese_report(tmp_path):
    words = ["run", "--model", "k2.5", "--hw", "a3", "--only", "00", "--language", "zh"]
    done = subprocess.run(
        [sys.executable, "-m", "kimi_nb", *words, "--run-dir", str(tmp_path / "run")],
        capture_output=True,
        check=False,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "run" / "00_start.html").read_text(encoding="utf-8")
    assert '<html lang="zh">' in page and "<b>目录</b>" in page and "硬件" in page
    for path in re.findall(r'href="([^"#:]+\.(?:md|ipynb|html))', page):
        assert (tmp_path / "run" / path).exists(), path
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert '<html lang="zh">' in report and "目录" in report and "kimi_nb，运行报告" in report
    code = subprocess.run(
        [sys.executable, "-m", "kimi_nb", *words[:-1], "fr"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert code.returncode == 2 and "Allowed: en, zh." in code.stderr
