"""lm-eval (EleutherAI/lm-evaluation-harness): its command line, its files and its results.

Usage::

    lm_eval.argv("lm_eval", evaluation)  # the documents' command with the settings they name

Pure, except for reading what the tool has written. The tool asks /v1/chat/completions; the server
applies the chat template and few-shot examples are sent as turns, as in the documents' reference.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kimi_nb.prove.accuracy.evaluation import (
    CONCURRENCY,
    DATA,
    RETRIES,
    SHIPPED,
    TIMEOUT,
    Evaluation,
    Outcome,
    shipped_files,
)
from kimi_nb.prove.accuracy.scores import Part
from kimi_nb.prove.accuracy.tool_files import is_finite, reading
from kimi_nb.service import reply_mark

NAME = "lm-eval"
PROGRAM = "lm_eval"
_SHOTS = {SHIPPED: 2}
_REFERENCE_SHOTS = 5
_CACHE = "answers"
_BAR = re.compile(r"Requesting API:[^\r\n]*?(\d+)/(\d+) \[")
_CACHED = re.compile(r"Cached requests: (\d+), Requests remaining: (\d+)")


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True)


class _Samples(_Shape):
    effective: int = Field(ge=0, le=2**53)


class _Results(_Shape):
    """What is read of results_TIME.json, by task."""

    samples: dict[str, _Samples] = Field(alias="n-samples")
    results: dict[str, dict[str, Any]]


class _Row(_Shape):
    """What is read of a line of samples_TASK_TIME.jsonl."""

    doc_id: int
    resps: list[list[Any]] = Field(min_length=1)


def files(evaluation: Evaluation, folder: str = ".", keyed: bool = False) -> dict[str, str]:
    """Return the files that the tool needs in its working directory, by name."""
    if not evaluation.shipped:
        return {}
    name = f"{SHIPPED}.yaml"
    return {name: (DATA / name).read_text(encoding="utf-8"), **shipped_files()}


def argv(program: str, evaluation: Evaluation, resume: bool = False) -> list[str]:
    """Return the command line, to be run in the folder of `files`, where cache and results go too.

    The tool always continues from an existing cache: ``resume`` changes nothing.
    """
    subject = evaluation.subject
    model = (
        f"model={subject.served},base_url={subject.url}/v1/chat/completions,"
        f"num_concurrent={CONCURRENCY},max_retries={RETRIES},timeout={TIMEOUT}"
    )
    return [
        program,
        "run",
        "--model",
        "local-chat-completions",
        "--model_args",
        model,
        "--tasks",
        evaluation.task,
        *(["--include_path", "."] if evaluation.shipped else []),
        "--num_fewshot",
        str(_shots(evaluation)),
        "--apply_chat_template",
        "--fewshot_as_multiturn",
        "true",
        "--gen_kwargs",
        f"temperature=0.0,top_p=1.0,max_gen_toks={evaluation.max_tokens}",
        "--batch_size",
        "1",
        *(["--limit", str(evaluation.limit)] if evaluation.limit else []),
        "--use_cache",
        _CACHE,
        "--output_path",
        "out",
        "--log_samples",
    ]


def environment(evaluation: Evaluation, key: str, folder: Path) -> dict[str, str]:
    """Return the environment variables to add for the tool.

    They hold the API key under the name that lm-eval reads, and, for the shipped questions, keep
    the Hugging Face libraries offline.
    """
    offline = (
        {
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "HF_EVALUATE_OFFLINE": "1",
            "HF_HOME": str(folder / "hf"),
        }
        if evaluation.shipped
        else {}
    )
    return {"OPENAI_API_KEY": key or "EMPTY", **offline}


def settings(evaluation: Evaluation) -> dict[str, Any]:
    """Return the settings that affect a score, under the names that `published_scores` uses."""
    return {
        "shots": _shots(evaluation),
        "chat template": True,
        "few-shot as multi-turn": True,
        "temperature": 0.0,
        "top_p": 1.0,
        "max_tokens": evaluation.max_tokens,
        "batch size": 1,
        **({"limit": evaluation.limit} if evaluation.limit else {}),
    }


def progress(folder: Path, log: str) -> tuple[int, int] | None:
    """Return (answers received, answers wanted), or None before the first question.

    >>> progress(Path(), "Requesting API:  25%|##   | 6/24 [00:01<00:03]")
    (6, 24)
    """
    bars, cached = _BAR.findall(log), _CACHED.findall(log)
    before = int(cached[-1][0]) if cached else 0
    if bars:
        return before + int(bars[-1][0]), before + int(bars[-1][1])
    return (before, before + int(cached[-1][1])) if cached else None


def read(folder: Path, log: str, evaluation: Evaluation) -> Outcome:
    """Read the outcome from the files that the tool wrote.

    Without a results file, the answers in the cache are counted. Raises AccuracyError if a file is
    damaged.
    """
    found = progress(folder, log) or (0, 0)
    malformed = log.count("Could not parse generations")
    results = sorted(folder.glob("out/*/results_*.json"))
    if not results:
        return Outcome(samples=found[1], answered=_kept(folder), malformed=malformed)
    with reading(results[-1]):
        data = _Results.model_validate_json(results[-1].read_bytes())
        result, samples = data.results[evaluation.task], data.samples[evaluation.task].effective
    rows = _rows(results[-1].parent, evaluation.task)
    answers = [(row.doc_id, "".join(map(str, row.resps[0]))) for row in rows]
    empty = len({number for number, text in answers if not text.strip()})
    return Outcome(
        parts(result, samples),
        samples,
        max(0, samples - malformed),
        malformed,
        max(0, empty - malformed),
        mark=reply_mark.of_texts(text for _, text in answers),
    )


def parts(result: Mapping[str, Any], samples: int) -> tuple[Part, ...]:
    """Return the scores in a task's entry of the results, whose keys are "metric,filter".

    >>> [part.correct for part in parts({"exact_match,strict-match": 0.75, "alias": "x"}, 24)]
    [18]
    """
    out = []
    for key, value in result.items():
        metric, comma, name = key.partition(",")
        if not comma or metric.endswith("_stderr") or not is_finite(value):
            continue
        correct = round(value * samples)
        whole = 0 <= correct <= samples and bool(samples) and abs(correct / samples - value) < 1e-9
        out.append(
            Part(
                metric,
                "" if name == "none" else name,
                float(value),
                samples,
                correct if whole else None,
            )
        )
    return tuple(out)


def prepare(folder: Path) -> None:
    """Prepare a folder for another run: delete the results and keep the answers.

    Empty answers are deleted as well, so that they are asked again.
    """
    shutil.rmtree(folder / "out", ignore_errors=True)
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_cache(folder)) as base:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            base.execute("DELETE FROM unnamed WHERE value = ?", (pickle.dumps("", protocol),))
        base.commit()


def _shots(evaluation: Evaluation) -> int:
    return _SHOTS.get(evaluation.task, _REFERENCE_SHOTS)


def _cache(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{folder / f'{_CACHE}_rank0.db'}?mode=rw", uri=True)


def _kept(folder: Path) -> int:
    """Return the number of answers in the cache."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_cache(folder)) as base:
        return int(base.execute("SELECT count(*) FROM unnamed").fetchone()[0])
    return 0


def _rows(folder: Path, task: str) -> list[_Row]:
    """Return the questions with their answers, in each of the filters."""
    with reading(folder / f"samples_{task}_*.jsonl"):
        path = sorted(folder.glob(f"samples_{task}_*.jsonl"))[-1]
    with reading(path):
        return [_Row.model_validate_json(line) for line in path.read_bytes().splitlines()]
