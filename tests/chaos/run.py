"""Make disasters happen to the commands of kimi-nb, and list what did not end well.

Example::

    python tests/chaos/run.py                      # the hundred of the default seed
    python tests/chaos/run.py --count 20 --seed 7
    python tests/chaos/run.py --seed 7 --only 13   # one of them again

Each command is first called without a disaster, which says how long it takes. Then come the
disasters (`disasters`), each in a folder of its own: the command, the disaster at its moment, and
the command once more. What is looked at afterwards: (a) nothing runs that should not, (b) nothing
is half-written, (c) the second call goes well, (d) the person was told, without a traceback. The
exit code is 1 if something is wrong.

The same seed and step is the same disaster at the same share of the command's usual time; which
line of the program it meets is up to the machine. Disks, links and hosts need root; without it,
and without the programs that they need, their disasters are left out, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
# tests/ is not on the path of a script.
sys.path.insert(0, str(ROOT / "tests"))

from testbed import hosts as testbed  # noqa: E402

from chaos import scene  # noqa: E402
from chaos.disasters import Disaster, plan  # noqa: E402

SEED, COUNT = 1, 100
_SOONER = 0.8  # of the time that a command took which had ended before its disaster
_PRIVATE = ["--mount", "--propagation", "private", "--pid", "--kill-child", "--mount-proc"]


def missing(disaster: Disaster) -> str:
    """Why a disaster cannot happen here; "" where it can."""
    root = os.geteuid() == 0
    if disaster.command == "up" and (why := testbed.missing()):
        return why
    if "disk" in disaster.kind and not root:
        return "disks need root: file systems are mounted"
    if disaster.kind == "clock" and shutil.which("cc") is None:
        return "the clock needs a compiler of C (apt-get install gcc libc6-dev)"
    if disaster.kind == "link" and shutil.which("tc") is None:
        return "links need tc (apt-get install iproute2)"
    return ""


def play(folder: Path, command: str, disaster: Disaster | None, usual: float) -> scene.Outcome:
    """Play a scene in a process and namespaces of its own."""
    folder.mkdir(parents=True)
    file = folder / "scene.json"
    given = {"command": command, "disaster": disaster and asdict(disaster), "usual": usual}
    file.write_text(json.dumps(given))
    apart: list[str] = []
    if os.geteuid() == 0:
        # The hosts of `up` have networks of their own, which are made from this one.
        apart = ["unshare", *_PRIVATE, *(["--net"] if command != "up" else [])]
    with (folder / "scene.log").open("wb") as log:
        process = subprocess.Popen(
            [*apart, sys.executable, str(Path(__file__)), "--scene", str(file)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    told = file.with_name("outcome.json")
    if told.exists():
        return scene.Outcome(**json.loads(told.read_text()))
    last = (folder / "scene.log").read_text(errors="replace").splitlines()[-1:]
    return scene.Outcome([f"the scene itself failed: {' '.join(last)}"])


def again(seed: int, step: int) -> str:
    """The command that makes one disaster happen again."""
    return f"{Path(sys.executable)} tests/chaos/run.py --seed {seed} --only {step}"


class Chaos:
    """Some disasters of a seed, in a folder."""

    def __init__(self, seed: int, chosen: Sequence[Disaster], folder: Path, keep: bool) -> None:
        self.seed, self.folder, self.keep = seed, folder, keep
        self.left_out = {one.step: why for one in chosen if (why := missing(one))}
        self.chosen = [one for one in chosen if one.step not in self.left_out]
        self.outcomes: dict[int, scene.Outcome] = {}
        self._usual: dict[str, float] = {}

    def run(self, jobs: int) -> None:
        """Let them happen, those of each command one after the other."""
        lanes: dict[str, list[Disaster]] = {}
        for one in self.chosen:
            # Hosts and their engines are a lane; what runs here is the other.
            lanes.setdefault("up" if one.command == "up" else "here", []).append(one)
        with ThreadPoolExecutor(jobs) as pool:
            for done in [pool.submit(self._lane, lane) for lane in lanes.values()]:
                done.result()

    def _lane(self, disasters: Iterable[Disaster]) -> None:
        for one in disasters:
            if one.command not in self._usual:
                self._measure(one.command)
            if not self._usual[one.command]:
                self.outcomes[one.step] = scene.Outcome([f"{one.command} fails when left alone"])
                continue
            folder = self.folder / f"{one.step:03}-{one.command}"
            out = play(folder, one.command, one, self._usual[one.command])
            if not out.happened and not out.faults:  # it was faster than before
                shutil.rmtree(folder, ignore_errors=True)
                out = play(folder, one.command, one, out.seconds * _SOONER)
            self.outcomes[one.step] = out
            self._tell(one, out)
            if not out.faults and not self.keep:
                shutil.rmtree(folder, ignore_errors=True)

    def _measure(self, command: str) -> None:
        out = play(self.folder / f"usual-{command}", command, None, 0)
        good = out.code == 0 and not out.faults
        self._usual[command] = out.seconds if good else 0
        print(f"{command}, left alone: {out.seconds:.1f} s {'' if good else out}", flush=True)

    def _tell(self, one: Disaster, out: scene.Outcome) -> None:
        how = f" [{out.how}]" if out.how else ""
        late = "" if out.happened else " (it had ended before)"
        print(
            f"{one.step:3} {one.command}: {one}{how}{late}: exit code {out.code} after "
            f"{out.seconds:.1f} s: {out.said[:160]}",
            flush=True,
        )
        for fault in out.faults:
            print(f"      {fault}", flush=True)
        if out.faults:
            print(f"      again: {again(self.seed, one.step)}", flush=True)

    def table(self) -> str:
        """What happened how often, and what did not end well."""
        count: Counter[tuple[str, str]] = Counter()
        good: Counter[tuple[str, str]] = Counter()
        wrong: dict[tuple[str, str], list[int]] = {}
        for one in self.chosen:
            key = (one.command, f"{one.kind}: {one.what}")
            count[key] += 1
            if self.outcomes[one.step].faults:
                wrong.setdefault(key, []).append(one.step)
            else:
                good[key] += 1
        rows = [
            (*key, number, good[key], ", ".join(f"step {at}" for at in wrong.get(key, ())) or "-")
            for key, number in sorted(count.items())
        ]
        rows.append(("all", "", len(self.chosen), sum(good.values()), ""))
        text = tabulate(rows, ("command", "disaster", "count", "passed", "failed"))
        reasons = Counter(self.left_out.values())
        return "\n".join(
            [text, *(f"left out: {number}: {why}" for why, number in sorted(reasons.items()))]
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if something did not end well."""
    parser = argparse.ArgumentParser(description="Make disasters happen to kimi-nb.")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT, help="how many disasters")
    parser.add_argument("--only", type=int, nargs="+", metavar="STEP", help="these of them only")
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="lanes at a time")
    parser.add_argument("--plan", action="store_true", help="list them, nothing happens")
    parser.add_argument("--keep", action="store_true", help="keep also what ended well")
    parser.add_argument("--folder", type=Path, help="where to (default: a new folder in /tmp)")
    parser.add_argument("--scene", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.scene:
        return scene.main(args.scene)
    chosen = plan(args.seed, max([args.count, *(args.only or ())]))
    if args.only:
        chosen = [one for one in chosen if one.step in args.only]
    if args.plan:
        print("\n".join(f"{one.step:3} {one.command}: {one}" for one in chosen))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="kimi-chaos-", dir=args.folder))
    begun = time.monotonic()
    chaos = Chaos(args.seed, chosen, folder, args.keep)
    chaos.run(args.jobs)
    failed = [step for step, out in chaos.outcomes.items() if out.faults]
    print(f"\n{chaos.table()}\n\nseed {args.seed}, {time.monotonic() - begun:.0f} s")
    for step in sorted(failed):
        print(f"again: {again(args.seed, step)}")
    if failed or args.keep:
        print(f"what they left: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
