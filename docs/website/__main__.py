"""``python -m website``: execute the notebooks, build the pages, check their links.

The pages are in ``build/website/html``. The exit code is 1 where a notebook fails, Sphinx warns or
a link leads nowhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from website import built_links, executing, source_tree
from website.source_tree import ROOT


def main() -> int:
    """Build the pages and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    parser.add_argument(
        "--bin", type=Path, default=ROOT / ".venv/bin", help="the environment of the notebooks"
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build/website", help="where all of it is written"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the notebooks that were executed before"
    )
    args = parser.parse_args()
    work, programs = args.work.absolute(), args.bin.absolute()
    try:
        if args.keep and (work / "outputs/executed").is_dir():
            executed, runs = work / "outputs/executed", work / "outputs/run"
        else:
            executed, runs = executing.execute(programs, work / "outputs")
    except executing.Failed as error:
        print(f"make site: {error}", file=sys.stderr)
        return 1
    return build(work, executed, runs)


def build(work: Path, executed: Path, runs: Path) -> int:
    """Build the pages of executed notebooks in a folder, check them, and return the exit code."""
    source, pages = work / "source", work / "html"
    source_tree.lay_out(source, executed, runs)
    shutil.rmtree(pages, ignore_errors=True)
    options = ["-q", "-W", "--keep-going", "-j", "auto", "-d", str(work / "doctrees")]
    sphinx = [sys.executable, "-m", "sphinx", *options, "-c", str(Path(__file__).parent)]
    path = f"{Path(__file__).parents[1]}{os.pathsep}{ROOT}"
    env = {**os.environ, "PYTHONPATH": path}
    code = subprocess.run([*sphinx, str(source), str(pages)], env=env, check=False).returncode
    if code:
        return 1
    if runs.is_dir():
        # Its pages are here already, with links that suit this place.
        left_out = shutil.ignore_patterns("*.html", "kernels.log")
        shutil.copytree(runs, pages / source_tree.EXAMPLE, ignore=left_out)
    found = built_links.faults(pages)
    for fault in found:
        print(fault, file=sys.stderr)
    if found:
        print(f"make site: {len(found)} links lead nowhere or elsewhere.", file=sys.stderr)
        return 1
    print(
        f"{pages}/index.html: {sum(1 for _ in pages.rglob('*.html'))} pages, each link leads somewhere."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
