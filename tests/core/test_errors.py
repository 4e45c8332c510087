"""What messages echo of what was found, however long that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.core import data_files, errors
from kimi_nb.core.errors import ParameterError, choice, short
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


def test_the_beginning_of_what_was_found():
    assert short("a" * 200) == "a" * 200 and short("a" * 201) == "a" * 200 + "..."
    assert short("abc", 3) == "abc" and short(12345, 2) == "12..."
    lines = "\n".join("12345678")
    assert short(lines) == lines and short(lines + "\n9") == lines + "..."
    assert short("a\nb\nc", lines=2) == "a\nb..."
    assert short("\n".join("abcdefghijk")) == "a\nb\nc\nd\ne\nf\ng\nh..."
    assert short("password=hunter2", 16) == "password=hunter2"
    # A secret that is cut off in the middle could not be told from a word.
    assert short(f"a {'b' * 190} token=hf_{'x' * 30}") == f"a {'b' * 190} token=[..."


def test_a_name_is_guessed():
    known = ["a2", "a3", "A3", "h200"]
    assert choice("hardware", "h20", ["a3", "h200"]) == (
        "hardware 'h20' is not known; did you mean 'h200'? Allowed: a3, h200."
    )
    assert choice("hardware", "x", ["a3", "a3"], "See list.") == (
        "hardware 'x' is not known. Allowed: a3. See list."
    )
    assert choice("hardware", "x", []) == "hardware 'x' is not known. Allowed: none."
    assert "did you mean 'A3'" in choice("hardware", "A33", known)
    assert "did you mean 'h200'" in choice("hardware", "NVIDIA/DGX-cluster-of/H200", known)
    spelt = choice("model", "Kimi K2 5", ["k2.5"], spellings={"kimi-k2.5": "k2.5"})
    assert "did you mean 'k2.5'?" in spelt


def test_of_many_names_the_first_40_are_told():
    names = [f"name{at}" for at in range(41)]
    assert choice("x", "?", names[:40]).endswith(f"Allowed: {', '.join(names[:40])}.")
    assert choice("x", "?", names).endswith(f"Allowed: {', '.join(names[:40])} and 1 more.")


def test_a_notebook_shows_an_error_in_red_without_a_secret():
    error = errors.PlanError("password=hunter2 is wrong")
    assert error._render_traceback_() == ["\x1b[31mPlanError\x1b[0m: password=[redacted] is wrong"]
