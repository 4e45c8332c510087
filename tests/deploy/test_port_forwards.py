"""Port-forwards of kubectl: addresses, what is started again, and what is told."""

from __future__ import annotations

import ipaddress
import os
import types

import pytest

from kimi_nb.deploy.kubernetes import port_forwards
from kimi_nb.deploy.kubernetes.kubectl import Kubectl
from kimi_nb.deploy.kubernetes.port_forwards import Forwards
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis


class Programs:
    """Programs as `core.processes.Programs` has them; a test says which have ended."""

    made: list[Programs] = []  # noqa: RUF012 (emptied by the fixture)

    def __init__(self, log) -> None:
        self.log, self.started, self.codes, self.closed = log, [], {}, 0
        Programs.made.append(self)

    def start(self, name, argv, folder, env, log):
        assert not self.closed and folder.is_dir()
        self.codes.pop(name, None)
        self.started.append((name, argv, folder, env, log))

    def ended(self):
        assert not self.closed
        return dict(self.codes)

    def close(self):
        self.closed += 1


@pytest.fixture
def clock(monkeypatch):
    """The time of `port_forwards`, in seconds."""
    time = types.SimpleNamespace(now=100.0)
    time.monotonic = lambda: time.now
    monkeypatch.setattr(port_forwards, "time", time)
    return time


@pytest.fixture
def forwards(monkeypatch, tmp_path, clock):
    Programs.made.clear()
    monkeypatch.setattr(port_forwards, "Programs", Programs)
    monkeypatch.setattr(Kubectl, "argv", lambda kubectl, *words: ["kubectl", *words])
    return Forwards(Kubectl("c", "n"), tmp_path / "a" / "forwards", "run-1")


POD = "pod/kimi-decode-0"


def test_a_pod_has_an_address_of_its_own(forwards, tmp_path):
    address = forwards.to(POD, [8000, 8001])
    other = forwards.to("service/kimi", [80])
    assert forwards.to(POD, [9]) == address != other
    (programs,) = Programs.made
    folder = tmp_path / "a" / "forwards"
    assert programs.log == folder / "supervisor.log"
    assert programs.started == [
        (POD, ["kubectl", "port-forward", "--address", address, POD, "8000:8000", "8001:8001"],
         folder, os.environ, folder / "pod-kimi-decode-0.log"),
        ("service/kimi", ["kubectl", "port-forward", "--address", other, "service/kimi", "80:80"],
         folder, os.environ, folder / "service-kimi.log"),
    ]  # fmt: skip


@pytest.mark.parametrize("run", [f"run-{at}" for at in range(8)])
def test_addresses_are_loopback_and_never_twice(run, forwards):
    mine = Forwards(Kubectl("c", "n"), forwards._folder, run)
    found = [ipaddress.ip_address(mine.to(f"pod/p{at}", [1])) for at in range(600)]
    assert len(set(found)) == 600 and all(one.is_loopback for one in found)
    # Those of the machine itself and of its resolver begin with 127.0.
    assert {one.packed[1] for one in found} <= set(range(64, 124))
    assert all(1 <= one.packed[3] <= 250 for one in found)
    assert str(found[0]).endswith(".0.1") and str(found[250]).endswith(".1.1")


def test_the_address_is_that_of_the_run(forwards):
    def block(run):
        return Forwards(Kubectl("c", "n"), forwards._folder, run).to("pod/x", [1])

    # What sha256sum prints for them begins with b4, 3d and 39: 180, 61 and 57.
    assert [block(f"run-{at}") for at in (7, 4, 37)] == [
        *("127.64.0.1", "127.65.0.1", "127.121.0.1"),
    ]
    assert len({block(f"run-{at}") for at in range(60)}) > 30


def ends(forwards, clock, after: float, code: int = 1) -> Programs:
    """The forward of the pod ends so long after its start, and a look sees it."""
    (programs,) = Programs.made
    clock.now += after
    programs.codes[POD] = code
    assert forwards.keep() is None
    return programs


def test_what_has_ended_is_started_again(forwards, clock):
    assert forwards.keep() is None  # nothing was started
    address = forwards.to(POD, [8000])
    (programs,) = Programs.made
    assert forwards.keep() is None and len(programs.started) == 1
    ends(forwards, clock, 3.0)  # a good one that was cut
    assert programs.started[1] == programs.started[0] and len(Programs.made) == 1
    assert programs.started[1][1][3] == address
    forwards.keep()
    assert len(programs.started) == 2


def test_many_looks_at_one_end_are_one_try(forwards, clock):
    """A watch looks twenty times a second: one end must not count as many."""
    forwards.to(POD, [8000])
    programs = ends(forwards, clock, 0.1)
    for _ in range(50):
        clock.now += 0.01
        assert forwards.keep() is None
    assert len(programs.started) == 1
    clock.now += 0.5
    assert forwards.keep() is None and len(programs.started) == 2


def test_one_that_ends_at_once_is_tried_after_a_longer_and_longer_while(forwards, clock):
    forwards.to(POD, [8000])
    for tries in (1, 2, 3, 4):
        programs = ends(forwards, clock, 2.9)
        assert len(programs.started) == tries
        clock.now += tries - 0.1
        assert forwards.keep() is None and len(programs.started) == tries
        clock.now += 0.1
        assert forwards.keep() is None and len(programs.started) == tries + 1


def test_one_that_has_worked_has_all_its_tries_again(forwards, clock):
    forwards.to(POD, [8000])
    for _ in range(3):
        programs = ends(forwards, clock, 1.0)
        clock.now += 4.0
        forwards.keep()
    assert len(programs.started) == 4
    ends(forwards, clock, 60.0)
    assert len(programs.started) == 5  # at once
    ends(forwards, clock, 0.1)
    clock.now += 1.0
    forwards.keep()
    assert len(programs.started) == 6


def test_one_that_never_works_is_told(forwards, clock, tmp_path):
    forwards.to(POD, [8000])
    forwards.to("pod/other", [8000])
    for tries in (1, 2, 3, 4):
        programs = ends(forwards, clock, 0.1, 7)
        clock.now += tries
        assert forwards.keep() is None
    log = tmp_path / "a" / "forwards" / "pod-kimi-decode-0.log"
    log.write_bytes(b"." * 400 + b"unable to listen \xff\n\n")
    programs.codes[POD] = 7
    assert forwards.keep() == Diagnosis(
        "no-forward",
        "kimi-decode-0",
        None,
        f"{POD} cannot be reached from here: kubectl port-forward ends with 7",
        f"pod-kimi-decode-0.log: {('.' * 400 + 'unable to listen ' + chr(0xFFFD))[-300:]}",
        remedies.of("kubernetes/no-forward"),
    )
    assert len(programs.started) == 2 + 4
    clock.now += 60.0
    log.write_text("")
    assert forwards.keep().evidence == "pod-kimi-decode-0.log: nothing was said"
    assert len(programs.started) == 2 + 4


def test_each_pod_has_its_own_tries(forwards, clock):
    pods = [f"pod/p{at}" for at in range(6)]
    for pod in pods:
        forwards.to(pod, [8000])
    (programs,) = Programs.made
    programs.codes = dict.fromkeys(pods, 1)
    assert forwards.keep() is None
    clock.now += 1.0
    assert forwards.keep() is None and len(programs.started) == 12


def test_all_are_ended_together(forwards):
    forwards.close()  # nothing was started
    forwards.to(POD, [8000])
    forwards.close()
    forwards.close()
    assert [one.closed for one in Programs.made] == [1] and forwards.keep() is None
    forwards.to("pod/other", [8000])
    assert len(Programs.made) == 2
