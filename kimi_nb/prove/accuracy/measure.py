"""What a notebook calls: evaluate a service and keep the score.

Usage::

    measure.measure(run, service, "lm-eval", "kimi_nb_arithmetic", 0, False, say=print)

Each call has its own folder, ``<plan>/accuracy/NNN``. It holds ``request.json`` (what is asked),
the tool's input and output, ``tool.log``, and finally ``score.json``.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from kimi_nb.core.errors import AccuracyError, ParameterError, WriteError, choice
from kimi_nb.core.marks import MARK, RANDOM
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.accuracy import ais_bench, evaluation_faults, evaluators, lm_eval, tool_process
from kimi_nb.prove.accuracy.evaluation import SHIPPED, Evaluation, Outcome, longest_answer
from kimi_nb.prove.accuracy.scores import Score, Subject
from kimi_nb.service import http_client, reply_mark
from kimi_nb.service.handle import Service
from kimi_nb.service.session import Session

TOOLS: dict[str, ModuleType] = {lm_eval.NAME: lm_eval, ais_bench.NAME: ais_bench}
_SCORE, _REQUEST = "score.json", "request.json"
_LISTEN = 5.0  # seconds to wait for the service to accept a connection


@dataclass(frozen=True)
class Evaluations:
    """Tools, the task that they run, and how many of its questions to ask (0: all).

    Raises:
        ParameterError: If a tool does not exist, or cannot run this task with this limit.
    """

    tools: tuple[str, ...]
    task: str
    limit: int

    def __post_init__(self) -> None:
        if not self.tools:
            raise ParameterError(choice("tool", "", TOOLS))
        for tool in self.tools:
            checked(tool, self.task, self.limit)


def measure(
    run: Session,
    service: Service,
    tool: str,
    task: str,
    limit: int,
    resume: bool,
    *,
    say: Callable[[str], None],
) -> Score:
    """Measure the score of a service; see `Run.accuracy`.

    Raises:
        AccuracyError: If the evaluation failed. The answers received so far are kept.
        ParameterError: If the tool, the task or the limit is not valid.
        WriteError: If the folder cannot be written.
    """
    module = checked(tool, task, limit)
    about = subject(service.plan, service.url, service.mark)
    evaluation = Evaluation(task, about, limit, longest_answer(context(service.plan), about.mark))
    say = reply_mark.said(say, about.mark)
    score = Score(tool, evaluators.named(tool).version, task, about, module.settings(evaluation))
    why = (
        "action plan starts nothing that could be asked"
        if not service.up
        else evaluators.reason(tool)
    )
    if why:
        return _recorded(run, service.plan, replace(score, skipped=why))
    folder, before = _folder(run.folder / service.plan.name / "accuracy", evaluation, tool, resume)
    if before:
        say(f"complete before, nothing is asked again: {folder}")
        return _recorded(run, service.plan, before)
    score = replace(score, folder=str(folder))
    if http_client.listens(service.url, _LISTEN):
        score = _run(run, service, module, evaluation, score, say)
    else:
        score = replace(score, fault=evaluation_faults.named("Cannot connect to host"))
    score.save(folder / _SCORE)
    _recorded(run, service.plan, score)
    if score.fault:
        raise AccuracyError(
            f"{task} by {tool}: {score.fault}\n  answered: {score.answered} of "
            f"{score.samples or 'an unknown number'}; they are kept, resume asks only the rest\n"
            f"  service: {service.url}\n  log: {folder / tool_process.LOG}"
        )
    return score


def subject(plan: Plan, url: str, mark: str) -> Subject:
    """Return what is asked, as the plan describes it."""
    return Subject(
        plan.model,
        plan.request.weights.id if plan.request else plan.weights,
        plan.engine,
        plan.engine_version,
        plan.hardware,
        plan.served_name,
        url,
        mark if mark == MARK else RANDOM if plan.random_weights else "",
    )


def checked(tool: str, task: str, limit: int) -> ModuleType:
    """Return the module of a tool.

    Raises:
        ParameterError: If the tool does not exist, or cannot run this task with this limit.
    """
    evaluators.named(tool)
    if not isinstance(task, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", task):
        raise ParameterError(
            f"task {task!r}: the name of a task is wanted, such as {SHIPPED} or gsm8k."
        )
    if tool == ais_bench.NAME and task not in (SHIPPED, *ais_bench.DATASETS):
        raise ParameterError(choice("AISBench task", task, (SHIPPED, *ais_bench.DATASETS)))
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise ParameterError(f"limit {limit!r}: a whole number of samples is wanted, 0 for all.")
    return TOOLS[tool]


def _run(
    run: Session,
    service: Service,
    module: ModuleType,
    evaluation: Evaluation,
    score: Score,
    say: Callable[[str], None],
) -> Score:
    """Run the tool in the score's folder and return the score with what the tool left there."""
    folder, again = Path(score.folder), (Path(score.folder) / "out").exists()
    program = evaluators.find(score.tool)
    for name, text in module.files(evaluation, str(folder), bool(service.key)).items():
        (folder / name).write_text(text, encoding="utf-8")
    module.prepare(folder)
    try:
        ran = tool_process.run(
            module.argv(str(program), evaluation, again),
            folder,
            module.environment(evaluation, service.key, folder),
            progress=module.progress,
            say=say,
        )
    except KeyboardInterrupt:
        kept = Outcome()
        with contextlib.suppress(AccuracyError):  # a file that was cut off by the interrupt
            kept = module.read(folder, tool_process.tail(folder / tool_process.LOG), evaluation)
        run.record(
            "accuracy",
            mark=score.mark,
            plan=service.plan.name,
            tool=score.tool,
            task=score.task,
            interrupted=True,
            answered=kept.answered,
            samples=kept.samples,
            where=folder,
        )
        say(
            f"interrupted: {kept.answered} of {kept.samples or '?'} answers are kept; resume asks "
            "only the rest"
        )
        raise
    finally:
        tool_process.scrub(folder, service.key)
    left = module.read(folder, ran.log, evaluation)
    fault = evaluation_faults.of_answers(left.malformed, dict(left.failed), left.samples)
    if not fault and (ran.code or not left.parts):
        fault = evaluation_faults.named(ran.log)
    if service.key:
        fault = fault.replace(service.key, "***")
    return replace(
        score,
        # One of several engines may be a stand-in, which only its answers tell.
        subject=replace(score.subject, mark=left.mark or score.mark),
        parts=left.parts,
        samples=left.samples,
        answered=left.answered,
        empty=left.empty,
        seconds=round(ran.seconds, 1),
        fault=fault,
        notes=_notes(left.empty, left.samples),
    )


