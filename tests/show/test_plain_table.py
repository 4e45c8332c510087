"""The text of a table is that of tabulate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tabulate import tabulate

from kimi_nb.show import plain_table

LINE = st.text("ab 中é-1x", max_size=12)
CELL = st.lists(LINE, min_size=1, max_size=3).map("\n".join).filter(str.strip)


@st.composite
def tables(draw):
    columns = draw(st.integers(1, 5))
    row = st.lists(CELL, min_size=columns, max_size=columns)
    return draw(st.lists(LINE.map(str.strip), min_size=columns, max_size=columns)), draw(
        st.lists(row, max_size=6)
    )


@given(tables())
def test_it_is_written_as_by_tabulate(given_table):
    headings, rows = given_table
    peer = tabulate(rows, headers=headings, disable_numparse=True)
    assert plain_table.table(headings, rows) == peer


@pytest.mark.parametrize("cell", ["\u200b", "a\x07b", "e\u0301", "👩‍👩‍👧"])
def test_a_character_of_no_width_or_of_two_breaks_nothing(cell):
    text = plain_table.table(("a", "b"), [(cell, "end")])
    assert text.splitlines()[-1].endswith("end")
