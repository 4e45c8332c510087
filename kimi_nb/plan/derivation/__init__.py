"""Derive a recipe that nobody has published from the nearest documented one, by rules.

`find` returns the recipe of a request, documented or derived; `judge` says of a combination whether
it is documented, derived or impossible, and why. A derived recipe is an ordinary
`schema.Recipe` whose `derivation` says where each part came from. Everything is pure.

>>> from kimi_nb.params import load
>>> judge(load.model("k2.5"), load.hardware("a2"), "single").word
'impossible'
"""

from kimi_nb.plan.combinations import Verdict
from kimi_nb.plan.derivation.feasibility import all_of, cells, find, judge, offer

__all__ = ["Verdict", "all_of", "cells", "find", "judge", "offer"]
