"""The model of time against the real vLLM on this CPU: calibrated on some loads, held to others.

    make engine && python benchmarks/engine_sizes.py

As a person does with hardware that nobody has published: the peaks are measured by a small program
into a hardware file, notebook 08's measurements calibrate the factors, and what `kimi-nb size`
then says of other lengths and other concurrency is compared with what the engine does. Bounded is
the median error of TTFT, TPOT and throughput over the other loads. KIMI_NB_ROUNDS rounds (7); where
other programs use the cores as well, the figures are told and nothing is asked of them.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import judging
import psutil
from sweep import ENGINE, NO_ENGINE

import kimi_nb
from kimi_nb.core.errors import KimiError
from kimi_nb.prove.bench import measurements, results
from kimi_nb.prove.bench.workload import Load, Loads
from kimi_nb.prove.tune import site_factors
from kimi_nb.sizing import factor_fit, factors

ROUNDS = int(os.environ.get("KIMI_NB_ROUNDS", "7"))
KEPT = 5  # of the rounds of each load
QUIET = 0.25  # cores that others may use, so that a time is that of the engine
MOST = 15.0  # percent
FIGURES = ("median_ttft_ms", "median_tpot_ms", "output_throughput")

# GB/s and 10^12 operations a second of one thread: the largest of some rounds.
PEAKS = """
import time, torch
torch.set_num_threads(1)
def best(do, amount):
    seen = []
    for _ in range(8):
        begun = time.perf_counter()
        do()
        seen.append(amount / (time.perf_counter() - begun))
    return max(seen)
