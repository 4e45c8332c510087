"""Known faults by themselves: ranges, words, and conditions on faults that are made here.

That each fault of the data is told for the versions that have it: test_known_faults.py.
"""

from __future__ import annotations

import pytest

from kimi_nb.catalog import known_faults
from kimi_nb.catalog.arguments import Unread
from kimi_nb.catalog.engine_catalog import Engine
from kimi_nb.catalog.known_faults import KnownFault, Situation


def fault(identity="f", **more) -> KnownFault:
    given = {"engine": "vllm", "kind": "no-start", "symptom": "s", "source": "u", "evidence": "e"}
    return KnownFault(identity, **given | more)


# What is said of one --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"first": "0.1"}, "error"),
        ({"first": "0.1", "state": "closed"}, "error"),
        ({"first": "0.1", "needs": "a slow disk"}, "note"),
        ({"fixed": "0.2"}, "warning"),
        ({"fixed": "0.2", "state": "closed"}, "warning"),
        ({"state": "open"}, "warning"),
        ({"state": "closed"}, "note"),
        ({}, "warning"),
        ({"kind": "slow"}, "warning"),
        ({"kind": "slow", "first": "0.1"}, "warning"),
        ({"kind": "slow", "first": "0.1", "needs": "x"}, "note"),
        ({"kind": "harmless"}, "note"),
    ],
)
def test_how_a_fault_is_told(more, told):
    assert fault(**more).severity == told


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"first": "0.1"}, "from 0.1, no fix known"),
        ({"first": "0.1", "first_is": "seen"}, "from 0.1 (first report), no fix known"),
        ({"first": "0.1", "first_is": "unknown"}, "from 0.1, no fix known"),
        ({"first": "0.1", "first_is": "by its tag"}, "from 0.1 (by its tag), no fix known"),
        ({"first_is": "with the second runner"}, "with the second runner, no fix known"),
        ({"first_is": "seen"}, "first version not known, no fix known"),
        ({"first_is": "unknown", "fixed": "0.2"}, "first version not known, fixed in 0.2"),
        ({"fixed": "0.2"}, "first version not known, fixed in 0.2"),
        ({"first": "0.1", "fixed": "0.2", "fixed_is": "merged"}, "from 0.1, fixed in 0.2 (merged)"),
        ({"first": "0.1", "fixed_is": "merged"}, "from 0.1, no fix known"),
        ({"first": "0.1", "fixed_elsewhere": "CANN 9"}, "from 0.1, fixed in CANN 9"),
        (
            {"first": "0.1", "fixed": "0.2", "fixed_elsewhere": "CANN 9"},
            "from 0.1, fixed in 0.2",
        ),
    ],
)
def test_a_range_in_words(more, said):
    assert fault(**more).range == f"vllm {said}"


def test_a_fault_as_plain_values():
    one = fault("x-1", first="0.1", needs="n", way_out="w", note="o", engine="vllm-ascend")
    assert one.as_dict() == {
        "id": "x-1",
        "severity": "note",
        "kind": "no-start",
        "range": "vllm-ascend from 0.1, no fix known",
        "symptom": "s",
        "needs": "n",
        "way_out": "w",
        "source": "u",
        "evidence": "e",
        "note": "o",
    }


def test_a_row_of_the_data():
    made = known_faults._fault(
        "x-1",
        {
            **{"engine": "vllm", "kind": "slow", "symptom": "s", "source": "u", "evidence": "e"},
            **{"fixed": None, "first": "0.1", "models": ["k2.5", 3], "when": {"tp": [1, 2]}},
        },
    )
    assert made == fault("x-1", kind="slow", first="0.1", models=("k2.5", "3"), when={"tp": [1, 2]})


# Which engines have one -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "fixed", "has", "lacks"),
    [
        (
            *("0.16.0", "0.18.0"),
            ["0.16.0", "v0.17.2", "0.18.0rc1", "0.16.0-cu130", "0.17.0+cu129"],
            ["0.15.9", "0.16.0rc1", "0.18.0", "v0.18.0-cu130", "0.19", "nightly", ""],
        ),
        ("0.16.0", None, ["0.16.0", "9.0"], ["0.15.9", "nightly"]),
        (None, "0.18.0", ["0.0.1", "0.17.9"], ["0.18.0", "nightly"]),
        (None, None, ["0.0.1", "9.0"], ["nightly"]),
    ],
)
def test_a_range_has_its_first_version_and_not_the_one_that_is_fixed(first, fixed, has, lacks):
    one = fault(first=first, fixed=fixed)
    assert [version for version in [*has, *lacks] if one.affects(version)] == has


def test_a_name_of_an_image_is_a_version_of_its_package():
    """kimi-k3 is 0.23.1rc1.dev1042 of vLLM and 0.23.0 of vllm-ascend."""
    ours = {"engine": "vllm-ascend"}
    assert fault(first="0.23.1rc1.dev1").affects("kimi-k3")
    assert not fault(first="0.23.1rc1.dev1", **ours).affects("kimi-k3")
    assert fault(first="kimi-k3", **ours).affects("0.23.0")
    assert not fault(first="kimi-k3").affects("0.23.0")
    assert not fault(fixed="kimi-k3", **ours).affects("0.23.0")
    assert fault(fixed="kimi-k3").affects("0.23.0")
    assert known_faults.is_image("vllm-ascend", "kimi-k3-a3")
    assert not known_faults.is_image("vllm", "kimi-k3-a3")


