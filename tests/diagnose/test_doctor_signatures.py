"""data/signatures.yaml: every entry finds its own example, and says where to go from there."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from kimi_nb.core import data_files
from kimi_nb.diagnose import attribution, matching, prefilter, signatures
from kimi_nb.diagnose.matching import Line

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = signatures.entries()
# What other parts of the runbook name.
NAMED = {
    "think-in-content",
    "tool-call-ids",
    "streaming-tool-calls-leak",
    "malformed-arguments",
    "tool-choice",
    "garbled-exclamation-marks",
    "no-tool-parser",
    "several-tool-calls",
    "thinking-key",
    "model-not-found",
    "empty-200",
    "garbled-ascend",
    "decode-hangs",
    "garbled-context",
    "pd-corruption",
    "health-is-not-ready",
    "special-tokens",
}
KEYS = {
    "topic",
    "where",
    "kind",
    "pattern",
    "patterns",
    "cause",
    "help",
    "question",
    "platform",
    "versions",
    "refs",
    "see",
    "general",
    "cascade",
    "waits",
    "peer",
    "blames",
    "example",
    "words",
}


def line(text: str) -> Line:
    return Line("n1", None, "serve.log", 1, text, "")


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.id for entry in ENTRIES])
def test_an_entry_is_whole(entry):
    assert data_files.facts("diagnose/signatures")[entry.id].keys() <= KEYS
    assert entry.cause and entry.help and entry.topic in signatures.TOPICS
    assert entry.where in signatures.WHERE and entry.platform in signatures.PLATFORMS
    assert entry.question or entry.where == "log"
    assert entry.examples or entry.where == "faq"
    assert bool(entry.pattern) or entry.where != "log"
    notebook, _, heading = entry.see.partition("#")
    assert re.fullmatch(r"\d\d_[a-z_]+", notebook) and heading, entry.see
    path = ROOT / "notebooks" / f"{notebook}.ipynb"
    if path.exists():
        cells = nbformat.read(path, as_version=4).cells
        assert any(f"## {heading}" in cell.source.splitlines() for cell in cells), entry.see


@pytest.mark.parametrize(
    "entry", signatures.of_logs(), ids=[entry.id for entry in signatures.of_logs()]
)
def test_an_example_is_found_by_its_own_entry_first(entry):
    for example in entry.examples:
        assert [at for at, _ in prefilter.numbers(["INFO all is well", example])] == [1], example
        found = matching.of(line(example))
        assert found is not None and found.signature.id == entry.id, f"{example}: {found}"
        said = attribution.of(found, (), "at start").cause
        assert "{" not in said and "  " not in said.strip(), said


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.id for entry in ENTRIES])
def test_an_example_of_an_answer_is_found(entry):
    for example in entry.examples:
        assert entry.pattern is None or entry.find(example) is not None


def test_every_pattern_of_an_entry_has_an_example():
    for entry in signatures.of_logs():
        given = data_files.facts("diagnose/signatures")[entry.id].get("patterns", [])
        for pattern in given:
            assert any(re.search(pattern, example) for example in entry.examples), pattern


def test_what_others_name_is_there():
    assert not NAMED.difference(entry.id for entry in ENTRIES)
    assert all(entry.where == "answer" for entry in ENTRIES if entry.id in NAMED)


def test_the_groups_of_patterns_are_those_that_causes_name():
    for entry in ENTRIES:
        named = set(re.findall(r"{(\w+)}", entry.cause)) - {"when"}
        there = (
            {name.partition("__")[0] for name in entry.pattern.groupindex}
            if entry.pattern
            else set()
        )
        assert named <= there, entry.id
