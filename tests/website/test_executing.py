"""What is executed for the pages."""

from __future__ import annotations

import json
import random

from kimi_nb.drill import answer, exercise
from kimi_nb.notebook.choice import Choice
from website import executing


def test_the_answer_of_the_drill_is_the_right_one():
    """A new fault draws others for each seed; the page would show an answer that is wrong."""
    book = json.loads((executing.ROOT / f"notebooks/{executing.DRILL}.ipynb").read_text("utf-8"))
    given: dict = {}
    (cell,) = (one for one in book["cells"] if "parameters" in one["metadata"].get("tags", ()))
    exec("".join(cell["source"]), given)  # the notebook's own parameters
    given |= executing.DRILL_PARAMETERS
    plan = Choice(given["model"], given["hw"], given["layout"], features=given["features"]).plan()
    drawn = next(exercise._draws(plan, "", random.Random(int(given["seed"]))))
    said = answer.parse(given["answer"], plan.nodes)
    assert said.causes == (drawn.partition("@")[0],)
