"""AISBench (ais_bench): its configuration file, its command line and its results.

Usage::

    ais_bench.argv("ais_bench", evaluation)

Pure, except for reading what the tool has written. The configuration names the service, and
refers to datasets by AISBench's own configurations. The questions shipped with the project are
read and scored like AISBench's gsm8k.
"""

from __future__ import annotations

import collections
import json
import re
import shutil
from pathlib import Path
from typing import Any

from kimi_nb.params import load
from kimi_nb.prove.accuracy.evaluation import (
    CONCURRENCY,
    DATA,
    RETRIES,
    Evaluation,
    Outcome,
    shipped_files,
)
from kimi_nb.prove.accuracy.scores import Part
from kimi_nb.prove.accuracy.tool_files import is_finite, reading
from kimi_nb.service import reply_mark

NAME = "ais-bench"
PROGRAM = "ais_bench"
CONFIG = "service.py"
ABBREVIATION = "vllm-api-general-chat"
# Where AISBench 3.1 keeps the documents' datasets: (module below its configs, name of the list).
DATASETS = {
    "gsm8k": ("gsm8k.gsm8k_gen_0_shot_cot_chat_prompt", "gsm8k_datasets"),
    "aime2025": ("aime2025.aime2025_gen_0_shot_chat_prompt", "aime2025_datasets"),
    "aime2026": ("aime2026.aime2026_gen_0_shot_chat_prompt", "aime2026_datasets"),
    "gpqa": ("gpqa.gpqa_gen_0_shot_cot_chat_prompt", "gpqa_datasets"),
    "textvqa": ("textvqa.textvqa_gen_base64", "textvqa_datasets"),
    "mmmu": ("mmmu.mmmu_gen", "mmmu_datasets"),
}
_TEMPERATURE = 0.0
_REASON = 200  # characters of a reason why a request failed
_TOTAL = re.compile(r"Total data num: (\d{1,15})\b")

_OURS = """\
from ais_bench.benchmark.datasets import (
    GSM8KDataset, Gsm8kEvaluator, gsm8k_dataset_postprocess, gsm8k_postprocess)
from ais_bench.benchmark.openicl.icl_inferencer import GenInferencer
from ais_bench.benchmark.openicl.icl_prompt_template import PromptTemplate
from ais_bench.benchmark.openicl.icl_retriever import ZeroRetriever

datasets = [dict(
    abbr={task!r}, type=GSM8KDataset, path={folder!r},
    reader_cfg=dict(input_columns=["question"], output_column="answer"),
    infer_cfg=dict(
        prompt_template=dict(type=PromptTemplate, template=dict(round=[dict(
            role="HUMAN", prompt="Answer the following question. The last line of the response "
            "should follow this format: answer:$ANSWER, where ANSWER is a number. Let's think "
            "step by step.\\n\\nQuestion: {{question}}")])),
        retriever=dict(type=ZeroRetriever), inferencer=dict(type=GenInferencer)),
    eval_cfg=dict(
        evaluator=dict(type=Gsm8kEvaluator), pred_postprocessor=dict(type=gsm8k_postprocess),
        dataset_postprocessor=dict(type=gsm8k_dataset_postprocess)))]
"""
_THEIRS = """\
from mmengine.config import read_base

with read_base():
    from ais_bench.benchmark.configs.datasets.{module} import {name} as datasets
"""
_SERVICE = """\
{imported}
from ais_bench.benchmark.summarizers import DefaultSummarizer
from ais_bench.benchmark.utils.postprocess.model_postprocessors import (
    extract_non_reasoning_content)

{datasets}
models = [dict(
    attr="service", type={model}, abbr={abbreviation!r}, path="", model={served!r},
    stream=False, request_rate=0, retry={retries}, url={url!r},
    max_out_len={max_tokens}, batch_size={concurrency}, trust_remote_code=False,
    generation_kwargs=dict({sampling}),
    pred_postprocessor=dict(type=extract_non_reasoning_content))]
summarizer = dict(attr="accuracy", type=DefaultSummarizer)
"""


def files(evaluation: Evaluation, folder: str = ".", keyed: bool = False) -> dict[str, str]:
    """Return the files that the tool needs in its working directory, by name.

    ``keyed`` is whether the service requires an API key.
    """
    if evaluation.shipped:
        datasets = _OURS.format(task=evaluation.task, folder=folder)
    else:
        module, name = DATASETS[evaluation.task]
        datasets = _THEIRS.format(module=module, name=name)
    model = "KeyedChat" if keyed else "VLLMCustomAPIChat"
    source = "keyed_chat" if keyed else "ais_bench.benchmark.models"
    service = _SERVICE.format(
        imported=f"from {source} import {model}",
        model=model,
        datasets=datasets,
        abbreviation=ABBREVIATION,
        served=evaluation.subject.served,
        retries=RETRIES - 1,
        url=evaluation.subject.url,
        max_tokens=evaluation.max_tokens,
        concurrency=CONCURRENCY,
        sampling=", ".join(f"{name}={value}" for name, value in _sampling(evaluation).items()),
    )
    return {
        CONFIG: service,
        **({"keyed_chat.py": (DATA / "keyed_chat.py").read_text("utf-8")} if keyed else {}),
        **(shipped_files() if evaluation.shipped else {}),
    }