def _notes(empty: int, samples: int) -> tuple[str, ...]:
    return (
        (
            f"{empty} of {samples} answers have no content and count as wrong: thinking took all "
            "tokens (a larger max_tokens helps), or the service gave empty answers",
        )
        if empty
        else ()
    )


def context(plan: Plan) -> int:
    """Return the context length in tokens, the shortest if the roles differ."""
    lengths = [
        int(flags["max-model-len"].value)
        for flags in plan.flags.values()
        if str(getattr(flags.get("max-model-len"), "value", "")).isdigit()
    ]
    return min(lengths, default=32768)


def _folder(
    base: Path, evaluation: Evaluation, tool: str, resume: bool
) -> tuple[Path, Score | None]:
    """Return the folder to work in, and the score in it if that is complete.

    It is a new folder, or with ``resume`` the newest one of the same request.

    Raises:
        WriteError: If the folder cannot be written.
    """
    identity = _identity(evaluation, tool)
    there = sorted(path for path in base.glob("[0-9][0-9][0-9]") if path.is_dir())
    if resume:
        for path in reversed(there):
            if _request(path) != identity:
                continue
            known = Score.load(path / _SCORE)
            if known and known.ok and known.settings.get("limit", 0) == evaluation.limit:
                return path, known
            (path / _SCORE).unlink(missing_ok=True)
            return path, None
    number = int(there[-1].name) + 1 if there else 1
    path = base / f"{number:03d}"
    try:
        path.mkdir(parents=True)
        (path / _REQUEST).write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise WriteError(
            f"{path}: cannot be written: {error.strerror}. Choose another run_dir or "
            "mend its permissions."
        ) from None
    return path, None


def _identity(evaluation: Evaluation, tool: str) -> dict[str, Any]:
    """Return what must be the same for earlier answers to be reused.

    The address of the service and the number of samples may differ.
    """
    about = vars(evaluation.subject)
    return {
        "tool": tool,
        "version": evaluators.named(tool).version,
        "task": evaluation.task,
        "max_tokens": evaluation.max_tokens,
        **{name: value for name, value in about.items() if name != "url"},
    }


def _request(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / _REQUEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _recorded(run: Session, plan: Plan, score: Score) -> Score:
    """Record a score in the run's evidence and return it."""
    run.record(
        "accuracy",
        mark=score.mark or "measured",
        plan=plan.name,
        tool=score.tool,
        task=score.task,
        scores={f"{part.metric},{part.filter}": part.value for part in score.parts},
        samples=score.samples,
        answered=score.answered,
        empty=score.empty,
        seconds=score.seconds,
        fault=score.fault,
        skipped=score.skipped,
        settings=dict(score.settings),
        where=score.folder,
    )
    return score
