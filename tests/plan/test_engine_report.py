"""What an engine's log says of memory: each statement, several ranks, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.plan.memory import engine_report
from kimi_nb.plan.memory.engine_report import Log

CORE = "(EngineCore pid=7) INFO Initializing a V1 LLM engine (v0.32.0) with config: model='m', x=1"
CACHE = "Available KV cache memory: 46.80 GiB"


def read(*lines: str) -> Log:
    return engine_report.read(lines, "x.log")


def refused(*lines: str) -> str:
    with pytest.raises(ParameterError) as told:
        read(*lines)
    return str(told.value)


def figures(log: Log) -> dict[str, float]:
    """What a log says, without its name, its settings and how many lines said it."""
    said = dataclasses.asdict(log)
    for name in ("name", "version", "model", "settings", "lines"):
        del said[name]
    return {name: value for name, value in said.items() if value is not None}


# Statements -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Model loading took 71.98 GiB memory and 226.5 seconds", {"weights": 71.98}),
        ("Model loading took 71.98 GB and 226.5 seconds", {"weights": 71.98}),
        ("Loading model weights took 36.9012 GB", {"weights": 36.9012}),
        (
            "model weights take 71.5GiB; non_torch_memory takes 1.25GiB; PyTorch activation peak "
            "memory takes 3.5 GiB; the rest of the memory reserved for KV Cache is 40.0GiB.",
            {"weights": 71.5, "contexts": 1.25, "activations": 3.5, "cache": 40},
        ),
        (CACHE, {"cache": 46.8}),
        ("Available KV cache memory: -19.08 GiB", {"cache": -19.08}),
        ("GPU KV cache size: 715,072 tokens", {"tokens": 715_072}),
        ("NPU KV cache size: 1,002 tokens, Maximum concurrency", {"tokens": 1002}),
        ("Graph capturing finished in 32 secs, took 1.20 GiB", {"graphs": 1.2}),
        (
            "CUDA graph pool memory: 1.2 GiB (actual), 1.4 GiB (estimated), difference: 0.2 GiB",
            {"graphs": 1.2, "graphs_estimated": 1.4},
        ),
        (
            "Free memory on device (137.64/139.8 GiB) on startup. Desired GPU memory utilization is "
            "(0.9, 125.82 GiB).",
            {"device": 139.8, "utilization": 0.9, "budget": 125.82},
        ),
        (
            "Actual usage is 73.7 GiB for consumed memory (weights + non-torch), 5.1 GiB for peak "
            "activation, and 1.2 GiB for CUDAGraph memory.",
            {"activations": 5.1},
        ),
        (
            "Actual usage: 36.9 GiB for weights, 8.25 GiB for peak activation, 3.5 GiB for "
            "non-torch memory, 0.79 GiB for NPU graph memory.",
            {"activations": 8.25, "contexts": 3.5},
        ),
        (
            "Auto set (1.67/15.09) GiB for KV cache on node 0, with 2.26 GiB requested memory for "
            "the worker. 0.6 GiB memory was consumed by non-kv usages.",
            {"cache": 1.67, "device": 15.09, "budget": 2.26},
        ),
    ],
)
def test_each_statement_has_its_figures(line, said):
    assert figures(read(f"(Worker pid=1) INFO [worker.py:1] {line}")) == said


def test_statements_are_counted_also_where_a_line_has_several():
    assert read(CACHE).lines == 1
    both = "Actual usage: 1 GiB for weights, 2 GiB for peak activation, 3 GiB for non-torch memory"
    assert read("ready", both, "ready", CACHE, "ready").lines == 3


def test_of_several_ranks_the_fullest_counts():
    """The largest of what is taken, the smallest of what there is, whichever comes first."""
    free = "Free memory on device (90/{} GiB) on startup. Desired GPU memory utilization is ({}, {} GiB)."
    usage = (
        "Actual usage: 1 GiB for weights, {} GiB for peak activation, {} GiB for non-torch memory"
    )
    pool = "graph pool memory: {} GiB (actual), {} GiB (estimated)"
    lines = [
        "Model loading took 70 GiB", "Model loading took 72 GiB", "Model loading took 71 GiB",
        "GPU KV cache size: 300 tokens", "GPU KV cache size: 100 tokens",
        "GPU KV cache size: 200 tokens",
        "Available KV cache memory: 5 GiB", "Available KV cache memory: 3 GiB",
        "Available KV cache memory: 4 GiB",
        usage.format(8, 3), usage.format(9, 4), usage.format(7, 2),
        pool.format(1.2, 1.4), pool.format(1.3, 1.5), pool.format(1.1, 1.3),
        free.format(97, 0.8, 80), free.format(95, 0.9, 70), free.format(96, 0.7, 75),
    ]  # fmt: skip
    found = read(*lines)
    assert figures(found) == {
        "weights": 72,
        "tokens": 100,
        "cache": 3,
        "activations": 9,
        "contexts": 4,
        "graphs": 1.3,
        "graphs_estimated": 1.5,
        "device": 95,
        "utilization": 0.9,
        "budget": 70,
    }
    assert isinstance(found.tokens, int)


def test_estimated_graphs_are_in_the_peak_but_where_the_contexts_are_told():
    peak = "Actual usage is 73 GiB for weights, 5.5 GiB for peak activation, "
    pool = "CUDA graph pool memory: 1 GiB (actual), 1.5 GiB (estimated)"
    assert read(peak, pool).activations == 4
    assert read(peak + "2 GiB for non-torch memory", pool).activations == 5.5
    assert read(pool).activations is None


# The engine -------------------------------------------------------------------------------------


def test_a_log_names_its_engine():
    found = read(CORE, CACHE)
    assert (found.name, found.version, found.model, found.settings) == ("x.log", "0.32.0", "m", {})
    assert read(CACHE) == Log("x.log", cache=46.8, lines=1)


def test_the_settings_that_decide_memory_are_read():
    args = (
        "non-default args: {'model': 'm', 'tensor_parallel_size': 8, 'max_model_len': 1048576, "
        "'gpu_memory_utilization': 0.85, 'enable_expert_parallel': True, 'kv_cache_dtype': "
        "'fp8_e4m3', 'max_num_seqs': '$N', 'max_num_batched_tokens': 12345678901234567890, "
        "'data_parallel_size': 2}"
    )
    found = read(args, CACHE)
    assert found.settings == {
        "tensor_parallel_size": 8,
        "max_model_len": 1_048_576,
        "gpu_memory_utilization": 0.85,
        "enable_expert_parallel": True,
        "kv_cache_dtype": "fp8_e4m3",
        "data_parallel_size": 2,
    }
    assert found.utilization == 0.85
    desired = "Free memory on device (1/2 GiB) on startup. Desired GPU memory utilization is (0.5, 1 GiB)."
    assert read(args, CACHE, desired).utilization == 0.5
    no = read(
        "non-default args: {'enable_expert_parallel': False, 'gpu_memory_utilization': True}", CACHE
    )
    assert no.settings["enable_expert_parallel"] is False and no.utilization is None


# A log that cannot be used ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [
                CORE,
                CORE.replace("Core", "Core_DP1").replace("v0.32.0", "v0.33.0"),
                CORE.partition(") ")[2],
            ],
            "m by vLLM 0.32.0, m by vLLM 0.33.0",
        ),
        ([CORE, CORE], "m by vLLM 0.32.0"),
        ([CORE.replace("(E", "(A pid=1) (E"), CORE], "m by vLLM 0.32.0"),
        (["non-default args: {'a': 1}", CACHE, "non-default args: {'a': 1}"], "2"),
    ],
)
def test_a_log_of_two_starts_is_refused(lines, said):
    assert refused(CACHE, *lines) == (
        f"x.log: the log is of more than one start of an engine ({said}). Give the log of one start; "
        "a restart begins where 'non-default args' or 'Initializing' stands again."
    )


def test_the_cores_of_one_engine_start_once_each():
    """One is named in the line of another, behind what it says itself."""
    second = CORE.replace("EngineCore", "EngineCore_DP1") + " (EngineCore_DP1 pid=8)"
    assert read(CORE, second, "non-default args: {}", CACHE).version == "0.32.0"


def test_a_log_without_a_figure_is_refused():
    assert (
        refused(CORE, "ready")
        == refused(CORE)
        == (
            "x.log: no line about memory: 'Available KV cache memory', 'GPU KV cache size' or 'Model "
            "loading took' is wanted. Give the log of an engine that has started."
        )
    )


def test_a_line_that_is_cut_is_named_by_its_end():
    cut = f"{'0' * 200}{'1' * 80} Available KV cache memory: 46.8\n"
    end = f"{'1' * 80} Available KV cache memory: 46.8"[-120:]
    assert len(end) < 120 and refused("ready", f"{cut}") == (
        "x.log: line 2: begins as 'Available KV cache memory: ...' and is cut, or is of a version "
        f"that is not known here: '{'0' * (120 - len(end))}{end}'. Give the whole log, as the engine "
        "wrote it."
    )


@pytest.mark.parametrize("head", ["", "12:00:00 ", "12:00:00 REHEARSAL, "])
def test_a_stand_in_is_named_by_its_line(head):
    assert refused("ready", f"{head}REHEARSAL (Worker pid=1) {CACHE}") == (
        "x.log: line 2: REHEARSAL: a stand-in wrote this log, which has no memory of any device to "
        "tell of. Give the log of an engine that has started on your node."
    )


def test_a_long_log_is_read_to_its_bound(monkeypatch):
    monkeypatch.setattr(engine_report, "MOST_LINES", 1000)
    lines = [CACHE, *["ready"] * 999]
    assert read(*lines).cache == 46.8
    assert refused(*lines, "ready") == (
        "x.log: more than 1,000 lines; the report of an engine's start is in its first thousands. "
        "Cut the log after 'Application startup complete'."
    )


def test_a_long_line_is_read_to_its_bound(monkeypatch):
    monkeypatch.setattr(engine_report, "LONGEST", len(CACHE) + 3)
    assert read(f"123{CACHE}{CACHE}").lines == 1
    assert "is cut" in refused(f"1234{CACHE}")


# Ranks with logs of their own -------------------------------------------------------------------


def test_the_logs_of_ranks_are_one():
    """The first says nothing of the engine, and the third nothing of graphs."""
    first = Log("a", weights=70, activations=3, contexts=2, graphs=1, graphs_estimated=1.5,
                cache=5, tokens=300, device=90, utilization=0.8, budget=80, lines=4)  # fmt: skip
    second = Log("b", "0.32.0", "m", {"max_num_seqs": 8.0}, weights=72, activations=5, contexts=4,
                 graphs=3, graphs_estimated=2.5, cache=3, tokens=100, device=90, utilization=0.9,
                 budget=70, lines=5)  # fmt: skip
    third = Log("c", "0.32.0", "m", {"max_num_seqs": 8.0}, weights=71, activations=4, contexts=3,
                cache=4, tokens=200, budget=75, lines=6)  # fmt: skip
    assert engine_report.join([first, second, third]) == Log(
        "a, b, c", "0.32.0", "m", {"max_num_seqs": 8.0}, weights=72, activations=5, contexts=4,
        graphs=3, graphs_estimated=2.5, cache=3, tokens=100, device=90, utilization=0.9, budget=70,
        lines=15,
    )  # fmt: skip
    assert engine_report.join([Log("a"), Log("b")]) == Log("a, b")
    assert engine_report.join([first]) is first


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"version": "0.31.0"}, {"version": "0.32.0"}, "vLLM 0.31.0 and 0.32.0"),
        ({"model": "m"}, {"model": "n"}, "model m and n"),
        ({"settings": {"a": 1}}, {"settings": {"a": 2}}, "settings {'a': 1} and {'a': 2}"),
        ({"device": 90.0}, {"device": 95.0}, "memory of the device 90.0 and 95.0"),
    ],
)
def test_logs_of_two_engines_are_refused(one, other, said):
    """Also where a log before them says nothing of it."""
    one, other, silent = Log("a", **one), Log("b", **other), Log("c")
    for logs in ([one, other], [one, silent, other], [silent, one, other]):
        with pytest.raises(ParameterError) as told:
            engine_report.join(logs)
        assert str(told.value) == (
            f"a, b: logs of two engines: {said}. Give the logs of one engine's ranks, of one start."
        )


# Lines of a part of a log -----------------------------------------------------------------------


def test_the_lines_that_are_read_are_taken_from_bytes():
    kept = [
        "(Worker) Model loading took 1 GiB, as Model loading took 1 GiB",
        "non-default args: {}",
        "Initializing a V1",
        "Model loading took 2 GiB",
        "Model loading took 3 GiB",
        "model weights take \N{REPLACEMENT CHARACTER}",
    ]
    first, second, third, fourth, fifth, _ = (line.encode() for line in kept)
    last = b"model weights take \xff"
    block = b"\n".join([first, b"a", b"", second, third, b"b", fourth, fifth, last])
    assert engine_report.lines_of(block) == kept
    assert engine_report.lines_of(second) == engine_report.lines_of(b"\n" + second) == kept[1:2]
    assert engine_report.lines_of(b"a\n" + block + b"\nb\n") == kept
    assert engine_report.lines_of(b"") == engine_report.lines_of(b"ready\n") == []


def test_a_line_of_a_part_has_its_bound(monkeypatch):
    monkeypatch.setattr(engine_report, "LONGEST", 22)
    block = b"ready\nModel loading took 71.98 GiB\nModel loading took 71\n"
    assert engine_report.lines_of(block) == ["Model loading took 71.", "Model loading took 71"]
