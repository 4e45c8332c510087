"""Read what the panel's search of sizes is asked, and say by which field a mistake is.

>>> from kimi_nb.notebook.choice import Choice
>>> texts = {"input": "16000", "output": "1000", "lengths": ""}
>>> texts |= {"ttft": "2s", "tpot": "50", "nodes": "4"}
>>> asked = read(texts, Choice("k2.5", "a3", "pd"), 4)
>>> asked.input_len, [*asked.mistakes]
(16000, ['tpot'])
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.core.errors import KimiError, ParameterError, short
from kimi_nb.notebook.choice import Choice
from kimi_nb.params import load
from kimi_nb.sizing import request_load, search

_MOST = 10**8  # tokens


@dataclass(frozen=True)
class SizeRequest:
    """A workload, bounds of its mean latencies in ms (0: none), and nodes.

    ``lengths`` are a distribution in place of ``input_len`` and ``output_len``, "" without one.
    ``mistakes`` are those of the fields by their names. ``nodes`` is 0 where none are written and
    there is no plan to take them of.
    """

    input_len: int
    output_len: int
    ttft_ms: float
    tpot_ms: float
    nodes: int
    mistakes: Mapping[str, str] = field(default_factory=dict)
    lengths: str = ""

    @property
    def workload(self) -> dict[str, Any]:
        """The arguments of `size_proposal.propose` that give the workload."""
        if self.lengths:
            return {"lengths": self.lengths}
        return {"input_len": self.input_len, "output_len": self.output_len}

    @property
    def ready(self) -> bool:
        """Whether it can be searched: without a mistake, and with nodes."""
        return not self.mistakes and self.nodes > 0


def read(texts: Mapping[str, str], given: Choice, planned: int) -> SizeRequest:
    """Return what the fields ask of a choice; ``planned`` are the nodes of its plan, 0 without one."""
    wrong: dict[str, str] = {}
    lengths, prompt, answer = texts["lengths"].strip(), 0, 0
    if not lengths:
        prompt = _whole("input", "tokens of a prompt", texts["input"], _MOST, wrong)
        answer = _whole("output", "tokens of an answer", texts["output"], _MOST, wrong)
    longest = _longest(lengths, wrong) if lengths else prompt + answer
    ttft, tpot = (_milliseconds(name, texts[name], wrong) for name in ("ttft", "tpot"))
    nodes = planned
    if texts["nodes"].strip():
        nodes = _whole("nodes", "nodes", texts["nodes"], search.MOST_NODES, wrong)
    _fits(given, "lengths" if lengths else "input", longest, nodes, wrong)
    return SizeRequest(prompt, answer, ttft, tpot, nodes, wrong, lengths)


def _whole(name: str, what: str, text: str, most: int, wrong: dict[str, str]) -> int:
    value = int(text) if re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII) else 0
    if 1 <= value <= most:
        return value
    found = short(text.strip(), 40)
    wrong[name] = (
        f"{what}: a whole number of 1 to {most} is wanted, found {found!r}."
        if found
        else f"{what}: a whole number of 1 to {most} is wanted, found nothing."
    )
    return 0


def _longest(lengths: str, wrong: dict[str, str]) -> int:
    """Return the most tokens that a request of a distribution has; 0 for none."""
    try:
        return request_load.lengths(lengths, "lengths of requests").longest
    except ParameterError as error:
        wrong["lengths"] = str(error)
        return 0


def _milliseconds(name: str, text: str, wrong: dict[str, str]) -> float:
    try:
        return (request_load.seconds(name.upper(), text.strip()) or 0.0) * 1e3
    except ParameterError as error:
        wrong[name] = str(error)
        return 0.0


def _fits(given: Choice, name: str, tokens: int, nodes: int, wrong: dict[str, str]) -> None:
    """Note lengths that the model's context, and nodes that the site has not.

    ``name`` is the field of the lengths.
    """
    try:
        model = load.model(given.model)
        there = len(load.site(given.site).nodes) if given.site else nodes
    except KimiError:
        return  # told by the field of the model or of the site
    if tokens > model.context_length:
        wrong.setdefault(
            name,
            f"{tokens} tokens in and out; the context of {model.title} is "
            f"{model.context_length}: write {tokens - model.context_length} less.",
        )
    if nodes > there:
        wrong.setdefault("nodes", f"{nodes} nodes; the site has {there}: write {there} or less.")
