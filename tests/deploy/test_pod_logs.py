"""Copies of the logs of pods: what kubectl is asked, what its lines are, what is written."""

from __future__ import annotations

import time
import types
from pathlib import Path

import pytest

from kimi_nb.core import known_secrets
from kimi_nb.deploy import log_copies
from kimi_nb.deploy.kubernetes import kubectl, pod_logs
from kimi_nb.deploy.kubernetes.kubectl import KubectlError
from kimi_nb.deploy.kubernetes.pod_logs import PodLogs
from kimi_nb.plan import build

PLAN = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
POD, OTHER = "kimi-decode-0", "kimi-prefill-0"
WORDS = [
    "logs", "-l", "a=b", "--prefix", "--timestamps", "--tail=-1", "--max-log-requests=9",
    "--ignore-errors", "--limit-bytes=16777216",
]  # fmt: skip


def line(text="loaded", pod=POD, at="00:00:00", zone="Z", day="2026-01-01") -> str:
    return f"[pod/{pod}/engine] {day}T{at}{zone} {text}\n"


class Pods(kubectl.Kubectl):
    """kubectl that prints what ``says`` holds, or cannot."""

    def __init__(self) -> None:
        super().__init__("a3-cluster", "kimi")
        self.says: str | KubectlError = ""
        self.asked: list[list[str]] = []

    def run(self, *words, stdin="", seconds=60.0, codes=(0,)):
        self.asked.append([*words])
        if isinstance(self.says, KubectlError):
            raise self.says
        return self.says


