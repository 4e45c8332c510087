"""The doctor: who failed first, in logs of any shape."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from kimi_nb.cli import main
from kimi_nb.core import paths
from kimi_nb.core.errors import ParameterError
from kimi_nb.diagnose import doctor, faq, log_lines, log_sources, rank_places
from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal

HEALTHY = Path(__file__).parent / "logs" / "healthy"
OOM = "RuntimeError: NPU out of memory. Tried to allocate 1.31 GiB (NPU 3; 64.00 GiB in all)"
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def core(rank: int, time: str, text: str) -> str:
    return f"(EngineCore_DP{rank} pid=7) ERROR {time} [core.py:1136] {text}"


# What is read ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, node, rank",
    [
        ("rank_31.log", "rank_31", 31),
        ("h1.log", "h1", None),
        ("logs/a3-0/engines.log", "a3-0", None),
        ("a3-1/logs/rank_3.log", "a3-1", 3),
        ("logs/router.log", "router", None),
        ("a3-2_rank_7.log.gz", "a3-2", 7),
        ("vllm_kimi.7.err", "vllm_kimi.7.err", None),
        ("plog/n3/plog-17_2026.log", "n3", None),
    ],
)
def test_node_and_rank_from_names(tmp_path, path, node, rank):
    write(tmp_path / path, "x")
    found = log_sources.sources([tmp_path], rank_places.Placed())
    assert [(one.node, one.rank) for one in found] == [(node, rank)]


def test_compressed_files_folders_and_stdin(tmp_path):
    text = "\n".join(["INFO 11-21 10:00:00 [x.py:1] fine", core(3, "11-21 10:00:01", OOM)])
    (tmp_path / "n1").mkdir()
    with gzip.open(tmp_path / "n1" / "rank_3.log.1.gz", "wt") as file:
        file.write(text)
    found = doctor.examine(tmp_path)
    assert (
        found.first.signature,
        found.first.node,
        found.first.rank,
        found.first.line,
        found.first.time,
    ) == ("out-of-memory", "n1", 3, 2, "11-21 10:00:01")
    done = subprocess.run(
        [sys.executable, "-m", "kimi_nb", "doctor", "--json"],
        text=True,
        input=text,
        capture_output=True,
        check=False,
    )
    first = json.loads(done.stdout)["first"]
    assert done.returncode == 1 and (first["node"], first["rank"], first["line"]) == ("stdin", 3, 2)


@pytest.mark.parametrize(
    "wrong, words",
    [("absent.log", "no such file"), ("empty", "no logs below"), ("cut.log.gz", "cannot be read")],
)
def test_mistakes(tmp_path, wrong, words, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress(b"line\n" * 1000)[:40])
    with pytest.raises(ParameterError, match=words):
        doctor.examine(tmp_path / wrong)
    assert main.main(["doctor", str(tmp_path / wrong)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("program", ["node.sh", "launch_online_dp.py"])
def test_a_program_beside_its_logs_is_no_log(program, tmp_path):
    """Our own scripts name failures; what is told of a folder's files is of its logs."""
    folder = tmp_path / "a3-0"
    folder.mkdir()
    shutil.copy(paths.DATA / "bundle" / program, folder)
    with pytest.raises(ParameterError, match=f"{program} is no log: the source of a program"):
        doctor.examine(folder / program)
    (folder / "rank_0.log").write_text("INFO 11-21 10:00:00 [x.py:1] all is well\n")
    found = doctor.examine(sorted(folder.iterdir()))
    assert found.ok and found.files == 1 and "the source of a program" in found.notes[0]
    (folder / "rank_0.log").write_text("OSError: [Errno 28] No space left on device: '/x'\n")
    assert doctor.examine(sorted(folder.iterdir())).first.signature == "disk-full"


