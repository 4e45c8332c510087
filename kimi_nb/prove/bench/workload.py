"""The load on a service: how many requests, of which size, how many at once, at which rate.

>>> [load.title for load in sweep("1,8", input_len=64, output_len=16).cells]
['concurrency 1, 64/16 tokens, 4 requests', 'concurrency 8, 64/16 tokens, 32 requests']

`of_command` returns the load of a document's command. Pure: nothing is sent here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kimi_nb import catalog, show
from kimi_nb.catalog import arguments
from kimi_nb.core.errors import ParameterError, choice

DATASETS = {
    "random": "random prompts of a given number of tokens",
    "hf": "a data set of the hub, with its pictures (vllm bench only)",
}
PER_REQUEST = 4  # prompts for each request in flight, unless a number is given
_MOST = {
    "concurrency": 65536,
    "input_len": 10**7,
    "output_len": 10**7,
    "prompts": 10**7,
    "warmup": 10**5,
    "seed": 2**31 - 1,
}


@dataclass(frozen=True)
class Load:
    """One load of a sweep.

    Attributes:
        concurrency: The most requests in flight; 0 for no limit.
        input_len: Tokens of each prompt.
        output_len: Tokens of each answer.
        prompts: The number of requests.
        rate: Requests a second; inf for as fast as the concurrency allows.
        dataset: A key of `DATASETS`.
        path: The name of a dataset on the Hugging Face hub.
        warmup: Requests that are sent first and not counted.
    """

    concurrency: int
    input_len: int = 1024
    output_len: int = 1024
    prompts: int = 10
    rate: float = math.inf
    dataset: str = "random"
    path: str = ""
    seed: int = 0
    warmup: int = 1

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            least = 0 if name in ("concurrency", "seed", "warmup") else 1
            if type(value) is not int or not least <= value <= most:
                raise ParameterError(
                    f"{name}: a whole number from {least} to {most} is wanted, found {value!r}."
                )
        if (
            isinstance(self.rate, bool)
            or not isinstance(self.rate, int | float)
            or not self.rate > 0
        ):
            raise ParameterError(f"rate: requests a second above 0, or inf, found {self.rate!r}.")
        if self.dataset not in DATASETS:
            raise ParameterError(choice("dataset", self.dataset, DATASETS))
        if self.dataset == "hf" and not self.path:
            raise ParameterError(
                "dataset hf: name the data set as path, such as lmarena-ai/VisionArena-Chat."
            )

    def seeded(self, repetition: int) -> Load:
        """Return the load of a repetition, counted from 1, with its own seed.

        Prompts differ between repetitions and loads: a prefix cache would answer for repeated ones.
        """
        return replace(self, seed=(self.seed + 100_003 * repetition + self.concurrency) % 2**31)

    @property
    def title(self) -> str:
        """The load in words, such as "concurrency 8, 1024/1024 tokens, 80 requests"."""
        many = f"concurrency {self.concurrency}" if self.concurrency else "any number at once"
        size = (
            f"{self.input_len}/{self.output_len} tokens" if self.dataset == "random" else self.path
        )
        rate = "" if math.isinf(self.rate) else f" at {self.rate:g}/s"
        return f"{many}, {size}, {self.prompts} requests{rate}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; an unlimited rate is the text "inf", as in vLLM's results."""
        return asdict(self) | {"rate": "inf" if math.isinf(self.rate) else self.rate}


@dataclass(frozen=True, repr=False)
class Loads(show.Shown):
    """The loads of a sweep, in the order in which they are measured.

    Attributes:
        cells: The loads.
        repetitions: How many times each is measured.
        tool: auto, vllm or kimi_nb; see `load_programs.NAMES`.
    """

    cells: tuple[Load, ...]
    repetitions: int = 3
    tool: str = "auto"

    def __len__(self) -> int:
        return len(self.cells)

    def table(self) -> show.Table:
        """Return a table with a row for each load."""
        return show.Table(
            "Load",
            ("concurrency", "tokens in", "tokens out", "requests", "rate", "data set"),
            tuple(
                (
                    one.concurrency or "no limit",
                    one.input_len,
                    one.output_len,
                    one.prompts,
                    "inf" if math.isinf(one.rate) else one.rate,
                    one.path or one.dataset,
                )
                for one in self.cells
            ),
        )


def sweep(
    concurrency: str | int | Iterable[int],
    *,
    input_len: int = 1024,
    output_len: int = 1024,
    prompts: int = 0,
    rate: float = math.inf,
    dataset: str = "random",
    path: str = "",
    seed: int = 0,
) -> Loads:
    """Return a load for each concurrency.

    ``concurrency`` is a text such as "1,4,8", a number, or several numbers. Without ``prompts``,
    there are four for each request in flight.

    Raises:
        ParameterError: If a value is not valid.
    """
    cells = []
    for number in _numbers(concurrency):
        if not number and not prompts:
            raise ParameterError("concurrency 0 sets no limit: say how many prompts.")
        cells.append(
            Load(
                number,
                input_len,
                output_len,
                prompts or PER_REQUEST * number,
                rate,
                dataset,
                path,
                seed,
                max(1, number),
            )
        )
    return Loads(tuple(cells))


def _numbers(given: str | int | Iterable[int]) -> list[int]:
    words: Sequence[Any]
    if isinstance(given, str):
        words = [word.strip() for word in given.split(",") if word.strip()]
    elif isinstance(given, int):
        words = [given]
    else:
        words = list(given)
    try:
        found = [int(word) for word in words]
    except (TypeError, ValueError):
        found = []
    if not found or len(set(found)) < len(found) or any(isinstance(one, bool) for one in words):
        raise ParameterError(
            f"concurrency: different whole numbers with commas are wanted, such "
            f"as 1,4,8; found {given!r}."
        )
    return found


def of_command(
    argv: Sequence[str], engine: catalog.Engine, concurrency: Iterable[int] = ()
) -> Loads:
    """Return the load of a ``vllm bench serve`` command, as this engine version parses it.

    With ``concurrency``, the sweep of a document, there is a load for each, with ten prompts for
    each request in flight, as in the document.
    """
    flags = arguments.parse(engine, list(argv)[3:], "bench_serve", 0).flags
    spec = {
        name: catalog.flag(engine, name, "bench_serve") or {}
        for name in ("random-input-len", "random-output-len", "num-prompts")
    }

    def number(name: str) -> int:
        value = flags.get(name, spec[name].get("default"))
        return value if isinstance(value, int) else 1024

    dataset = str(flags.get("dataset-name", "random"))
    rate = flags.get("request-rate", math.inf)
    one = Load(
        int(flags.get("max-concurrency", 0)),
        number("random-input-len"),
        number("random-output-len"),
        number("num-prompts"),
        float(rate) if isinstance(rate, int | float) else math.inf,
        dataset,
        str(flags.get("dataset-path", "")),
        int(flags.get("seed", 0)),
    )
    found = tuple(concurrency)
    return Loads(
        tuple(replace(one, concurrency=many, prompts=10 * many) for many in found)
        if found
        else (one,)
    )
