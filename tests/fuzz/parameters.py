"""What users and colleagues write: parameter files, overrides, values of notebooks, calibrations."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from fuzz import change, guard
from fuzz.targets import Target, command, here, instead, lines, screen, shipped, written
from kimi_nb.core import fingerprint
from kimi_nb.notebook import start

_A3 = ("--model", "k2.5", "--hw", "a3", "--layout", "single")


def _site(data: bytes, folder: Path) -> str:
    return command("plan", *_A3, "--site", written(folder, "site.yaml", data))


def _hardware(data: bytes, folder: Path) -> str:
    path = written(folder, "hardware.yaml", data)
    return command("plan", "--model", "k2.5", "--hw", path, "--layout", "single")


def _model(data: bytes, folder: Path) -> str:
    path = written(folder, "model.yaml", data)
    return command("plan", "--model", path, "--hw", "a3", "--layout", "single")


def _calibration(data: bytes, folder: Path) -> str:
    return command("memory", *_A3, "--calibration", written(folder, "layer.yaml", data))


def _engine_log(data: bytes, folder: Path) -> str:
    path, out = written(folder, "engine.log", data), folder / "layer.yaml"
    plan = ("--model", "k2.5", "--hw", "a2", "--layout", "dp")  # that of a kept log
    shown = command("calibrate", path, *plan, "--out", out)
    if out.exists():
        shown += command("memory", *plan, "--calibration", out)
    return shown


def _words(data: bytes, folder: Path) -> str:
    """Each line is an option of `plan` and its value, without the two dashes."""
    words: list[str] = []
    for line in lines(data)[:20]:
        name, _, value = line.partition(" ")
        if name in _OPTIONS:
            words.append(f"--{name}={value}")
    with here(folder):
        return command("plan", *_A3, *words)


_OPTIONS = ("set", "with", "without", "erratum", "engine-version", "scenario", "variant", "role")


def _notebook(data: bytes, folder: Path) -> str:
    """A notebook's parameters as papermill takes them, in JSON."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        return ""
    wanted = {"hw": "a3", "model": "k2.5", **given}
    names = ("hw", "model", "site", "action", "confirm")
    values = {name: wanted[name] for name in names if name in wanted}
    out, shown = io.StringIO(), []
    with (
        here(folder),
        instead(fingerprint, "of_program", dict),
        contextlib.redirect_stdout(out),
        guard.refusals(shown),
    ):
        run = start.start(**values, run_dir=str(folder / "run"))
        shown.append(str(run.folder.relative_to(folder)))
    return out.getvalue() + screen(*shown)


TARGETS = (
    Target("site", _site, (b"nodes:\n", b"address: ", b"extends: ", b"ssh:\n"),
           change.yaml_values, lambda: shipped("sites/a*.yaml")),
    Target("hardware", _hardware, (b"extends: a3\n", b"device:\n", b"checks:\n"),
           change.yaml_values, lambda: shipped("hardware/[!_]*.yaml")),
    Target("model", _model, (b"recipes:\n", b"weights:\n", b"env:\n"),
           change.yaml_values, lambda: shipped("models/k2.[56].yaml")),
    Target("calibration", _calibration, (b"terms:\n",), change.yaml_values),
    Target("engine-log", _engine_log, (b" GiB", b"Available KV cache memory: ", b"non-default args: {")),
    Target("words", _words, (b"set ", b"with ", b"erratum ", b"env.", b"decode.", b"={\"a\": 1}", b"router=")
           ),
    Target("notebook", _notebook, (), change.json_values),
)  # fmt: skip
