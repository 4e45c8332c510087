"""A pytest plugin that forgets what cached functions of kimi_nb have returned.

A mutant is tested in a process that has collected the tests, and collecting calls functions. What
they left in a cache would hide the mutant. While mutmut notes which test reaches which function,
the caches are emptied before each test, or only the first test would be noted.
"""

from __future__ import annotations

import gc
import os
import sys


def pytest_collection_finish() -> None:
    forget()
    gc.freeze()  # or each process would walk, and so copy, what it has in common with the others


def pytest_runtest_setup() -> None:
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        forget()


def forget() -> None:
    """Empty the caches of every module of the package."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "kimi_nb":
            for thing in list(vars(module).values()):
                clear = getattr(thing, "cache_clear", None)
                if clear is not None:
                    clear()