class Site:
    """Pods that say what a test wants, and the copies of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.pods = root / "run", Pods()
        self.logs = self.process()

    def process(self) -> PodLogs:
        names = pod_logs.name_of(PLAN, "kimi-router", "kimi-weights")
        return PodLogs(PLAN, self.root, self.pods, "a=b", 9, names)

    def read(self, *lines: str) -> list[str]:
        """Read these lines; return what kubectl was asked beyond the usual."""
        self.pods.says = "".join(lines)
        self.logs.read(now=True)
        asked = self.pods.asked[-1]
        assert asked[: len(WORDS)] == WORDS
        return asked[len(WORDS) :]

    def written(self) -> dict[str, str]:
        folder = self.root / "logs"
        return {
            str(path.relative_to(folder)): path.read_bytes().decode()
            for path in folder.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def copy(pod: str) -> str:
    return f"{pod}/engines.log"


# Lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (line(), [(POD, (1767225600.0, 0), "loaded")]),
        (line(zone=".5Z"), [(POD, (1767225600.0, 500000000), "loaded")]),
        (line(zone=".000000007Z"), [(POD, (1767225600.0, 7), "loaded")]),
        (line(zone="+08:00"), [(POD, (1767225600.0 - 8 * 3600, 0), "loaded")]),
        (line(zone=".25-01:30"), [(POD, (1767225600.0 + 5400, 250000000), "loaded")]),
        (line(text=""), [(POD, (1767225600.0, 0), "")]),
        (line(text="a\rb\x0bc"), [(POD, (1767225600.0, 0), "a\rb\x0bc")]),
        (line().replace(" loaded", ""), [(POD, (1767225600.0, 0), "")]),
        (line().replace("/engine]", "/router]"), [(POD, (1767225600.0, 0), "loaded")]),
        (line(pod="other.pod-1"), [("other.pod-1", (1767225600.0, 0), "loaded")]),
    ],
)
def test_a_line_of_a_pod(text, found):
    assert list(pod_logs.lines(text)) == found
    assert list(pod_logs.lines(f"odd\n{text}{text}")) == found * 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Error from server (NotFound)",
        "loaded",
        line(pod="../../etc"),
        line(pod="kimi-decode-0/../x"),
        line(pod=""),
        line(pod="x" * 254),
        line(pod="KIMI"),
        line(day="2026-13-01"),
        line(day="2026-02-30"),
        line(at="25:00:00"),
        line(zone="+99:99"),
        line(zone=""),
        line(zone=".1234567890Z"),
        f" {line()}",
    ],
)
def test_what_is_no_line_of_a_pod_is_left_out(text):
    assert list(pod_logs.lines(text)) == []
    assert len(list(pod_logs.lines(f"{text}\n{line()}"))) == 1


def test_the_names_of_copies():
    names = pod_logs.name_of(PLAN, "kimi-router", "kimi-weights")
    assert [names(pod) for pod in (POD, "kimi-router-6c8f-x", "kimi-weights-k7")] == [
        f"{POD} engines",
        "router",
        "weights",
    ]
    for pod in ("kimi-router", "kimi-routers-x", "kimi-weights", "x", "", "..", f"{POD}-0"):
        assert names(pod) == ""


# Reading --------------------------------------------------------------------------------------


def test_pods_are_asked_again_after_some_time_or_on_demand(site, monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(pod_logs, "time", clock)
    for later, calls in ((0.0, 1), (2.9, 1), (0.1, 2), (2.9, 2)):
        clock.now += later
        site.logs.read()
        assert len(site.pods.asked) == calls
    site.logs.read(now=True)
    assert len(site.pods.asked) == 3
    clock.now += 2.9
    site.logs.read()
    assert len(site.pods.asked) == 3


def test_what_pods_say_is_copied_and_read(site):
    assert site.read(line("one"), line("zu groß", OTHER), line("x", "kimi-router-1"),
                     line("y", "stranger-0")) == []  # fmt: skip
    assert site.written() == {copy(POD): "one\n", copy(OTHER): "zu groß\n", "router.log": "x\n"}
    assert {(log.node, log.file.rpartition("logs/")[2]) for log in site.logs.all()} >= {
        (POD, copy(POD)),
        (OTHER, copy(OTHER)),
    }
    assert site.logs.progress == 3 and site.logs.silent == "" and site.logs.strange == {}


def test_only_what_is_new_is_asked_for_and_copied(site):
    site.read(line("a"), line("b", zone=".5Z"), line("c", OTHER, at="00:00:59"))
    # A second counts whole, so that some lines come again.
    again = [line("b", zone=".5Z"), line("B", zone=".5Z"), line("old", zone=".4Z"), line("d", at="00:01:00")]  # fmt: skip
    assert site.read(*again) == ["--since-time=2026-01-01T00:00:00Z"]
    assert site.written() == {copy(POD): "a\nb\nB\nd\n", copy(OTHER): "c\n"}
    assert site.read(*again, line("c", OTHER, at="00:00:59")) == ["--since-time=2026-01-01T00:00:59Z"]  # fmt: skip
    assert site.written() == {copy(POD): "a\nb\nB\nd\n", copy(OTHER): "c\n"}
    assert site.read(line("d", at="00:01:00"), line("e", at="00:01:00")) != []
    assert site.written()[copy(POD)].endswith("d\ne\n")
    assert site.read(line("d", at="00:01:00")) and site.written()[copy(POD)].endswith("d\ne\n")


def test_a_pod_that_is_silent_for_long_does_not_bring_the_others_again(site):
    site.read(line("a"), line("b", OTHER, at="10:00:00"))
    assert site.read() == ["--since-time=2026-01-01T09:59:00Z"]  # clocks may differ by a minute
    site.read(line("c", at="09:59:30"))
    assert site.read() == ["--since-time=2026-01-01T09:59:30Z"]


def test_the_time_zone_of_this_machine_does_not_matter(site, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        site.read(line("a", at="12:00:00"))
        assert site.read() == ["--since-time=2026-01-01T12:00:00Z"]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_cluster_that_does_not_answer_is_told_until_it_does(site):
    assert site.logs.silent == ""
    site.read(line("a"))
    site.pods.says = KubectlError("no answer in 60 s")
    site.logs.read(now=True)
    assert site.logs.silent == "no answer in 60 s" and site.written() == {copy(POD): "a\n"}
    site.read(line("b", at="00:00:01"))
    assert site.logs.silent == "" and site.written() == {copy(POD): "a\nb\n"}


def test_no_secret_is_copied(site, monkeypatch):
    monkeypatch.setenv("KIMI_API_KEY", "correct-horse-battery")
    site.read(line("key correct-horse-battery"), line("ok"))
    text = site.written()[copy(POD)]
    assert "horse" not in text and text.startswith("key ") and text.endswith("ok\n")
    assert text == known_secrets.text("key correct-horse-battery\nok\n")


def test_copies_are_utf8_whatever_the_language_of_the_shell(site, monkeypatch):
    coded, opens = [], Path.open

    def noted(path, mode="r", *given, **more):
        if "b" not in mode and path.suffix == ".log":
            coded.append((mode, str(more.get("encoding")).lower()))
        return opens(path, mode, *given, **more)

    monkeypatch.setattr(Path, "open", noted)
    site.read(line("a"))
    (site.root / "logs" / POD / "engines.log").write_bytes(b"\xff\n")
    site.logs = site.process()
    site.read(line("b"))
    assert set(coded) == {("a", "utf-8"), ("r", "utf-8")}
    folder = site.root / "logs" / POD
    assert (folder / "engines.1.before").read_bytes() == b"\xff\n"
    assert (folder / "engines.log").read_bytes() == b"b\n"


# Copies of others -----------------------------------------------------------------------------


def test_another_process_reads_the_same_pod_afresh(site):
    site.read(line("one"), line("two"))
    site.logs = site.process()
    site.read(line("one"), line("two"), line("three"))
    assert site.written() == {copy(POD): "one\ntwo\nthree\n"} and site.logs.strange == {}
    site.read(line("four", at="00:00:01"))
    assert site.written() == {copy(POD): "one\ntwo\nthree\nfour\n"}


@pytest.mark.parametrize(
    "first", ["10%\r20%\rdone", "ends with a space ", "ends with an X", "", "\r"]
)
def test_a_pod_is_the_same_again_however_its_first_line_ends(first, site):
    for _ in range(2):
        site.logs = site.process()
        site.read(line(first), line("two"))
    assert site.written() == {copy(POD): f"{first}\ntwo\n"}


def test_the_log_of_another_pod_stands_beside(site):
    for text in ("one", "two"):
        site.logs = site.process()
        site.read(line(text), line("x", OTHER))
    assert site.written() == {
        copy(POD): "two\n",
        f"{POD}/engines.1.before": "one\n",
        copy(OTHER): "x\n",
    }
    assert site.logs.strange == {}


def test_a_pod_that_is_replaced_without_end_is_named(site, monkeypatch):
    monkeypatch.setattr(log_copies, "MOST", 1)
    for text in ("one", "two", "three"):
        site.logs = site.process()
        site.read(line(text))
    # What the pod says now is what a diagnosis needs.
    assert site.written() == {copy(POD): "three\n", f"{POD}/engines.1.before": "one\n"}
    assert site.logs.strange == {POD: "it has begun anew more than 1 times"}


def test_a_start_makes_way(site, monkeypatch):
    monkeypatch.setattr(log_copies, "MOST", 1)
    site.read(line("one"), line("x", "kimi-router-1"), line("y", "kimi-weights-1"))
    site.logs.begin()
    before = {
        f"{POD}/engines.1.before": "one\n",
        "router.1.before": "x\n",
        "weights.1.before": "y\n",
    }
    assert site.written() == before
    # All is read again, also what is no newer: these are other pods.
    assert site.read(line("one"), line("two")) == []
    assert site.written() == before | {copy(POD): "one\ntwo\n"}
    site.logs.begin()  # no copy has room
    assert site.written() == before and site.logs.strange == {}
    (site.root / "logs" / POD / "engines.log").write_text("of another process\n")
    (site.root / "logs" / POD / "engines.1.before").unlink()
    site.read(line("three"))
    assert site.written()[copy(POD)] == "three\n"
    assert site.written()[f"{POD}/engines.1.before"] == "of another process\n"
