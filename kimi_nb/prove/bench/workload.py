"""What is asked of a service: how many requests of which size, how many at once, how often.

    loads = load.sweep("1,4,8", input_len=1024, output_len=1024)     # a Load each
    load.of_command(client.argv, engine)                             # that of a document

Pure: nothing is sent here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kimi_nb.catalog import arguments
from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.show import values as show

DATASETS = {
    "random": "random prompts of a given number of tokens",
    "hf": "a data set of the hub, with its pictures (vllm bench only)",
}
PER_REQUEST = 4  # prompts for each request in flight, where no number is given
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
    """One cell of a sweep. ``concurrency`` is the most requests in flight (0: no limit),
    ``input_len`` and ``output_len`` are tokens of each, ``rate`` requests a second (inf: as fast
    as the limit lets them), ``path`` the name of a data set on the hub, ``warmup`` requests that
    are sent before and not counted."""

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
        """The load of a repetition (from 1). Prompts differ between repetitions and cells: with
        the same ones a prefix cache would answer for what was asked before."""
        return replace(self, seed=(self.seed + 100_003 * repetition + self.concurrency) % 2**31)

    @property
    def title(self) -> str:
        """concurrency 8, 1024/1024 tokens, 80 requests"""
        many = f"concurrency {self.concurrency}" if self.concurrency else "any number at once"
        size = (
            f"{self.input_len}/{self.output_len} tokens" if self.dataset == "random" else self.path
        )
        rate = "" if math.isinf(self.rate) else f" at {self.rate:g}/s"
        return f"{many}, {size}, {self.prompts} requests{rate}"

    def as_dict(self) -> dict[str, Any]:
        """As plain values; a rate without a limit is the text inf, as in vLLM's results."""
        return asdict(self) | {"rate": "inf" if math.isinf(self.rate) else self.rate}


@dataclass(frozen=True, repr=False)
class Loads(show.Shown):
    """The cells of a sweep, in the order in which they are measured."""

    cells: tuple[Load, ...]

    def __len__(self) -> int:
        return len(self.cells)

    def table(self) -> show.Table:
        """A row for each cell."""
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
    """A Load for each concurrency: a text with commas, a number, or a list. ``prompts`` 0 takes
    four for each request in flight. Raises ParameterError."""
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
    """The load of a ``vllm bench serve`` line as a version's parser reads it; with a list of
    concurrencies (the sweep of a document) ten prompts for each request in flight, as there."""
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
