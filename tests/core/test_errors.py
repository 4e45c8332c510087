"""What messages echo of what was found, however long that is."""

from __future__ import annotations

import pytest

from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.notebook import start


def test_a_long_word_is_told_in_part():
    said = choice("feature", "without " * 3000, ["mtp", "expert-parallel"])
    assert len(said) < 400 and "without without" in said and "..." in said


def test_a_parameter_that_is_no_text_is_told_in_part():
    with pytest.raises(ParameterError, match="model: a text is wanted, found") as refused:
        start.start(hw="a3", model=["a"] * 5000)
    assert len(str(refused.value)) < 400
