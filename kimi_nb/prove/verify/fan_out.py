"""The same question to many places at once, which Ctrl-C ends without waiting for answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

_WIDTH = 8  # requests at a time


def each(call: Callable[[Any], Any], items: Sequence[Any], width: int = _WIDTH) -> list[Any]:
    """What ``call`` returns for each item, in their order; an exception stands for the result.

    The threads are daemons: one that waits for an answer does not keep the program alive.
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
        while not left.empty():  # nobody starts another one
            try:
                left.get_nowait()
            except queue.Empty:
                break
    return results