a = torch.empty(64 << 20, dtype=torch.float32).fill_(1)
b = torch.empty_like(a)
m = torch.ones(1024, 1024, dtype=torch.bfloat16)
print(best(lambda: b.copy_(a), 2 * a.nbytes) / 1e9, best(lambda: m @ m, 2 * 1024**3) / 1e12)
"""
# (tokens in, tokens out, requests at once)
CALIBRATED = ((64, 64, 1), (64, 64, 8), (512, 32, 1), (512, 32, 4), (1024, 64, 1), (1024, 64, 4))
OTHERS = ((64, 128, 4), (256, 64, 2), (256, 64, 8), (768, 48, 1), (768, 48, 3), (1024, 128, 2))


def _hardware(folder: Path) -> str:
    """A hardware file of this machine with its measured peaks."""
    said = subprocess.run(
        [ENGINE.parent / "python", "-c", PEAKS], capture_output=True, text=True, check=True
    )
    memory, arithmetic = map(float, said.stdout.split())
    source = "measured here, one thread"
    table = {
        "extends": "cpu",
        "name": "cpu-here",
        "title": "This machine's CPU, its peaks measured",
        "peaks": {
            "memory_gb_s": {"value": memory, "source": source},
            "bf16_tflops": {"value": arithmetic, "source": source},
        },
    }
    path = folder / "cpu-here.yaml"
    path.write_text(json.dumps(table))
    return str(path)


def _cpu(mine: str) -> tuple[float, float]:
    """CPU seconds of this machine, and those of this test with the engine that it has started."""
    own = 0.0
    for one in psutil.process_iter():
        try:
            if one.pid == os.getpid() or mine in one.cwd() or mine in str(one.environ()):
                times = one.cpu_times()
                own += times.user + times.system
        except psutil.Error:
            continue
    whole = psutil.cpu_times()
    return sum(whole) - whole.idle - whole.iowait - whole.guest - whole.guest_nice, own


def _measure(service, parts: dict[Path, tuple[tuple[int, int, int], ...]]) -> float:
    """Measure each load ROUNDS times, and keep the rounds in which others used the least CPU.

    Round by round, so that what changes on this machine changes both parts alike. Return the cores
    that others used in the median of the rounds that are kept.
    """
    others: dict[Path, float] = {}
    for count in range(1, ROUNDS + 1):
        for folder, cells in parts.items():
            for cell in cells:
                path, used = _once(service, folder, cell, count)
                others[path] = used
    by_load: dict[tuple[Path, str], list[Path]] = {}
    for path in others:
        by_load.setdefault((path.parent, path.name.partition("-r")[0]), []).append(path)
    kept = []
    for paths in by_load.values():
        ordered = sorted(paths, key=others.__getitem__)
        kept += [others[path] for path in ordered[:KEPT]]
        for path in ordered[KEPT:]:
            path.rename(path.with_suffix(".noisy"))
    return statistics.median(kept)


def _once(service, folder: Path, cell: tuple[int, int, int], count: int) -> tuple[Path, float]:
    """Measure a load for one round; return its file, and how many cores others used meanwhile."""
    sent, told, many = cell
    load = Loads((Load(many, sent, told, 4 * many, warmup=many),), 1)
    name = service.plan.name
    before, begun = _cpu(name), time.monotonic()
    made = measurements.measure(
        service, load, folder, repetitions=count, tool="kimi_nb", say=lambda _: None
    )
    after, spent = _cpu(name), time.monotonic() - begun
    path = made.files[-1]
    used = (after[0] - before[0] - after[1] + before[1]) / spent
    seen = json.loads(path.read_text())
    print(path.name, f"others {used:.2f} cores", {key: round(seen[key], 1) for key in FIGURES})
    return path, used


def _medians(folder: Path) -> dict[tuple[int, int, int], dict[str, float]]:
    """The median of each figure over the rounds, by load."""
    seen: dict[tuple[int, int, int], list] = {}
    for one in results.load(folder).measurements:
        about = one["kimi_nb"]["identity"]
        key = (about["input_len"], about["output_len"], about["concurrency"])
        seen.setdefault(key, []).append(one)
    return {
        key: {name: statistics.median(one[name] for one in many) for name in FIGURES}
        for key, many in seen.items()
    }


def _predicted(plan, folder: Path, table: factors.Factors) -> dict:
    """What the model says of each load in a folder, with the lengths that its prompts had."""
    kind, groups = site_factors._kind(plan, folder)
    out: dict[tuple[int, int, int], dict[str, float]] = {}
    for repeated in site_factors._by_load(results.load(folder).measurements):
        about = repeated[0]["kimi_nb"]["identity"]
        key = (about["input_len"], about["output_len"], about["concurrency"])
        found = site_factors._observations(repeated, kind, groups)
        out[key] = {seen.name: factor_fit.predicted(seen, table) for seen in found}
    return out


def main(judge: judging.Judge) -> None:
    if not ENGINE.exists():
        judge.not_measured("the model of time against the real engine", NO_ENGINE)
        return
    with tempfile.TemporaryDirectory(prefix="kimi-nb-engine-sizes-") as folder:
        predicted_and_seen(judge, Path(folder))


def predicted_and_seen(judge: judging.Judge, folder: Path) -> None:
    """Calibrate on some loads, predict the others, and judge the errors."""
    chip = _hardware(folder)
    run = kimi_nb.start(
        hw=chip, model="k2.5", action="deploy", confirm="local", run_dir=str(folder / "run")
    )
    choice = run.choose("single")
    service = run.service(choice)
    own, others = folder / "own", folder / "others"
    try:
        used = _measure(service, {own: CALIBRATED, others: OTHERS})
    finally:
        service.stop(keep=False)
    table = site_factors.of(own, chip)
    if {"calibrated"} != {one.mark for one in table.values()} - {"estimated"}:
        raise KimiError("no factor was calibrated by what was measured")
    plan = choice.plan()
    before = factors.of(plan.request.hardware.vendor, plan.request.weights.precision)
    told, guessed = (_predicted(plan, others, one) for one in (table, before))
    seen = _medians(others)
    for name in FIGURES:
        errors, without = (
            [100 * (math.exp(abs(math.log(said[key][name] / seen[key][name]))) - 1) for key in seen]
            for said in (told, guessed)
        )
        what = f"error of {name}"
        if used > QUIET:
            middle = statistics.median(errors)
            judge.not_measured(what, f"others used {used:.2f} cores; {middle:.1f} % says little")
        else:
            judge.figure(what, errors, "%", most=MOST, peer=("before calibration", without))


if __name__ == "__main__":
    sys.exit(judging.judged(main))
