"""What is wrong with refused values is said on one line, with its place and without the values."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator

from kimi_nb.core import shapes


class Pair(BaseModel):
    low: int
    high: int = 9

    @model_validator(mode="after")
    def _ordered(self):
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


WHOLE = "Input should be a valid integer, unable to parse string as an integer"


def told(shape: object, values: object) -> str:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(shape).validate_python(values)
    return shapes.fault(refused.value)


def test_the_place_and_the_first_fault():
    assert told(dict[str, list[int]], {"a": [1, "hunter2"], "b": ["x"]}) == f"a.1: {WHOLE}"
    assert told(Pair, {}) == "low: Field required"
    assert told(int, "hunter2") == WHOLE
    assert told(Pair, {"low": 10}) == "Value error, low is above high"


def test_a_long_place_is_cut_after_100_characters():
    assert told(dict[str, int], {"k" * 100: "x"}) == "k" * 100 + ": " + WHOLE
    assert told(dict[str, int], {"k" * 101: "x"}) == "k" * 100 + "...: " + WHOLE


def test_another_error_becomes_one_line():
    assert shapes.fault(ValueError("not\n  so")) == "not so"
    assert shapes.fault(ValueError("x" * 200)) == "x" * 200
    assert shapes.fault(ValueError("x" * 201)) == "x" * 200 + "..."
