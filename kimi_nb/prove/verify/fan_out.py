"""One call for many items at once; Ctrl-C ends it without waiting for the results."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

_WIDTH = 8  # calls at a time


def each(call: Callable[[Any], Any], items: Sequence[Any], width: int = _WIDTH) -> list[Any]:
    """Call ``call`` for each item and return the results in the items' order.

    If a call raises an exception, that is its result. The threads are daemons, so that one that
    waits for an answer does not keep the program alive.

    >>> each(int, ["1", "x", "3"])
    [1, ValueError("invalid literal for int() with base 10: 'x'"), 3]
    """
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for at in range(len(items)):
        left.put(at)

    def work() -> None:
        while True:
            try:
                at = left.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((at, call(items[at])))
            except Exception as error:
                done.put((at, error))

    for _ in range(min(width, len(items))):
        threading.Thread(target=work, daemon=True).start()
    results: list[Any] = [None] * len(items)
    try:
        for _ in items:
            at, result = done.get()
            results[at] = result
    finally:
        while not left.empty():  # after Ctrl-C, let no thread begin another call
            try:
                left.get_nowait()
            except queue.Empty:
                break
    return results
