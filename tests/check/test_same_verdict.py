"""The same text has the same verdict as a script, in a document and in YAML that holds it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from kimi_nb.check import examples
from kimi_nb.check.reading import assemble
from kimi_nb.check.reading.files import Text, _kind
from kimi_nb.check.rules import registry

FAMILIES = ("engine/", "json/", "client/")
CASES = [
    (identity, number, side)
    for identity, case in examples.cases().items()
    if identity.startswith(FAMILIES)
    for number, side in enumerate(case["fails"])
    if len(side.get("files", {})) == 1
    and next(iter(side["files"])).endswith(".sh")
    and "vllm serve" in next(iter(side["files"].values()))
    and "hw" not in side
]


def rules(name: str, text: str, side: dict) -> set[str]:
    read = Text(name, "", _kind(Path(name), text), text)
    made = assemble.of_texts([read], side.get("engine", ""), str(side.get("version", "")))
    return {one.rule for one in registry.check(made).findings}


@pytest.mark.parametrize(
    ("identity", "number", "side"), CASES, ids=[f"{name}-{at}" for name, at, _ in CASES]
)
def test_a_fault_of_a_script_is_one_in_a_document_and_in_yaml(identity, number, side):
    ((_, text),) = side["files"].items()
    assert identity in rules("run.sh", text, side)
    assert identity in rules("README.md", f"# Serve\n\n```bash\n{text}\n```\n", side)
    script = text if text.startswith("#!") else f"#!/bin/bash\n{text}"
    held = f"data:\n  run.sh: |\n{textwrap.indent(script, '    ')}"
    assert identity in rules("values.yaml", held, side)
