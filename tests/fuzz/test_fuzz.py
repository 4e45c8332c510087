"""What strangers write: the kept corpus, and as much more as the time allows.

`make test` replays the corpus. `make test-long` also gives each target inputs of chance's choice for
a minute, from a seed that is fixed unless FUZZ_SEED says otherwise. How many that are depends on the
machine, and half an hour is more than CI has, so where CI=true only FUZZ_SECONDS asks for it:

    FUZZ_SECONDS=600 FUZZ_SEED=7 .venv/bin/python -m pytest -m long tests/fuzz -k journal

What breaks something is written to a file, whose name the failure says. Mend the fault, with a test
of its own in the room that has it, and keep the file in corpus/TARGET/ as find-WHAT.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from fuzz import answers, guard, nodes, parameters, results, shared_files, texts
from fuzz.targets import CORPUS, Target
from kimi_nb.core import known_secrets

MODULES = (parameters, nodes, texts, answers, results, shared_files)
TARGETS = tuple(itertools.chain.from_iterable(module.TARGETS for module in MODULES))
NAMES = [one.name for one in TARGETS]
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0" if os.environ.get("CI") == "true" else "60"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
_ROUND = 50  # inputs from one seed; when the time is over, the rest of them are still drawn
_LARGEST = 4096  # bytes of a kept input


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is known by the name of its variable."""
    monkeypatch.setenv("PLANTED_API_KEY", guard.SECRET)
    monkeypatch.setattr(known_secrets, "_names", {"PLANTED_API_KEY"})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where one input after the other is read; emptied by `fresh`."""
    yield tmp_path / "one"


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_what_is_kept_breaks_nothing(target: Target, folder: Path) -> None:
    kept = target.corpus()
    assert kept
    for path in kept:
        data = path.read_bytes()
        assert len(data) <= _LARGEST, path
        try:
            target.check(data, fresh(folder))
        except BaseException as error:
            error.add_note(f"the input: {path}")
            raise


def test_a_kept_log_of_the_engine_is_learnt_from(folder: Path) -> None:
    """Else every log would be refused for its plan, before anybody reads it."""
    target = next(one for one in TARGETS if one.name == "engine-log")
    (log,) = (path for path in target.corpus() if path.name.startswith("good-a2"))
    shown = target.read(log.read_bytes(), fresh(folder))
    assert (folder / "layer.yaml").is_file() and "written to" in shown


def test_the_corpus_has_no_other_folder() -> None:
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(NAMES)


def test_only_what_is_removed_elsewhere_is_found(tmp_path: Path) -> None:
    """A tree is removed by names below descriptors of its folders."""
    for name in ("inside", "outside"):
        (tmp_path / name / "tree" / "deep").mkdir(parents=True)
        (tmp_path / name / "tree" / "deep" / "plan.json").touch()
    with guard.folder(tmp_path / "inside"):
        shutil.rmtree(tmp_path / "inside" / "tree")
    handle = os.open(tmp_path / "outside" / "tree" / "deep", os.O_RDONLY)
    found = pytest.raises(AssertionError, match="os.remove .*outside/tree/deep/plan.json")
    with found, guard.folder(tmp_path / "inside"):
        os.remove("plan.json", dir_fd=handle)
    os.close(handle)


@pytest.mark.long
@pytest.mark.skipif(not SECONDS, reason="no FUZZ_SECONDS: what chance writes is left out")
@pytest.mark.parametrize("target", TARGETS, ids=[f"{name}-seed-{SEED}" for name in NAMES])
def test_what_chance_writes_breaks_nothing(target: Target, folder: Path, tmp_path: Path) -> None:
    end, count = time.monotonic() + SECONDS, 0
    find = tmp_path / f"find-{target.name}"

    def one(data: bytes) -> None:
        nonlocal count
        if time.monotonic() > end and not find.exists():
            return
        count += 1
        try:
            target.check(data, fresh(folder))
        except BaseException as error:
            find.write_bytes(data)
            error.add_note(f"{target.name}, seed {SEED}: the input is in {find}: {data[:500]!r}")
            raise

    for number in itertools.count():
        if time.monotonic() > end:
            break
        run = hypothesis.given(target.inputs())(one)
        run = hypothesis.settings(
            max_examples=_ROUND,
            derandomize=False,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=(hypothesis.Phase.generate,),  # to make a find small takes minutes
        )(run)
        hypothesis.seed(SEED * 100_000 + number)(run)()
    print(f"{target.name}: {count} inputs from seed {SEED}")