@pytest.mark.parametrize(
    "data, words",
    [
        (bytes(range(256)) * 9, "x.log is no log: binary"),
        (bytes(range(1, 256)), "x.log is no log: binary"),
        (b"", "x.log is empty: nothing to judge"),
        (gzip.compress(b""), "x.log is empty: nothing to judge"),
    ],
    ids=["bytes", "no-text", "empty", "empty-gz"],
)
def test_what_is_no_log_is_not_judged(tmp_path, data, words, capsys):
    (tmp_path / "x.log").write_bytes(data)
    assert main.main(["doctor", str(tmp_path / "x.log")]) == 2
    assert words in capsys.readouterr().err
    write(tmp_path / "y.log", "INFO 11-21 10:00:00 [x.py:1] fine")  # beside which it is a note
    assert main.main(["doctor", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1 log, 0.0 MB: nothing is wrong" in out and words in " ".join(out.split())


@pytest.mark.parametrize("cut", [0.3, 0.99])
def test_a_log_that_is_cut_off_hides_no_other(tmp_path, cut, capsys):
    packed = gzip.compress(b"".join(b"INFO line %d\n" % at for at in range(5000)))
    (tmp_path / "rank_1.log.gz").write_bytes(packed[: int(len(packed) * cut)])
    write(tmp_path / "rank_3.log", core(3, "11-21 10:00:09", OOM))
    assert main.main(["doctor", str(tmp_path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "cannot be read: it was cut off before its end; what came before it was judged" in out
    assert doctor.examine(tmp_path).first.signature == "out-of-memory"


def test_a_cause_before_the_cut_is_found(tmp_path):
    lines = core(3, "11-21 10:00:09", OOM) + "\n" + "INFO line\n" * 9
    packed = gzip.compress(lines.encode()) + gzip.compress(b"more")[:12]
    (tmp_path / "rank_3.log.gz").write_bytes(packed)
    assert doctor.examine(tmp_path).first.signature == "out-of-memory"


@pytest.mark.parametrize("coding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_log_of_windows_is_read(tmp_path, coding, pack):
    text = "\ufeff" + core(3, "11-21 10:00:09", OOM) + "\r\nINFO 日本\r\n" * 30
    (tmp_path / "rank_3.log").write_bytes(pack(text.encode(coding)))
    assert doctor.examine(tmp_path).first.signature == "out-of-memory"


def test_a_log_that_begins_with_zeros_is_read(tmp_path):
    """It was cut while it was written to (logrotate's copytruncate)."""
    line = core(3, "11-21 10:00:09", OOM).encode()
    (tmp_path / "rank_3.log").write_bytes(b"\0" * (3 << 20) + line)
    assert doctor.examine(tmp_path).first.signature == "out-of-memory"


def test_what_an_engine_answered_with_500_did_not_begin_at_the_front_door(tmp_path):
    """The launcher tells the end of a rank a second after its clients have noticed it."""
    write(
        tmp_path / "router.log",
        "load_balance_proxy_server_example.py: 11-24 01:32:24 ERROR Error during streaming from "
        "decoder 127.78.0.3:7100: Server error '500 Internal Server Error' for url "
        "'http://127.78.0.3:7100/v1/chat/completions'",
    )
    write(
        tmp_path / "a3-2" / "engines.log",
        "ERROR 11-24 01:32:25 [launch_online_dp.py:291] rank 5 failed: signal SIGKILL; last lines "
        "of ./logs/rank_5.log:",
    )
    first = doctor.examine(tmp_path).first
    assert (first.signature, first.rank) == ("rank-died", 5)


def test_an_empty_stdin_is_nothing_to_judge():
    done = subprocess.run(
        [sys.executable, "-m", "kimi_nb", "doctor"],
        text=True,
        input="",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2 and "stdin is empty: nothing to judge" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "训练失败: 设备内存不足\n",
        "caf\xe9 \x1b[31mred\x1b[0m\tx\r\n",
        "\N{REPLACEMENT CHARACTER} " * 3 + "garbled text\n",
    ],
)
def test_text_of_any_kind_is_a_log(tmp_path, text):
    for coding in ("utf-8", "gb18030"):
        (tmp_path / "x.log").write_bytes(b"INFO 11-21 10:00:00 [x.py:1] " + text.encode(coding))
        assert doctor.examine(tmp_path).files == 1


def test_a_plan_of_other_nodes_is_told(tmp_path):
    plan = build.plan("k2.5", "a3", layout="pd")
    write(tmp_path / "n7" / "rank_0.log", core(0, "11-21 10:00:00", OOM))
    (note,) = doctor.examine(tmp_path, plan).notes
    assert "no log is of a node of the plan (a3-0, a3-1, a3-2, a3-3)" in note
    assert "no log is of a node" in " ".join(str(doctor.examine(tmp_path, plan)).split())
    write(tmp_path / "a3-1" / "rank_0.log", "INFO fine")
    assert not doctor.examine(tmp_path, plan).notes
    assert not doctor.examine(tmp_path).notes


def test_exit_codes(tmp_path, capsys):
    assert main.main(["doctor", str(HEALTHY)]) == 0
    assert (
        main.main(["doctor", str(write(tmp_path / "x.log", core(0, "11-21 10:00:00", OOM)))]) == 1
    )
    assert "out of memory" in capsys.readouterr().out


def test_memory_does_not_grow_with_the_log(tmp_path):
    path = tmp_path / "rank_0.log"
    line = b"(EngineCore_DP0 pid=7) INFO 11-21 10:00:00 [loggers.py:127] Engine 000: Running: 3\n"
    path.write_bytes(line * 400_000 + core(0, "11-21 10:00:01", OOM).encode())
    doctor.examine(HEALTHY)  # what is loaded once
    tracemalloc.start()
    found = doctor.examine(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.first.line == 400_001 and found.bytes > 30_000_000
    assert peak < 8_000_000


RANK_BYTES = 33_000  # measured: 27,000, and 40,000 when nothing is forgotten
PEAKS = """
import gc, sys, tracemalloc
from kimi_nb.diagnose import doctor, line_grammar

def peak_of(folder, ranks):
    line_grammar.of.cache_clear()
    tracemalloc.start()
    found = doctor.examine(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.first.rank, found.first.line) == (0, 1)
    assert [len(one.lines) for one in found.unknown] == [5] * ranks
    return peak

gc.set_threshold(700, 2, 1)
doctor._AT_ONCE = 1  # buffers of files that happen to be read at once say nothing of a rank
print(*(peak_of(f"{sys.argv[1]}/{ranks}", ranks) for ranks in (2, 10, 30)))
"""


def test_memory_for_a_rank_that_is_full_of_errors_is_bounded(tmp_path):
    """Of 23 errors of eight processes in each log, those that only repeat another are forgotten.

    Measured in a fresh process: the caches that other tests fill grow at moments of their own.
    """
    for ranks in (2, 10, 30):  # the first loads what is loaded once
        for rank in range(ranks):
            said = (
                f"RuntimeError: the flux {{}} of rank {rank} is gone after waiting at {rank:040x}"
            )
            lines = [
                f"(Worker_DP{rank}_TP{at % 8} pid={at % 8}) ERROR 11-22 05:49:{at:02} [worker.py:{at}] "
                + said.format(at)
                for at in range(23)
            ]
            write(tmp_path / str(ranks) / f"n{rank // 16}" / f"rank_{rank}.log", *lines)
    done = subprocess.run(
        [sys.executable, "-c", PEAKS, str(tmp_path)],
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, few, many = map(int, done.stdout.split())
    assert (many - few) / 20 < RANK_BYTES, (many - few) / 20


def test_errors_of_two_thousand_ranks_fill_no_more_than_a_screen(tmp_path):
    """All lose the one that ran out of memory, which is named; what each says is in --json."""
    for rank in range(2000):
        lost = f"RuntimeError: the flux of rank {rank} is gone"
        said = (
            core(rank, "11-21 10:00:00", OOM)
            if rank == 1234
            else core(rank, "11-21 10:00:02", lost)
        )
        write(tmp_path / f"n{rank // 8:03}" / f"rank_{rank}.log", said)
    found = doctor.examine(tmp_path)
    assert (found.first.node, found.first.rank) == ("n154", 1234)
    assert len(found.unknown) == 1999 and len(str(found).splitlines()) < 40
    assert "and 1995 more, in --json" in str(found)


@pytest.mark.parametrize(
    "before, file", [("", "kimi-decode-0-1.log"), ("[pod/kimi-decode-0-1/engine] ", "pods.log")]
)
def test_ranks_of_a_pod_are_told_apart(before, file, tmp_path):
    """Several ranks write into one stream of a pod; kubectl logs --prefix names the pod."""
    lines = [
        f"{before}rank_{rank} | (APIServer pid={rank}) ERROR 11-24 03:00:{at} "
        f"[api_server.py:1] {text}"
        for rank, at, text in ((3, "09", OOM), (5, "12", DEAD))
    ]
    found = doctor.examine(write(tmp_path / file, *lines))
    assert (found.first.node, found.first.rank) == ("kimi-decode-0-1", 3)
    assert found.first.signature == "out-of-memory"


def test_a_storm_of_errors_hides_nothing(tmp_path):
    """Long after the doctor has seen enough of one kind another failure is found."""
    lines = [core(0, "11-21 10:00:00", f"flux {n} gone") for n in range(30_000)]
    found = doctor.examine(write(tmp_path / "n1.log", *lines, core(1, "11-21 10:00:09", OOM)))
    assert (found.first.signature, found.first.rank, found.first.line) == (
        "out-of-memory",
        1,
        30_001,
    )
    assert [(one.rank, len(one.lines)) for one in found.unknown] == [(0, 5)]


# Times, colours, levels ------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, want",
    [
        ("INFO 11-22 05:49:28 [x.py:1] y", "11-22 05:49:28"),
        ("2026-11-22T05:49:28.123Z y", "11-22 05:49:28.123"),
        ("[2026-11-22 05:49:28,123 E 7 7] y", "11-22 05:49:28.123"),
        ("[ERROR] HCCL(7,python):2026-11-22-05:49:28.123.456 [x.cc:1]", "11-22 05:49:28.123456"),
        ("[rank1]:[E324 13:00:25.428029551 x.ts:574] y", "03-24 13:00:25.428029551"),
        ("E1122 05:49:28.123456 7 x.cpp:1] y", "11-22 05:49:28.123456"),
        ("Nov  2 05:49:28 h1 vllm[7]: y", "11-02 05:49:28"),
        ("no time here 12-34", ""),
    ],
)
def test_times(line, want):
    assert log_lines.stamp(line) == want


def test_lines_without_a_time_have_that_of_the_line_before(tmp_path):
    late = write(tmp_path / "n1" / "rank_0.log", "INFO 11-21 10:00:05 [x.py:1] y", OOM)
    write(tmp_path / "n2" / "rank_1.log", "2026-11-21T10:00:03.5 y", "  at z", OOM)
    found = doctor.examine(tmp_path)
    assert (found.first.node, found.first.time) == ("n2", "11-21 10:00:03.5")
    assert [(one.node, one.file) for one in found.also] == [("n1", str(late))]


def test_january_comes_after_december(tmp_path):
    write(tmp_path / "n1" / "rank_0.log", core(0, "01-01 00:00:02", OOM))
    write(tmp_path / "n2" / "rank_1.log", core(1, "12-31 23:59:58", OOM))
    assert doctor.examine(tmp_path).first.node == "n2"


def test_colours_hide_nothing(tmp_path):
    write(
        tmp_path / "n1.log",
        f"\x1b[0;36m(EngineCore_DP2 pid=7)\x1b[0;0m \x1b[31mERROR\x1b[0m 11-21 10:00:00 {OOM}",
        "\x1b[1mrank 5 failed: exit code 1\x1b[0m",
    )
    found = doctor.examine(tmp_path)
    assert (found.first.rank, [one.rank for one in found.also]) == (2, [5])


# First, cascade, unknown -----------------------------------------------------------------


def test_the_cause_is_told_apart_from_what_followed(tmp_path):
    for rank in range(6):
        write(tmp_path / "n1" / f"rank_{rank}.log", core(rank, "11-21 10:00:02", DEAD))
    write(
        tmp_path / "n2" / "rank_9.log",
        core(9, "11-21 10:00:03", OOM),
        core(9, "11-21 10:00:03", DEAD),
    )
    found = doctor.examine(tmp_path)
    assert (found.first.node, found.first.rank, found.first.signature) == ("n2", 9, "out-of-memory")
    assert len(found.cascade) == 7 and not found.also and not found.unknown
    assert found.as_dict()["first"].keys() >= {
        "signature",
        "cause",
        "node",
        "rank",
        "file",
        "line",
        "time",
    }


def test_an_unknown_failure_comes_before_what_followed_from_it(tmp_path):
    write(tmp_path / "n1" / "rank_0.log", core(0, "11-21 10:00:02", DEAD))
    write(
        tmp_path / "n2" / "rank_1.log",
        *(
            core(1, "11-21 10:00:01", text)
            for text in (
                "Traceback (most recent call last):",
                '  File "x.py", line 1',
                "FluxError: it is gone",
            )
        ),
        core(1, "11-21 10:00:02", DEAD),
    )
    found = doctor.examine(tmp_path)
    assert (found.first.signature, found.first.node, found.first.rank) == ("unknown", "n2", 1)
    assert "FluxError" in found.first.text and "Traceback" in found.unknown[0].lines[0]
    assert [one.rank for one in found.cascade] == [0, 1]


def test_who_waited_and_went_on_is_fine_who_waits_at_the_end_is_not(tmp_path):
    waits = (
        "INFO 11-21 10:00:00 [utils.py:1164] Waiting for 0 local, 1 remote core engine "
        "proc(s) to connect. ranks not here: 3"
    )
    assert doctor.examine(write(tmp_path / "a" / "a.log", waits, "INFO all are here")).ok
    found = doctor.examine(write(tmp_path / "b" / "b.log", waits, core(0, "11-21 10:09:00", DEAD)))
    assert "missing rank" in {one.cause[:12] for one in (found.first, *found.cascade)}


def test_logs_of_our_own_programs_are_left_out(tmp_path):
    """Beside those of a service lie those of what ran the notebooks and the stand-ins."""
    for name in ("kernels.log", "spawner.log", "rank_0.log"):
        write(tmp_path / name, "ERROR | KeyboardInterrupt" if name != "rank_0.log" else "INFO")
    found = doctor.examine(tmp_path)
    assert found.ok and found.files == 1


def test_healthy_logs_are_no_alarm():
    """Of the real vLLM on a CPU (one of them told to stop), of a stand-in, and single lines of
    others."""
    found = doctor.examine(HEALTHY)
    assert found.files == 5 and found.ok and not (found.also or found.cascade or found.unknown)


def test_healthy_logs_one_after_the_other_are_no_alarm(tmp_path):
    """As of a service that was started three times, each time with the same warnings."""
    once = b"".join(path.read_bytes() for path in sorted(HEALTHY.glob("*.log")))
    (tmp_path / "serve.log").write_bytes(once * 3)
    found = doctor.examine(tmp_path)
    assert found.ok and not (found.also or found.cascade or found.unknown)


@pytest.mark.parametrize(
    "line",
    [
        "{n} |x| (EngineCore pid=7) INFO 11-22 05:49:01 [a.py:7] up",
        "(Worker pid=1) ERROR 11-22 03:06:18 [a.py:8] RuntimeError: run failed, device_id={n}, stream",
        "[ERROR] RUNTIME(9,):2026-06-05-09:12:20.330.712 [a.cc:1]9660 P:Task run failed, device_id={n}",
        "ERROR chipId:{n} failed",
        "ERROR rank[{n}] failed with error: x",
        "[rank{n}]: RuntimeError: x",
        "(Worker_TP{n} pid=1) ERROR 11-22 03:06:18 [a.py:8] RuntimeError: x",
        "(Worker pid=1) INFO 11-22 03:06:18 [a.py:8] world_size={n} rank={n}",
        "node7:455:{n} [{n}] p2p.cc:239 NCCL WARN failed : invalid argument",
        "DeepEP dispatch NVL receiver timeout, channel: 2, RDMA: {n}, nvl: {n}",
        "mpirun noticed that process rank {n} with PID {n} on node n exited on signal 9",
    ],
)
def test_a_number_of_thousands_of_digits_is_no_crash(line, tmp_path):
    before = "".join(line.format(n=at) + "\n" for at in range(12))
    failed = "ValueError: what failed\n"
    (tmp_path / "serve.log").write_text(f"{before}{line.format(n='9' * 6000)}\n{failed}")
    found = doctor.examine(tmp_path)
    assert found.first is not None and len(json.dumps(str(found.first))) < 8000


# With a plan -----------------------------------------------------------------------------


def test_a_rehearsed_fault_with_its_devices(tmp_path):
    plan = build.plan("k2.5", "a2", "dp")
    made = rehearsal.rehearse(plan, tmp_path, fault="out-of-memory-at-load")
    found = doctor.examine(made.folder, made.folder / "bundle")
    wanted = made.diagnosis
    assert (found.first.kind, found.first.node, found.first.rank) == (
        wanted.kind,
        wanted.node,
        wanted.rank,
    )
    engine = next(
        one for one in plan.of(wanted.node) if one.rank <= wanted.rank < one.rank + one.ranks
    )
    assert set(found.first.devices) <= set(engine.devices) and found.first.devices
    assert f"rank {wanted.rank}, devices" in str(found)


def test_a_worker_has_its_own_device():
    plan = build.plan("k2.6", "a3", "pd")
    engine = plan.first("prefill")
    where = rank_places.of(plan)
    assert where.devices(engine.node, engine.rank, 1) == (engine.devices[1],)
    assert where.devices(engine.node, engine.rank, None) == engine.devices
    assert where.devices("elsewhere", 0, None) == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"rank": "0"},
        {"rank": True},
        {"ranks": -1},
        {"ranks": 10**9},
        {"devices": None},
        {"devices": ["0"]},
        {"devices": 7},
        {"node": 5},
        {"http_port": "8000"},
        {"env": ["A"]},
        {"env": {"A": 1}},
        {"argv": [1]},
        {"headless": "no"},
    ],
)
def test_a_plan_whose_values_are_of_other_kinds_is_none(tmp_path, changed):
    table = json.loads(build.plan("k2.5", "a3", "single").as_json({}))
    (tmp_path / "plan.json").write_text(json.dumps(table))
    assert rank_places.of(tmp_path).nodes == ("a3-0",)
    table["engines"][0].update(changed)
    (tmp_path / "plan.json").write_text(json.dumps(table))
    with pytest.raises(ParameterError, match=f"is no plan.*{next(iter(changed))}"):
        rank_places.of(tmp_path)


def test_a_plan_without_an_end_is_not_read(tmp_path):
    (tmp_path / "plan.json").symlink_to("/dev/zero")
    with pytest.raises(ParameterError, match="not a regular file"):
        rank_places.of(tmp_path)


@pytest.mark.parametrize(
    "text, words",
    [("{}", "is no plan"), ("[1]", "is no plan"), ("[" * 99999, "is no plan"), (None, "no plan")],
)
def test_what_is_no_plan(tmp_path, text, words):
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ParameterError, match=words):
        doctor.examine(HEALTHY, tmp_path)


# The FAQ ---------------------------------------------------------------------------------


def test_the_faq_is_searched_by_words_and_by_lines():
    assert faq.search("status: 103900").ids == ("kv-transfer-failed",)
    assert "hccl-buffer" in faq.search("buffsize ascend").ids
    assert not len(faq.search("")) and not len(faq.search("flux capacitor"))
    with pytest.raises(ParameterError, match="Allowed: api"):
        faq.topic("apis")


def test_the_refusal_of_a_request_is_no_failure_of_the_engine(tmp_path):
    """vLLM logs it at level error; it was blamed for an engine that was killed."""
    log = tmp_path / "rank_0.log"
    log.write_text(
        "(APIServer pid=1) ERROR 11-22 10:00:00 [serving.py:1] Error with model "
        "error=ErrorInfo(message='The model `no-such-model` does not exist.', "
        "type='NotFoundError', param='model', code=404)\n"
        '(APIServer pid=1) INFO:     127.0.0.1:5 - "POST /v1/chat/completions" 404 Not Found\n'
    )
    assert doctor.examine([str(log)]).ok
    log.write_text(log.read_text().replace("code=404", "code=500"))
    assert not doctor.examine([str(log)]).ok


# What the front doors say of a client's mistakes: kimi-nb verify makes them on purpose.
PROXY = (
    "load_balance_proxy_server_example.py: WARNING Attempt 2 failed for /chat/completions: "
    "Client error '404 Not Found' for url 'http://192.0.2.11:7101/v1/chat/completions'",
    "load_balance_proxy_server_example.py: ERROR All 3 attempts failed for /chat/completions.",
    "load_balance_proxy_server_example.py: Error occurred in disagg prefill proxy server - "
    "/chat/completions endpoint",
    "load_balance_proxy_server_example.py: EngineError: Client error '404 Not Found' for url "
    "'http://192.0.2.11:7101/v1/chat/completions'",
    "load_balance_proxy_server_example.py: Error occurred in disagg prefill proxy server - "
    "/chat/completions endpoint",
    "load_balance_proxy_server_example.py: JSONDecodeError: Expecting ',' delimiter: line 1",
)
ROUTER = (
    "2026-11-22 10:00:00 ERROR http_request{status_code=404}: vllm_router_rs::server: "
    "response failed classification=Status code: 404 Not Found",
    "2026-11-22 10:00:01 ERROR vllm_router_rs::routers::http::vllm_pd_router: decode worker "
    "answered status=400 Bad Request",
)


@pytest.mark.parametrize("lines", [PROXY, ROUTER], ids=["proxy", "router"])
def test_a_clients_mistake_at_the_front_door_is_no_cause(lines, tmp_path):
    write(tmp_path / "logs" / "router.log", *lines)
    write(tmp_path / "a3-0" / "rank_0.log", "INFO 11-22 10:00:00 [x.py:1] fine")
    found = doctor.examine(tmp_path)
    assert found.ok and not (found.also or found.cascade or found.unknown), found
    write(tmp_path / "a3-0" / "rank_0.log", core(0, "11-22 10:00:09", OOM))
    first = doctor.examine(tmp_path).first
    assert (first.signature, first.node, first.rank) == ("out-of-memory", "a3-0", 0)


def told(cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command without a path and without a pipe."""
    return subprocess.run(
        [sys.executable, "-m", "kimi_nb", "doctor"],
        text=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        cwd=cwd,
    )


def test_without_a_path_the_newest_run_is_examined(tmp_path):
    done = told(tmp_path)
    assert done.returncode == 2 and "holds no run" in done.stderr and "PATH" in done.stderr
    run = tmp_path / "runs" / "k2.5-a3"
    write(run / "x" / "rehearsals" / "001" / "logs" / "n1" / "rank_0.log", "INFO fine", OOM)
    done = told(tmp_path)
    assert done.returncode == 1 and "the newest run" in done.stderr, done.stderr
    assert "k2.5-a3" in done.stderr and "out of memory" in done.stdout


def test_what_is_no_log_of_an_engine_is_said_so(tmp_path):
    write(tmp_path / "list.txt", "bread", "butter", "two eggs")
    found = doctor.examine(tmp_path)
    assert found.ok and not found.engines
    assert "nothing looked like an engine's log" in " ".join(str(found).split())


def test_logs_that_are_broken_hide_no_cause_of_the_others(tmp_path, capsys):
    (tmp_path / "rank_0.log").write_text("RuntimeError: NPU out of memory\n")
    (tmp_path / "rank_1.log").write_bytes("INFO good morning\n".encode("utf-16"))
    (tmp_path / "rank_2.log.gz").write_bytes(gzip.compress(b"INFO line\n" * 1000)[:30])
    assert main.main(["doctor", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "out of memory" in told and "rank_0.log:1" in told
    assert "rank_2.log.gz" in told  # what could not be read is named
