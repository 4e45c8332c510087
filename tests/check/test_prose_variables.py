"""Variables that prose names: slips in known ones are told, all else is left alone."""

from __future__ import annotations

import pytest

from kimi_nb.check import judge


def said(text, tmp_path):
    path = tmp_path / "guide.md"
    path.write_text(f"# Kimi on vLLM\n\n{text}\n")
    found = judge.files([path]).findings
    return [(one.message, one.where.rpartition(":")[2]) for one in found]


@pytest.mark.parametrize(
    "text",
    [
        "Set `HCCL_BUFFSIZ=1024` first.",
        "Run `export HCCL_BUFFSIZ=1024`.",
        "| `HCCL_BUFFSIZ` | size of a buffer |",
    ],
)
def test_a_slip_is_told_with_its_line(text, tmp_path):
    assert said(text, tmp_path) == [("HCCL_BUFFSIZ is not known, HCCL_BUFFSIZE is", "3")]


@pytest.mark.parametrize(
    "text",
    [
        "Set `HCCL_BUFFSIZE=1024` first.",
        "Metax reads `MCCL_SOCKET_IFNAME`, and `LCCL_DETERMINISTIC` is ATB's.",
        "`MY_OWN_VARIABLE` is yours.",
        "HCCL_BUFFSIZ without code is a word.",
    ],
)
def test_what_is_no_slip_is_left_alone(text, tmp_path):
    assert said(text, tmp_path) == []
