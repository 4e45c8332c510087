"""What messages echo of what was found, however long that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.core import data_files
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.notebook import start


def test_a_long_word_is_told_in_part():
    said = choice("feature", "without " * 3000, ["mtp", "expert-parallel"])
    assert len(said) < 400 and "without without" in said and "..." in said


def test_a_parameter_that_is_no_text_is_told_in_part():
    with pytest.raises(ParameterError, match="model: a text is wanted, found") as refused:
        start.start(hw="a3", model=["a"] * 5000)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("name", "why"),
    [("/".join(["none"] * 700), "no such file"), ("none" * 3000, "cannot be read")],
    ids=["missing", "too-long"],
)
def test_a_path_of_thousands_of_characters_is_told_in_part(name, why, tmp_path):
    with pytest.raises(ParameterError, match=why) as refused:
        data_files.read_yaml(Path(tmp_path, name))
    assert len(str(refused.value)) < 600 and "none" in str(refused.value)
