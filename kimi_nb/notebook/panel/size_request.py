"""Read what the panel's search of sizes is asked, and say by which field a mistake is.

>>> from kimi_nb.notebook.choice import Choice
>>> texts = {"input": "16000", "output": "1000", "ttft": "2s", "tpot": "50", "nodes": "4"}
>>> asked = read(texts, Choice("k2.5", "a3", "pd"), 4)
>>> asked.input_len, [*asked.mistakes]
(16000, ['tpot'])
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kimi_nb.core.errors import KimiError, ParameterError, short
from kimi_nb.notebook.choice import Choice
from kimi_nb.params import load
from kimi_nb.sizing import request_load, search

_MOST = 10**8  # tokens


@dataclass(frozen=True)
class SizeRequest:
    """A workload, bounds of its mean latencies in ms (0: none), and nodes.

    ``mistakes`` are those of the fields by their names. ``nodes`` is 0 where none are written and
    there is no plan to take them of.
    """

    input_len: int
    output_len: int
    ttft_ms: float
    tpot_ms: float
    nodes: int
    mistakes: Mapping[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether it can be searched: without a mistake, and with nodes."""
        return not self.mistakes and self.nodes > 0


def read(texts: Mapping[str, str], given: Choice, planned: int) -> SizeRequest:
    """Return what the fields ask of a choice; ``planned`` are the nodes of its plan, 0 without one."""
    wrong: dict[str, str] = {}
    prompt = _whole("input", "tokens of a prompt", texts["input"], _MOST, wrong)
    answer = _whole("output", "tokens of an answer", texts["output"], _MOST, wrong)
    ttft, tpot = (_milliseconds(name, texts[name], wrong) for name in ("ttft", "tpot"))
    nodes = planned
    if texts["nodes"].strip():
        nodes = _whole("nodes", "nodes", texts["nodes"], search.MOST_NODES, wrong)
    _fits(given, prompt + answer, nodes, wrong)
    return SizeRequest(prompt, answer, ttft, tpot, nodes, wrong)


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


def _milliseconds(name: str, text: str, wrong: dict[str, str]) -> float:
    try:
        return (request_load.seconds(name.upper(), text.strip()) or 0.0) * 1e3
    except ParameterError as error:
        wrong[name] = str(error)
        return 0.0


def _fits(given: Choice, tokens: int, nodes: int, wrong: dict[str, str]) -> None:
    """Note lengths that the model's context, and nodes that the site has not."""
    try:
        model = load.model(given.model)
        there = len(load.site(given.site).nodes) if given.site else nodes
    except KimiError:
        return  # told by the field of the model or of the site
    if tokens > model.context_length:
        wrong.setdefault(
            "input",
            f"{tokens} tokens in and out; the context of {model.title} is "
            f"{model.context_length}: write {tokens - model.context_length} less.",
        )
    if nodes > there:
        wrong.setdefault("nodes", f"{nodes} nodes; the site has {there}: write {there} or less.")
