"""What stays English in executed Chinese notebooks: names, quotations and sources, no sentence of ours.

A text is English where four lower-case English words follow one another, outside of code, quotation
marks and brackets of JSON. Read are outputs, captions, alternative texts and the state of widgets.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from habits import translated_notebooks as translated

from kimi_nb.core import paths

_INLINE = {"span", "wbr", "b", "i", "em", "strong", "a", "small", "sub", "sup", "abbr", "time"}
_CODE = {"style", "script", "code", "pre", "kbd", "samp"}
_SPOKEN = {"alt", "aria-label", "title", "placeholder"}
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\{.*\}|\[\{.*")
_WORD = r"(?<![\w./=#-])[A-Za-z]?[a-z]+(?:['’-][a-z]+)*(?![\w/=]|\.\w)"
_RUN = re.compile(rf"(?:{_WORD},? ){{3}}{_WORD}")
# What may stay English, and why.
ALLOWED = {
    "the record of a run, which is stored in English": r"(?:notebook|model|plan|mark|logs|why|considered) ",
    "commands": r"^(?:\W*kimi-nb|conda|docker|kubectl|nvidia-smi|npu-smi|ray|set|pip) |(?:kimi-nb plan|pip install) ",
    "prompts, and the answers of stand-ins": r"^POST /|^content |\(the echo of a stand-in",
    "where a public figure or a memory log is from": r"issues? \d|pull requests? \d|@[0-9a-f]{7}|\.(?:md|py|yaml)\b|docs/|public notes|et al\.|of Ascend/msmodeling",
    "lines of logs": r"Error\b|\bERROR\b|\bWARN|\bINFO\b|\bWarning\b|failed|docker:|^ssh:|slurmstepd|^\[rank|\bE[I0-9]\d+\b|not found|^python:|NCCL",
}
# Texts of all notebooks together that are English, and should not be: 6 with k2.5 on a3, and some that
# depend on what the drill draws.
MOST = 12


class Texts(HTMLParser):
    """The texts of a piece of HTML or SVG, one for each block; code is left out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._open, self._code = "", 0
        self.feed(text)
        self._end()

    def _end(self) -> None:
        self.texts += filter(None, [" ".join(self._open.split())])
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [
            " ".join(value.split()) for name, value in attrs if name in _SPOKEN and value
        ]
        if tag in _CODE:
            self._code += 1
        elif tag not in _INLINE and not self._code:
            self._end()

    def handle_endtag(self, tag: str) -> None:
        if tag in _CODE:
            self._code -= 1
        elif tag not in _INLINE and not self._code:
            self._end()

    def handle_data(self, data: str) -> None:
        self._open += "" if self._code else data


def texts(notebook: Path) -> Iterator[str]:
    """Yield the texts that the outputs of a notebook and its widgets show."""
    found = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in found["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            for kind in ("text/html", "image/svg+xml"):
                yield from Texts("".join(data.get(kind, ""))).texts
            yield from "".join(output.get("text", "")).splitlines()
    states = found["metadata"].get("widgets", {}).values()
    for widget in (one for state in states for one in state["state"].values()):
        shown = widget["state"]
        for name in ("value", "description", "placeholder", "tooltip"):
            if isinstance(shown.get(name), str):
                yield from Texts(shown[name]).texts
        for name in ("_options_labels", "titles"):
            yield from map(str, shown.get(name) or ())


def english(text: str) -> bool:
    """Return whether a text has a run of English words that nothing allows."""
    if not _RUN.search(_QUOTED.sub(" ", text)):
        return False
    return not any(re.search(pattern, text) for pattern in ALLOWED.values())


def log_lines() -> set[str]:
    """Return the lines of logs by which signatures are shown: words of other programs."""
    entries = yaml.safe_load((paths.DATA / "diagnose" / "signatures.yaml").read_text())
    return {" ".join(line.split()) for line in _strings(entries)}


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def test_what_counts_as_english():
    assert english("the scripts run on this machine")
    assert not english("引擎 --data-parallel-size 2，见 vllm serve --help")
    assert not english("content 'the scripts run on this machine'")
    assert Texts("<p>a <b>b</b></p><pre>c</pre><img alt='d'>").texts == ["a b", "d"]


@pytest.mark.long
def test_executed_pages_are_chinese(tmp_path):
    words = [
        "run",
        "--model",
        "k2.5",
        "--hw",
        "a3",
        "--language",
        "zh",
        "--run-dir",
        tmp_path / "run",
    ]
    subprocess.run([sys.executable, "-m", "kimi_nb", *words], check=True, capture_output=True)
    drill = tmp_path / "run" / "12_drills.ipynb"
    subprocess.run(
        [
            *(sys.executable, "-m", "papermill", "--cwd", translated.FOLDER / "zh"),
            *(translated.FOLDER / "zh" / drill.name, drill, "-p", "run_dir", tmp_path / "drill"),
        ],
        check=True,
        capture_output=True,
    )
    known = log_lines()
    left = {
        text: path.name
        for path in sorted((tmp_path / "run").glob("*.ipynb"))
        for text in texts(path)
        if english(text) and text not in known
    }
    assert len(left) <= MOST, "\n".join(f"{name}: {text[:200]}" for text, name in left.items())
