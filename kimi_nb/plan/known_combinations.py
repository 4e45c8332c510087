"""What there is of each model on each hardware, kept until a file of the project changes.

Finding it out takes half a second. The modules that do are imported only then.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kimi_nb.core import kept_results
from kimi_nb.plan.combinations import Verdict


def everything() -> dict[str, list[dict[str, Any]]]:
    """Return the shipped "recipes" as rows, and the fields of a `Verdict` for each of the "cells"."""
    return kept_results.of("combinations", _found_out)


def _found_out() -> dict[str, list[dict[str, Any]]]:
    # start-up: see above
    from kimi_nb.params import recipes
    from kimi_nb.plan import derivation

    cells = [dataclasses.asdict(one) for one in derivation.cells()]
    return {"recipes": recipes.listing(), "cells": cells}


def verdicts() -> list[Verdict]:
    """Return a verdict for every model, hardware and layout, as `derivation.cells` does."""
    return [Verdict(**cell) for cell in everything()["cells"]]
