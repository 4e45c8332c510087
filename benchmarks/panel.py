"""How long a change in the panel takes until all that it changes is drawn, on every tab.

    python benchmarks/panel.py

The widgets are those of a notebook, without a browser: a value is set as a person sets it, and the
call returns when the plan, the findings, the open tab and the buttons are drawn. Judged is the CPU,
which is the wall time of an idle machine. The first change of a process, which imports matplotlib,
is not judged. What the browser adds is small beside it: it gets ready HTML and SVG.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import tempfile

import judging

import kimi_nb
from kimi_nb.notebook.panel import choices, pages, widgets

MOST = 0.5  # s
REPEATS = 3
# (field, value): the largest plans of each layout, a mistake, another size.
CHANGES = (
    ("hw", "h100"),
    ("hw", "a3"),
    ("layout", "pd"),
    ("scenario", "throughput"),
    ("overrides", "decode.max-num-seqs=9"),
    ("overrides", "decode.tp=3; max-num-seq=9; prefill.dp=7"),
    ("overrides", ""),
    ("model", "k3"),
    ("hw", "gb300"),
    ("variant", "nvfp4-pd"),
    ("model", "k2.5"),
    ("hw", "a3"),
    ("layout", "pd"),
)


def main(judge: judging.Judge) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = kimi_nb.start(hw="a3", model="k2.5", run_dir=folder)
        panel = run.panel(run.choose("pd"))
        made = widgets.Widgets(panel)
        changed(made, "Topology")  # imports
        floor, *spent = judging.repeated(
            REPEATS,
            lambda: judging.cpu(lambda: choices.look(panel.choices)),
            *(functools.partial(changed, made, tab) for tab in pages.TABS),
        )
        run.close()
    for tab, values in zip(pages.TABS, spent, strict=True):
        judge.figure(f"the slowest of {len(CHANGES)} changes, drawn on {tab}", values, "s CPU")
    slowest = [max(values) for values in zip(*spent, strict=True)]
    peer = ("a plan, its findings and scripts alone", floor)
    judge.figure("the slowest of all", slowest, "s CPU", most=MOST, peer=peer)


def changed(made: widgets.Widgets, tab: str) -> float:
    """CPU seconds of the slowest change while a tab is open."""
    made.open(tab)
    return max(
        judging.cpu(lambda name=name, value=value: setattr(made.fields[name], "value", value))
        for name, value in CHANGES
    )


if __name__ == "__main__":
    sys.exit(judging.judged(main))
