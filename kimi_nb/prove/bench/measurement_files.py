"""Read the files of measurements; what is none is named before anything is computed from it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from kimi_nb.core import bounded_files, shapes
from kimi_nb.core.errors import BenchError

_LARGEST = 512 << 20  # bytes: it has every token's time of every request
_MOST = 10**15  # beyond it the medians, which are floats, are not those of whole numbers
_Count = Annotated[int, Field(ge=0, le=_MOST)]


def _bounded(figure: float) -> float:
    """Return a figure; NaN stands for one that was not measured. Raises ValueError."""
    if figure < 0 or figure > _MOST:
        raise ValueError(f"from 0 to {_MOST:.0e}, found {figure:.3g}")
    return figure


_Figure = Annotated[float, AfterValidator(_bounded)]
_Whatever = str | float | bool | dict[str, Any] | None  # an identity has no lists

FIGURES = (
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    *(
        f"{kind}_{name}_ms"
        for name in ("ttft", "tpot", "itl", "e2el")
        for kind in ("mean", "median", "std", "p50", "p90", "p99")
    ),
)


class _Identity(BaseModel):
    """What tables name a measurement by; a later version may know more."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, _Whatever]
    mark: str
    model: str
    weights: str
    hardware: str
    layout: str
    tool: str
    tool_version: str
    devices: Annotated[_Count, Field(ge=1)]
    concurrency: _Count
    input_len: _Count
    output_len: _Count
    prompts: _Count
    rate: Annotated[float, Field(ge=0)] | Literal["inf"]
    repetition: _Count

    @model_validator(mode="after")
    def _written(self) -> _Identity:
        """Refuse half of a surrogate pair, which no table can hold."""
        for name, value in self:
            if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
                raise ValueError(f"{name}: {value[:40]!r} is no text in UTF-8")
        return self


class _Own(BaseModel):
    model_config = ConfigDict(strict=True)
    identity: _Identity
    time: str
    errors: dict[str, _Count]
    metrics: dict[str, Any]
    definitions: dict[str, str] = {}


class _Measurement(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    kimi_nb: _Own
    completed: _Count
    failed: _Count
    duration: float | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    output_lens: list[_Count] | None = None
    errors: list[str] | None = None

    @model_validator(mode="after")
    def _requests(self) -> _Measurement:
        """Hold the times of the requests together. Raises ValueError."""
        lists = (self.ttfts, self.itls, self.output_lens, self.errors)
        if self.ttfts is not None and self.output_lens is not None:
            sizes = {None if one is None else len(one) for one in lists}
            if len(sizes) > 1:
                raise ValueError("ttfts, itls, output_lens, errors: not of the same requests")
            if not self.duration:
                raise ValueError("duration: there is none of these requests")
        return self


@functools.cache
def _figures() -> TypeAdapter[dict[str, float]]:
    return TypeAdapter(dict[str, _Figure], config=ConfigDict(strict=True))


def read(files: Iterable[Path]) -> list[Mapping[str, Any]]:
    """Read measurements from files.

    Raises:
        BenchError: If a file does not hold a measurement.
    """
    out: list[Mapping[str, Any]] = []
    for path in files:
        try:
            one = json.loads(bounded_files.read(path, _LARGEST))
            _Measurement.model_validate(one)
            _figures().validate_python({name: one[name] for name in FIGURES if name in one})
        except (OSError, ValueError, RecursionError) as error:
            raise BenchError(
                f"{path} is no measurement of ours, or is damaged ({shapes.fault(error)}); remove "
                "it, and measure it again."
            ) from None
        out.append({**one, "file": path.name})
    return out
