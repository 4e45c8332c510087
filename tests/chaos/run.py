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
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
# tests/ is not on the path of a script.
sys.path.insert(0, str(ROOT / "tests"))

from testbed import hosts as testbed  # noqa: E402

from chaos import scene  # noqa: E402
from chaos.disasters import Disaster, plan  # noqa: E402

SEED, COUNT = 1, 100
_TRIES, _SOONER = 5, 0.7  # of the time that a command took which had ended before its disaster
_APART = ["unshare", "--net", "--mount", "--propagation", "private"]
_APART += ["--pid", "--kill-child", "--mount-proc"]


class Stopped(Exception):
    """No more scenes are played."""


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


class Scenes:
    """Scenes, each played in a process and namespaces of its own, which end with this program."""

    def __init__(self) -> None:
        self._playing: set[subprocess.Popen[bytes]] = set()
        self._lock, self._stopped = threading.Lock(), False
        root = os.geteuid() == 0
        # A scene ends also where this program is killed; unshare takes no SIGTERM,
        # and all that is in it ends with it.
        self._end = signal.SIGKILL if root else signal.SIGTERM
        self._held = [
            "setpriv",
            "--pdeathsig",
            self._end.name.removeprefix("SIG"),
            *(_APART if root else []),
        ]

    def play(
        self, folder: Path, command: str, disaster: Disaster | None, usual: float
    ) -> scene.Outcome:
        """Play one, and return what came of it."""
        folder.mkdir(parents=True)
        file = folder / "scene.json"
        given = {"command": command, "disaster": disaster and asdict(disaster), "usual": usual}
        file.write_text(json.dumps(given))
        with (folder / "scene.log").open("wb") as log:
            process = self._start(["--scene", str(file)], log)
            process.wait()
        with self._lock:
            self._playing.discard(process)
            if self._stopped:
                raise Stopped
        told = file.with_name("outcome.json")
        if told.exists():
            return scene.Outcome(**json.loads(told.read_text()))
        last = (folder / "scene.log").read_text(errors="replace").splitlines()[-1:]
        return scene.Outcome([f"the scene itself failed: {' '.join(last)}"])

    def _start(self, words: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                [*self._held, sys.executable, str(Path(__file__)), *words],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._playing.add(process)
            return process

    def stop(self) -> None:
        """End those that are being played, and play no more."""
        with self._lock:
            self._stopped = True
            for process in self._playing:
                process.send_signal(self._end)


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
        self.cpu = 0.0  # seconds of processors, for all of it
        self._usual: dict[str, float] = {}
        self._scenes = Scenes()

    def run(self, jobs: int) -> None:
        """Let them happen, that many at a time."""
        commands = dict.fromkeys(one.command for one in self.chosen)
        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(self._measure, commands))
                # What is gone for good is waited for longest: it must not be the last.
                list(pool.map(self._let, sorted(self.chosen, key=lambda one: one.what != "gone")))
            finally:
                self._scenes.stop()

    def _let(self, one: Disaster) -> None:
        if not self._usual[one.command]:
            self.outcomes[one.step] = scene.Outcome([f"{one.command} fails when left alone"])
            return
        folder = self.folder / f"{one.step:03}-{one.command}"
        out = self._play(folder, one.command, one, self._usual[one.command])
        for attempt in range(1, _TRIES):
            if out.happened or out.faults:
                break
            # It was faster, or what was to be killed was not there any more.
            shutil.rmtree(folder, ignore_errors=True)
            out = self._play(folder, one.command, one, out.seconds * _SOONER**attempt)
        if not out.happened:
            out.faults.append("the disaster did not happen: it came too late each time")
        self.outcomes[one.step] = out
        self._tell(one, out)
        if not out.faults and not self.keep:
            shutil.rmtree(folder, ignore_errors=True)

    def _play(self, *what: Any) -> scene.Outcome:
        out = self._scenes.play(*what)
        self.cpu += out.cpu
        return out

    def _measure(self, command: str) -> None:
        out = self._play(self.folder / f"usual-{command}", command, None, 0)
        good = out.code == 0 and not out.faults
        self._usual[command] = out.seconds if good else 0
        print(
            f"{command}, left alone: {out.seconds:.1f} s, {out.cpu:.1f} s of CPU"
            f"{'' if good else f' {out}'}",
            flush=True,
        )

    def _tell(self, one: Disaster, out: scene.Outcome) -> None:
        how = f" [{out.how}]" if out.how else ""
        print(
            f"{one.step:3} {one.command}: {one}{how}: exit code {out.code} after "
            f"{out.seconds:.1f} s, {out.cpu:.1f} s of CPU: {out.said[:160]}",
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
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chaos.run(args.jobs)
    except KeyboardInterrupt:
        print(f"stopped; what was left: {folder}", flush=True)
        return 130
    failed = [step for step, out in chaos.outcomes.items() if out.faults]
    print(
        f"\n{chaos.table()}\n\nseed {args.seed}, {time.monotonic() - begun:.0f} s, {chaos.cpu:.0f} s of CPU"
    )
    for step in sorted(failed):
        print(f"again: {again(args.seed, step)}")
    if failed or args.keep:
        print(f"what they left: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