@pytest.mark.parametrize(
    ("models", "hardware", "concerned"),
    [
        ((), (), True),
        (("k2.5",), (), True),
        (("k2.6", "k3"), (), False),
        ((), ("a3", "a2"), True),
        ((), ("h200",), False),
        (("k2.6", "k2.5"), ("a3",), True),
        (("k2.6",), ("a3",), False),
        (("k2.5",), ("h200",), False),
    ],
)
def test_a_fault_of_some_models_and_hardware(models, hardware, concerned):
    one = fault(models=models, hardware=hardware)
    assert one.concerns("k2.5", iter(["mine", "a3"])) is concerned
    assert one.concerns(None, []) is not bool(models or hardware)


OURS = Engine("vllm-ascend", "0.22.1rc1", "0.22.1", "0.22.0")
THEIRS = Engine("vllm", "0.22.1", "0.22.1", "0.22.0")
MADE = (
    fault("old", first="0.22.1", fixed="0.23.0"),
    fault("new", first="0.26.0", fixed="0.26.1"),
    fault("k3", first="0.23.0", fixed="0.23.1"),
    fault("ours-old", engine="vllm-ascend", first="0.22.1rc1", fixed="0.22.1"),
    fault("ours-new", engine="vllm-ascend", first="0.26.0rc1"),
)


@pytest.mark.parametrize(
    ("engine", "stated", "ids"),
    [
        (OURS, "", "old ours-old"),
        (THEIRS, "", "old"),
        # Another version was named: of vllm-ascend, its vLLM is that of the same number.
        (OURS, "0.26.0rc1", "new ours-new"),
        (OURS, "v0.26.0rc1", "new ours-new"),
        (OURS, "0.26.1rc1", "ours-new"),
        (OURS, "nightly", "old"),
        (OURS, "kimi-k3", "k3"),  # 0.23.0
        (THEIRS, "0.26.0", "new"),
        (THEIRS, "0.25.0", ""),
    ],
)
def test_faults_of_a_version_and_of_the_one_beneath(engine, stated, ids, monkeypatch):
    asked = [engine, *([stated] if stated else [])]
    found = known_faults.affecting(*asked, faults=iter(MADE))
    assert [one.id for one in found] == ids.split()
    assert known_faults.affecting(*asked, faults=[]) == []
    monkeypatch.setattr(known_faults, "every", lambda: MADE)
    assert known_faults.affecting(*asked) == found


def test_faults_that_a_deployment_meets(monkeypatch):
    made = (
        fault("all"),
        fault("tp8", when={"tp": 8}, models=("k2.5",), hardware=("a3",)),
        fault("nobody", when={"tp": 9}),
        fault("of another", models=("k3",)),
        fault("elsewhere", hardware=("h200",)),
        fault("later", first="0.26.0"),
        fault("earlier", engine="vllm-ascend", fixed="0.26.0rc1"),
    )
    monkeypatch.setattr(known_faults, "every", lambda: made)

    def met(stated: str):
        engines = (Situation({"tp": tp}) for tp in (4, 8, 8))
        given = (OURS, engines, "k2.5", iter(["a3"]), *([stated] if stated else []))
        return [(one.id, numbers) for one, numbers in known_faults.of(*given)]

    assert met("") == [("all", [0, 1, 2]), ("tp8", [1, 2]), ("earlier", [0, 1, 2])]
    assert met("0.26.0rc1") == [("all", [0, 1, 2]), ("tp8", [1, 2]), ("later", [0, 1, 2])]


def test_versions_that_only_faults_name(monkeypatch):
    named = ["0.100.0", "0.20.0", "0.19.0rc1", "0.16.0.post1", "0.17.0", "0.16.0", "v0.16.0"]
    named += ["0.15.9", "0.18.0.dev3", "0.21.0rc0", "nightly", "0.22.0b0"]
    made = [fault(first=one) for one in named[::2]] + [fault(fixed=one) for one in named[1::2]]
    other = fault(engine="vllm-ascend", first="0.30.0", fixed="0.31.0")
    monkeypatch.setattr(known_faults, "every", lambda: (*made, other))
    monkeypatch.setattr(
        known_faults, "versions", {"vllm": ("0.16.0", "0.17.0"), "vllm-ascend": ("0.1",)}.get
    )
    found = known_faults.unlisted.__wrapped__
    assert found("vllm") == ("0.16.0.post1", "0.19.0rc1", "0.20.0", "0.22.0b0", "0.100.0")
    assert found("vllm-ascend") == ("0.30.0", "0.31.0")


# Conditions ------------------------------------------------------------------------------------