def _sampling(evaluation: Evaluation) -> dict[str, float]:
    """Return the parameters of every request: what the model's publisher recommends, or greedy."""
    name = evaluation.subject.model
    said = load.model(name).sampling if name in load.names("models") else None
    if said is None:
        return {"temperature": _TEMPERATURE}
    return {"temperature": said.temperature, "top_p": said.top_p}


def argv(program: str, evaluation: Evaluation, resume: bool = False) -> list[str]:
    """Return the command line, to be run in the folder of `files`, where the results go too.

    With ``resume`` the tool reuses the answers of an earlier run.
    """
    return [
        program,
        CONFIG,
        "--mode",
        "all",
        "--work-dir",
        "out",
        "--dump-eval-details",
        *([] if evaluation.shipped else ["--merge-ds"]),
        *(["--num-prompts", str(evaluation.limit)] if evaluation.limit else []),
        *(["--reuse"] if resume else []),
    ]


def environment(evaluation: Evaluation, key: str, folder: Path) -> dict[str, str]:
    """Return the environment variables to add for the tool.

    They hold the API key, the folder of the `KeyedChat` class as PYTHONPATH, and TERM=dumb, which
    keeps the tool from drawing on the terminal.
    """
    return {
        "OPENAI_API_KEY": key or "EMPTY",
        "PYTHONPATH": str(folder),
        "TERM": "dumb",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }


def settings(evaluation: Evaluation) -> dict[str, Any]:
    """Return the settings that affect a score, under the names that `published_scores` uses."""
    return {
        "mode": "gen",
        "api": ABBREVIATION,
        "shots": 0,
        "top_p": "the service's own",
        **_sampling(evaluation),
        "max_tokens": evaluation.max_tokens,
        **({"limit": evaluation.limit} if evaluation.limit else {}),
    }


def progress(folder: Path, log: str) -> tuple[int, int] | None:
    """Return (answers received, answers wanted), or None before the first answer.

    The number wanted is 0 while it is not known.
    """
    done = len(_predictions(folder))
    wanted = 0
    for path in folder.glob("out/*/logs/infer/*/*.out"):
        found = _TOTAL.findall(path.read_text(encoding="utf-8", errors="replace"))
        wanted = int(found[-1]) if found else wanted
    return (done, wanted) if done or wanted else None


def read(folder: Path, log: str, evaluation: Evaluation) -> Outcome:
    """Read the outcome from the files that the tool wrote.

    Without a results file, the answers received so far are counted. Raises AccuracyError if a
    results file is damaged.
    """
    rows = _predictions(folder)
    good = [row for row in rows.values() if row.get("success")]
    failed = collections.Counter(
        str(row.get("error_info", "no reason"))[:_REASON]
        for row in rows.values()
        if not row.get("success")
    )
    empty = sum(1 for row in good if not str(row.get("prediction", "")).strip())
    results = sorted(folder.glob(f"out/*/results/{ABBREVIATION}/*.json"))
    found = progress(folder, log) or (0, 0)
    samples = max(found[1], len(rows))
    kept = []
    for path in results:
        with reading(path):
            result = json.loads(path.read_bytes())
            if not isinstance(result, dict):
                raise ValueError("no mapping")
            kept.append(score(result, samples))
    return Outcome(
        tuple(filter(None, kept))[-1:],
        samples,
        len(good),
        0,
        empty,
        dict(failed),
        reply_mark.of_texts(row.get("prediction") for row in good),
    )


def score(result: dict[str, Any], samples: int) -> Part | None:
    """Return the score in a results file, or None if the file holds an error instead."""
    value = result.get("accuracy")
    if not is_finite(value):
        return None
    details = result.get("details")
    rows = [*details.values()] if isinstance(details, dict) else details
    marks = [
        row["correct"][0] if isinstance(row["correct"], list) else row["correct"]
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and row.get("correct") not in (None, [])
    ]
    correct = sum(map(bool, marks)) if len(marks) == samples else round(value / 100 * samples)
    whole = (
        0 <= correct <= samples and bool(samples) and abs(100 * correct / samples - value) < 0.01
    )
    return Part("accuracy", "", value / 100, samples, correct if whole else None)


def prepare(folder: Path) -> None:
    """Prepare a folder for another run: delete the results and keep the answers.

    With --reuse, AISBench asks again only what failed.
    """
    for path in folder.glob("out/*/results"):
        shutil.rmtree(path)


def _predictions(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the newest row for each question, from finished and interrupted runs."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    paths = [
        *folder.glob("out/*/predictions/*/tmp/*.jsonl"),
        *(
            path
            for path in folder.glob("out/*/predictions/*/*.jsonl")
            if not path.stem.endswith("_failed")
        ),
    ]
    for path in sorted(paths, key=lambda one: one.stat().st_mtime):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # the tool was killed while writing the line
                continue
            if isinstance(row, dict):
                rows[str(row.get("data_abbr", "")), json.dumps(row.get("id"))] = row
    return rows
