"""The vendors' codes and the parts of the system: data that is whole and finds what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from kimi_nb.core import data_files
from kimi_nb.diagnose import codes, components

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "text, code, component",
    [
        ("NPU function error: aclrtSetDevice, error code is 507033", "507033", "device"),
        ("ACL stream synchronize failed, error code:507015", "507015", "kernel"),
        ("wait for compute device to finish failed, runtime result = 507054.", "507054", "device"),
        ("HCCL function error: HcclCommInitRootInfo(n, &i), error code is 9", "9", "hccl"),
        ("EI0006: [PID: 7] 2026-04-08-18:07:20 Getting socket times out.", "EI0006", "hccl"),
        ("EZ9999: Inner Error! EI0002: the wait timed out", "EI0002", "hccl"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "214", "device"),
        ("Error 802: system not yet initialized", "802", "device"),
        ("NCCL error: unhandled system error", "ncclSystemError", "nccl"),
        ("Memory access fault by GPU node-2 on address (nil)", "memory-access-fault", "kernel"),
        ("OSError: [Errno 24] Too many open files", "24", "os-limit"),
        ("failed (exitcode: -9) local_rank: 5", "-9", "host-memory"),
        ("403 Client Error: Forbidden for url: https://huggingface.co/x", "403", "hub"),
    ],
)
def test_a_code_has_its_meaning(text, code, component):
    found = codes.of(text)
    assert found is not None and (found.code, found.component) == (code, component), found
    assert found.text and found.page.startswith("https://")


def test_numbers_that_are_no_codes():
    for text in ("took 507035 ms", "error code is 12", "port 10700", "HTTP 200"):
        assert codes.of(text) is None, text


def test_a_misleading_text_is_corrected_and_said_so():
    found = codes.of("error code is 207005")
    assert "queue of streams" in found.text and "misleads" in found.text
    assert found.component == "graph-capture"


@pytest.mark.parametrize("name", codes.TABLES)
def test_a_table_is_whole(name):
    given = data_files.facts(f"diagnose/codes/{name}")
    assert given.keys() <= {"title", "page", "component", "patterns", "words", "codes"}
    assert given["page"].startswith("https://")
    known = {one.id for one in components.entries()}
    for code, row in given["codes"].items():
        row = {"text": row} if isinstance(row, str) else row
        assert row.keys() <= {"text", "component", "help", "officially"}, code
        assert row["text"] and row.get("component", given["component"]) in known, code
    assert {str(code) for code in given.get("words", {}).values()} <= set(map(str, given["codes"]))
    assert all("(?P<code>" in pattern for pattern in given["patterns"])


def test_there_are_as_many_codes_as_the_runtime_has():
    assert len(data_files.facts("diagnose/codes/acl")["codes"]) > 150


def test_a_transport_says_more_than_words_that_fit_everywhere():
    said = ["Local block size 16 is not divisible by that of the other side"]
    nixl = ["/opt/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py"]
    assert components.of(said, "AssertionError", nixl, "").id == "nixl"
    assert components.of(said, "AssertionError", ["/opt/vllm/config/parallel.py"], "").id == (
        "configuration"
    )
    assert components.of(["API call is not supported"], "", [], "NCCL").id == "nccl"
    # Whoever catches a signal is not who caused it.
    assert components.of(["Caught signal 11 (Segmentation fault)"], "", [], "ucx").id == "library"


@pytest.mark.parametrize("one", components.entries(), ids=[one.id for one in components.entries()])
def test_a_part_is_whole(one):
    given = data_files.facts("diagnose/components")[one.id]
    assert given.keys() <= {
        *(
            "title",
            "words",
            "raised",
            "frames",
            "speaker",
            "general",
            "python",
            "transport",
            "help",
            "see",
        )
    }
    assert one.title and one.help and "{" not in one.way_out("n1")
    assert one.words or one.frames or one.raised
    notebook, _, heading = one.see.partition("#")
    assert re.fullmatch(r"\d\d_[a-z_]+", notebook) and heading
    path = ROOT / "notebooks" / f"{notebook}.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    assert any(f"## {heading}" in cell.source.splitlines() for cell in cells), one.see


def test_the_innermost_frame_tells_the_part():
    frames = ["vllm/v1/worker/gpu_worker.py", "site-packages/flashinfer/jit/core.py"]
    assert components.of(["it broke"], "RuntimeError", frames, "").id == "jit"
    assert components.of(["it broke"], "RuntimeError", [], "") is None