FLAGS = {
    "tp": 8,
    "ep": True,
    "no-x": False,
    "config": {"role": "kv_producer", "extra": {"n": 3}, "method": "eagle3"},
    "sizes": [1, 4],
    "pair": ("1", "4"),
    "nothing": [],
    "hidden": Unread("$X", "a variable"),
    "huge": 10**400,
    "version": "0.17.9",
}
HERE = Situation({"tp": 2, "layout": "pd", "count": 6}, FLAGS, {"X": "Off", "TP": "16"})


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({}, True),
        # Where a value is looked for.
        ({"--tp": 8}, True),
        ({"tp": 2}, True),
        ({"TP": 16}, True),
        ({"--TP": 16}, False),
        ({"--config.role": "kv_producer"}, True),
        ({"--config.extra.n": 3}, True),
        ({"--config.extra.m": 3}, False),
        ({"--tp.x": 8}, False),
        ({"--tp.get": "given"}, False),
        # One value: as text, in either case.
        ({"--tp": "8"}, True),
        ({"--ep": "true"}, True),
        ({"layout": "PD"}, True),
        ({"layout": "p"}, False),
        # There, absent, and on.
        ({"--tp": "given"}, True),
        ({"--no-x": "given"}, True),
        ({"--nothing": "given"}, True),
        ({"--none": "given"}, False),
        ({"--none": "absent"}, True),
        ({"NONE": "absent"}, True),
        ({"--config.none": "absent"}, True),
        ({"--no-x": "absent"}, False),
        ({"--ep": "enabled"}, True),
        ({"--no-x": "enabled"}, False),
        ({"X": "enabled"}, False),
        ({"--sizes": "enabled"}, True),
        ({"--nothing": "enabled"}, True),
        ({"--none": "enabled"}, False),
        # One of several, here or there.
        ({"layout": ["single", "pd"]}, True),
        ({"layout": ("single", "dp")}, False),
        ({"--sizes": 4}, True),
        ({"--sizes": 2}, False),
        ({"--pair": 4}, True),
        ({"--sizes": [2, 4]}, True),
        ({"--nothing": 1}, False),
        ({"--tp": [1, {"min": "count"}]}, True),
        ({"--sizes": {"min": "tp"}}, True),
        ({"--sizes": {"min": 5}}, False),
        # What nobody knows is there, and no more.
        ({"--hidden": "given"}, True),
        ({"--hidden": "enabled"}, False),
        ({"--hidden": "absent"}, False),
        ({"--hidden": "$X"}, False),
        ({"--hidden": ["given"]}, False),
        ({"--hidden": {"like": ".*"}}, False),
        # Comparisons: all of them.
        ({"count": {"min": 6}}, True),
        ({"count": {"min": 7}}, False),
        ({"TP": {"min": 16}}, True),
        ({"layout": {"min": 0}}, False),
        ({"--ep": {"min": 0}}, False),
        ({"--config": {"min": 0}}, False),
        ({"--huge": {"min": 0}}, False),
        ({"count": {"min": "tp"}}, True),
        ({"tp": {"min": "count"}}, False),
        ({"count": {"min": "layout"}}, False),
        ({"count": {"min": "unknown"}}, False),
        ({"count": {"min": 5.5, "not_multiple_of": 4}}, True),
        ({"count": {"min": 5, "not_multiple_of": 3}}, False),
        ({"count": {"min": 7, "not_multiple_of": 4}}, False),
        ({"--tp": {"not_multiple_of": "tp"}}, False),
        ({"--tp": {"not_multiple_of": 3}}, True),
        ({"--config.method": {"like": "eagle[0-9]"}}, True),
        ({"--config.method": {"like": "eagle"}}, False),
        ({"--config.method": {"like": "agle3"}}, False),
        ({"--tp": {"like": "[48]"}}, True),
        ({"--version": {"below": "0.18.0"}}, True),
        ({"--version": {"below": "0.17.9"}}, False),
        ({"--version": {"below": "later"}}, False),
        ({"layout": {"below": "0.18.0"}}, False),
        ({"--tp": {"below": 9}}, True),
        # All of the names; of any, one.
        ({"layout": "pd", "tp": 2, "--tp": 8}, True),
        ({"layout": "pd", "tp": 3, "--tp": 8}, False),
        ({"any": [{"tp": 3}, {"tp": 2, "layout": "pd"}]}, True),
        ({"any": [{"tp": 3}, {"tp": 2, "layout": "dp"}]}, False),
        ({"any": [{"any": [{"tp": {"min": "tp"}}]}], "layout": "pd"}, True),
        ({"any": [{"tp": 2}], "layout": "dp"}, False),
        ({"any": []}, False),
    ],
)
def test_a_condition(when, holds):
    assert fault(when=when).met(HERE) is holds


def test_what_is_not_seen_may_be_there():
    assert not fault(when={"--none": "absent"}).met(Situation({}, whole=False))
    assert fault(when={"--none": "absent"}).met(Situation({}))


def test_a_comparison_that_nobody_knows_is_no_condition():
    with pytest.raises(AssertionError, match="^max$"):
        fault(when={"tp": {"max": 3}}).met(HERE)
