"""The search for the few lines that tell something is prepared once, and by nobody in vain."""

from __future__ import annotations

import functools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kimi_nb.diagnose import prefilter


def test_the_patterns_are_compiled_once_however_many_threads_ask(monkeypatch):
    made = []

    @functools.cache
    def compiled(brief):
        made.append(brief)
        time.sleep(0.05)  # as compiling takes long, others ask meanwhile
        return object()

    monkeypatch.setattr(prefilter, "_compiled", compiled)
    together = threading.Barrier(4)

    def ask():
        together.wait()
        return prefilter._database(False)

    with ThreadPoolExecutor(4) as pool:
        found = {id(one.result()) for one in [pool.submit(ask) for _ in range(4)]}
    assert made == [False] and len(found) == 1


def test_what_is_not_installed_is_told_by_who_reads(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    prefilter._compiled.cache_clear()
    prefilter.prepare()
    for thread in threading.enumerate():
        if thread.name == "patterns":
            thread.join()
    assert capsys.readouterr().err == ""
    with pytest.raises(ModuleNotFoundError):
        prefilter._database(False)


def test_patterns_that_were_prepared_are_those_that_are_searched():
    prefilter.prepare()
    block = b"INFO 11-22 05:49:28 [a.py:7] up\nERROR 11-22 05:49:29 [a.py:7] no\n"
    assert [line for _, line, _ in prefilter.lines(block)] == [block.splitlines(True)[1]]
