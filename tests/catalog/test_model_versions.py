"""Which versions know a model and which upstream tests, read from rows of this file."""

from __future__ import annotations

import types

import pytest

from kimi_nb.catalog import model_versions

A2 = {"engine": "vllm", "model": "m", "hardware": ["a2", "a2b"], "versions": ["0.20.0"]}
A3 = {"engine": "vllm", "model": "m", "hardware": ["a3"], "versions": ["0.21.0"]}
AGAIN = {"engine": "vllm", "model": "m", "hardware": ["a3", "a4"], "versions": ["0.22.0"]}
OTHER = {"engine": "vllm", "model": "n", "hardware": ["a3"], "versions": ["0.23.0"]}
ABOVE = {"engine": "vllm-ascend", "model": "m", "hardware": ["a5"], "versions": ["0.24.0"]}
ROWS = {
    "served": {
        "vllm": {
            "m": {"first": "0.15.0", "floor": "0.19.1"},
            "n": {"first": "0.15.0"},
            "number": {"first": 0.9, "floor": 1.1},
            "named": {"first": "main", "floor": "later"},
        },
        "vllm-ascend": {"m": {"first": "0.17.0rc1"}},
    },
    "tested": [A2, A3, AGAIN, OTHER, ABOVE],
}


@pytest.fixture(autouse=True)
def rows(monkeypatch):
    facts = {"catalog/model_versions": ROWS}.__getitem__
    monkeypatch.setattr(model_versions, "data_files", types.SimpleNamespace(facts=facts))


def test_the_first_version_of_a_model():
    assert model_versions.served("vllm", "m") == {"first": "0.15.0", "floor": "0.19.1"}
    assert model_versions.served("vllm-ascend", "m") == {"first": "0.17.0rc1"}
    assert model_versions.served("vllm-ascend", "n") is None


def test_the_tests_of_a_model_on_a_hardware():
    assert model_versions.tested("vllm", "m", ["a2b"]) == A2
    assert model_versions.tested("vllm", "m", iter(["x", "a3"])) == A3  # the first of two
    assert model_versions.tested("vllm", "m", ["a4"]) == AGAIN
    assert model_versions.tested("vllm", "n", ("a3",)) == OTHER
    assert model_versions.tested("vllm-ascend", "m", ["a5"]) == ABOVE
    for asked in (("vllm", "m", ["a5"]), ("vllm", "n", ["a2"]), ("vllm-ascend", "m", ["a3"])):
        assert model_versions.tested(*asked) is None
    assert model_versions.tested("vllm", "m", ()) is None
    assert model_versions.tested("vllm", "m", ["a2"]) is not A2  # nobody changes the data


@pytest.mark.parametrize(
    ("package", "model", "version", "said"),
    [
        ("vllm", "m", "0.14.9", "no: from 0.15.0"),
        ("vllm", "m", "0.15.0rc1", "no: from 0.15.0"),
        ("vllm", "m", "0.15.0", "below 0.19.1, the least that is asked for"),
        ("vllm", "m", "0.19.0", "below 0.19.1, the least that is asked for"),
        ("vllm", "m", "0.19.1", "yes"),
        ("vllm", "m", "v0.19.1-cu129", "yes"),
        ("vllm", "n", "0.14.9", "no: from 0.15.0"),
        ("vllm", "n", "0.15.0", "yes"),
        ("vllm", "number", "0.8", "no: from 0.9"),
        ("vllm", "number", "1.0", "below 1.1, the least that is asked for"),
        ("vllm", "named", "0.1", "yes"),
        ("vllm-ascend", "m", "0.17.0rc1", "yes"),
        ("vllm-ascend", "m", "0.16.0", "no: from 0.17.0rc1"),
        ("vllm", "m", "nightly", "not known"),
        ("vllm", "nobody", "0.19.1", "not known"),
    ],
)
def test_whether_a_version_serves_a_model(package, model, version, said):
    assert model_versions.serves(package, model, version) == said
