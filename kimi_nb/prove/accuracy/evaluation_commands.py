"""The command lines that reproduce the published scores by hand."""

from __future__ import annotations

import shlex
from pathlib import Path

from kimi_nb import show
from kimi_nb.check import documents
from kimi_nb.core import shell
from kimi_nb.core.errors import WriteError
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.accuracy import ais_bench, lm_eval, measure, published_scores
from kimi_nb.prove.accuracy.evaluation import SHIPPED, Evaluation, longest_answer
from kimi_nb.service.handle import Service


def write(folder: Path, model: str, plan: Plan, service: Service | None = None) -> show.Text:
    """Write the tools' input files into the run's folder and return the commands that use them.

    Raises:
        WriteError: If a file cannot be written.
    """
    base = folder / plan.name / "accuracy" / "by-hand"
    about = measure.subject(plan, service.url if service and service.url else plan.url, "")
    tokens = longest_answer(measure.context(plan), "")
    values = published_scores.of(model)
    lines: list[str] = []
    for name, line in _printed(model):
        lines += [f"# {name}, as published; {_said(values)}", *shell.command(line), ""]
    for one in (item for item in plan.clients if item.argv[0].startswith("lm")):
        lines += [f"# {one.title}, corrected", *shell.command(list(one.argv)), ""]
    for task in ("gsm8k", SHIPPED):
        evaluation = Evaluation(task, about, 0, tokens)
        _put(base / lm_eval.NAME / task, lm_eval.files(evaluation))
        lines += [
            f"# {task} by lm-eval, with the settings of the reference (a key goes into "
            "OPENAI_API_KEY)",
            f"cd {shlex.quote(str(base / lm_eval.NAME / task))}",
            *shell.command(lm_eval.argv(lm_eval.PROGRAM, evaluation)),
            "",
        ]
    keyed = bool(plan.secrets.get("VLLM_API_KEY"))
    wanted = [one.dataset for one in values if one.runner == ais_bench.NAME] or ["gsm8k"]
    for task in (*dict.fromkeys(wanted), SHIPPED):
        evaluation = Evaluation(task, about, 0, tokens)
        place = base / ais_bench.NAME / task
        _put(place, ais_bench.files(evaluation, str(place), keyed))
        lines += [
            f"# {task} by AISBench" + (", its key from OPENAI_API_KEY" if keyed else ""),
            f"cd {shlex.quote(str(place))}",
            *shell.command(
                [
                    *(["PYTHONPATH=."] if keyed else []),
                    *ais_bench.argv(ais_bench.PROGRAM, evaluation),
                ]
            ),
            "",
        ]
    return show.Text("What a person runs", "\n".join(lines).rstrip())


def _said(values: tuple[published_scores.Published, ...]) -> str:
    """Return the documents' own remark on their command line."""
    return next(
        (one.note for one in values if one.runner == lm_eval.NAME and one.note),
        "the reference settings are not in it",
    )


def _printed(model: str) -> list[tuple[str, list[str]]]:
    return [
        (name, list(entry["argv"]))
        for name, entry in documents.published().items()
        if entry["what"] == "lm_eval" and name.partition("/")[0] == model
    ]


def _put(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(
            f"{folder}: cannot be written: {error.strerror}. Choose another run_dir "
            "or mend its permissions."
        ) from None
