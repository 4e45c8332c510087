"""What a person says of a drill: fields, free words in two languages, numbers, and what is refused."""

from __future__ import annotations

import pytest

from kimi_nb.core import data_files
from kimi_nb.core.errors import ParameterError
from kimi_nb.drill import answer
from kimi_nb.drill.answer import WHOLE, Answer
from kimi_nb.rehearse import faults

NODES = ("a3-0", "a3-1", "a3-10")
ENGINES = {"prefill0-rank1": ("a3-0", 1), "decode0-rank12": ("a3-10", 12)}


def of(text: str) -> Answer:
    return answer.parse(text, NODES, ENGINES)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("node=a3-1 rank=3 cause=port-taken", ("a3-1", 3, ("port-taken",))),
        ("cause: port taken, rank: 3, node: a3-1", ("a3-1", 3, ("port-taken",))),
        ("a3-10 rank 3: address already in use", ("a3-10", 3, ("port-taken",))),
        ("DP12 on a3-1, out of memory at load", ("a3-1", 12, ("out-of-memory-at-load",))),
        ("decode0-rank12 hangs", ("a3-10", 12, ("engine-hangs",))),
        ("rank: 7 the disk is full", (None, 7, ("disk-full",))),
        ("node=2", ("a3-1", None, ())),
        ("cause=3", (None, None, ("port-taken",))),
        ("rank none, a3-0 cannot be reached by ssh", ("a3-0", WHOLE, ("node-unreachable",))),
        ("a3-0", ("a3-0", None, ())),
        ("磁盘满", (None, None, ("disk-full",))),
        ("a3-1 上端口被占用", ("a3-1", None, ("port-taken",))),
    ],
)
def test_what_is_said(text, wanted):
    assert of(text) == Answer(*wanted)


def test_words_that_do_not_tell_two_of_a_family_apart_mean_both():
    assert of("OOM").causes == ("out-of-memory-at-load", "out-of-memory-under-load")


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("node=a3-11 rank=1", "node 'a3-11' is not known; did you mean 'a3-1'"),
        ("node=a3-1 rank=last", "rank 'last': a number is wanted, or none"),
        ("cause=prt-takn", "did you mean 'port-taken'"),
        ("a3-0: the tide", "cause 'the tide' is not known"),
        ("is missing", "may be .*weights-missing.*; say which of them"),
        ("", "says neither node nor rank nor cause"),
        ("?!", "is not known"),
    ],
)
def test_what_cannot_be_understood_is_said(text, wanted):
    with pytest.raises(ParameterError, match=wanted):
        of(text)


@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_is_meant_by_its_name_its_sentence_and_its_words(name):
    words = data_files.facts("drill/causes").get(name, {}).get("words", ())  # a new one needs none
    assert of(f"cause={name}").causes == of(f"cause={name.replace('-', ' ')}").causes == (name,)
    assert of(f"cause={faults.FAULTS[name].says}").causes == (name,)
    for word in words:
        meant = answer._best(word)
        assert name in meant, (word, meant)


def test_what_has_words_is_a_fault_and_each_fault_can_be_named():
    assert set(data_files.facts("drill/causes")) <= {*map(str, faults.FAULTS)}
    assert [row[1] for row in answer.causes().rows] == list(faults.FAULTS)
    assert answer.family("port-taken") != answer.family("new-fault") == "new-fault"
