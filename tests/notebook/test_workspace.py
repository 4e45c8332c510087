"""The copies in which people work: git sees none of it, and nothing of theirs is lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kimi_nb.notebook import start, workspace

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, *sources: str) -> None:
    cells = [
        {"id": f"c{at}", "cell_type": "code", "metadata": {}, "source": source, "outputs": []}
        for at, source in enumerate(sources)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}))


def sources(path: Path) -> list[str]:
    return [cell["source"] for cell in json.loads(path.read_text())["cells"]]


@pytest.fixture
def places(tmp_path):
    """Originals, one of them in a folder for a language, and their copies."""
    originals, copies = tmp_path / "notebooks", tmp_path / "workspace"
    write(originals / "05.ipynb", "1", "2")
    write(originals / "zh" / "05.ipynb", "1", "2")
    write(originals / ".ipynb_checkpoints" / "05.ipynb", "1")
    assert workspace.update(originals, copies) == []
    return originals, copies


def test_copies_are_the_originals(places):
    originals, copies = places
    for name in ("05.ipynb", "zh/05.ipynb"):
        assert (copies / name).read_bytes() == (originals / name).read_bytes()
    assert not list(copies.rglob(".ipynb_checkpoints"))


def test_what_is_new_comes_and_what_is_own_stays(places):
    originals, copies = places
    write(copies / "05.ipynb", "mine", "2", "note")
    write(originals / "05.ipynb", "1", "two")
    assert workspace.update(originals, copies) == []
    assert sources(copies / "05.ipynb") == ["mine", "two", "note"]
    before = (copies / "05.ipynb").stat().st_mtime_ns
    assert workspace.update(originals, copies) == []
    assert (copies / "05.ipynb").stat().st_mtime_ns == before


def test_a_conflict_is_one_line(places):
    originals, copies = places
    write(copies / "05.ipynb", "mine", "2")
    write(originals / "05.ipynb", "ours", "2")
    (line,) = workspace.update(originals, copies)
    assert line == (
        f"{copies / '05.ipynb'}: 1 cell of yours changed in the original, too: see below yours."
    )
    assert sources(copies / "05.ipynb")[0] == "mine" and len(sources(copies / "05.ipynb")) == 3


def test_a_copy_that_was_removed_is_made_anew(places):
    originals, copies = places
    (copies / "05.ipynb").unlink()
    assert workspace.update(originals, copies) == []
    assert (copies / "05.ipynb").read_bytes() == (originals / "05.ipynb").read_bytes()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": ["a"]}', '{"cells": [{}]}'])
def test_what_is_no_notebook_is_left_alone(places, text):
    originals, copies = places
    (copies / "05.ipynb").write_text(text)
    write(originals / "05.ipynb", "ours")
    for _ in range(2):
        (line,) = workspace.update(originals, copies)
        assert "cannot be read" in line and "Remove it for a fresh copy" in line
    assert (copies / "05.ipynb").read_text() == text


def test_an_original_that_is_no_more(places):
    originals, copies = places
    write(copies / "zh" / "05.ipynb", "mine")
    for path in originals.rglob("*.ipynb"):
        path.unlink()
    (line,) = workspace.update(originals, copies)
    assert line.endswith("zh/05.ipynb: the original is no more; your copy stays.")
    assert not (copies / "05.ipynb").exists()
    assert workspace.update(originals, copies) == []


def test_a_folder_that_cannot_be_written_is_said_without_a_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(workspace.paths, "root", lambda: tmp_path)
    write(tmp_path / "notebooks" / "05.ipynb", "1")
    (tmp_path / "workspace").write_text("")
    assert workspace.main() == 2
    assert "cannot be written" in capsys.readouterr().err


def test_git_sees_nothing_of_what_the_documents_commands_leave():
    """Those of the README and of docs/, as they are called in the root of a checkout."""
    left = ["workspace/05_pd.ipynb", "workspace/.originals/05_pd.ipynb", "runs/x/report.html"]
    left += ["build/website/html/index.html", ".website", "my-cluster.yaml"]
    left += ["bundle/plan.json", "out.ipynb", "06.ipynb", "decode.yaml", "page.html"]
    left += ["jobs/x.sh", "proposed/x.yaml"]
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    done = subprocess.run(
        ["git", "check-ignore", *left], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == left


def test_make_lab_opens_the_copies_where_their_links_lead():
    words = ["make", "--no-print-directory", "-n", "lab", "BIN=bin"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    update, lab = done.stdout.replace("\\\n", " ").splitlines()
    assert update == "bin/python -m kimi_nb.notebook.workspace"
    assert f'--ServerApp.root_dir="{ROOT}"' in lab
    assert f"/lab/tree/{workspace.FOLDER}/00_start.ipynb" in lab


def test_results_of_a_copy_go_where_those_of_the_original_do(monkeypatch):
    for folder in ("notebooks", "notebooks/zh", "workspace", "workspace/zh"):
        monkeypatch.setattr(Path, "cwd", lambda folder=folder: ROOT / folder)
        assert start.runs_folder() == ROOT / "runs"
    monkeypatch.setattr(Path, "cwd", lambda: ROOT / "docs")
    assert start.runs_folder() == ROOT / "docs" / "runs"
