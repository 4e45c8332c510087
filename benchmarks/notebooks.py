"""CPU of ``kimi-nb run`` against the same number of notebooks that do nothing.

    python benchmarks/notebooks.py

The floor: notebooks that start a kernel and import the same libraries, executed by papermill in
one process, converted to HTML by nbconvert, as a run does. Medians of three, taken in turn.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile

REPEATS = 3
FLOOR = """
import sys, tempfile, nbformat, papermill, tqdm
from pathlib import Path
from nbconvert import HTMLExporter
from kimi_nb import runbook
runbook._quiet()
folder = Path(sys.argv[1])
cell = nbformat.v4.new_code_cell("import kimi_nb, kimi_nb.notebook.start, tabulate")
book = nbformat.v4.new_notebook(cells=[cell])
book.metadata.kernelspec = {"name": "python3", "display_name": "", "language": "python"}
nbformat.write(book, folder / "in.ipynb")
for i in range(int(sys.argv[2])):
    target = folder / f"{i}.ipynb"
    with tempfile.TemporaryDirectory() as sockets:
        papermill.execute_notebook(
            str(folder / "in.ipynb"), str(target), kernel_name="python3", progress_bar=False,
            request_save_on_cell_execute=False, autosave_cell_every=0,
            **runbook._transport(sockets, folder / "kernels.log"))
    runbook._html(target)
"""


def cpu(argv: list[str]) -> float:
    """CPU seconds of a command and all of its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    floors, runs = [], []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            floors.append(cpu([sys.executable, "-c", FLOOR, folder, "6"]))
        with tempfile.TemporaryDirectory() as folder:
            # GB200 is the hardware with all three layouts, so all six notebooks apply.
            ours = cpu(
                [
                    sys.executable,
                    "-m",
                    "kimi_nb.cli.main",
                    "run",
                    "--model",
                    "k2.5",
                    "--hw",
                    "gb200",
                    "--run-dir",
                    f"{folder}/run",
                ]
            )
        runs.append(ours)
    floor, ours = statistics.median(floors), statistics.median(runs)
    print(
        f"six notebooks that do nothing: {floor:.1f} s CPU; "
        f"notebooks 00 to 05: {ours:.1f} s CPU; ratio {ours / floor:.2f}, at most 1.3"
    )


if __name__ == "__main__":
    main()
