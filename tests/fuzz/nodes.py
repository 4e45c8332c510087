"""What nodes and clusters write: answers, logs, claims, the record of a deployment, SLURM's words."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from fuzz import change, guard
from fuzz.targets import Target, command, instead, screen, written
from kimi_nb.deploy import claim, journal, node_call, node_looks
from kimi_nb.deploy.node_answers import Answer
from kimi_nb.deploy.on_nodes import OnNodes
from kimi_nb.deploy.slurm import job_book, job_logs, slurm_commands
from kimi_nb.deploy.steps import together
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.service import http_client, prerequisites
from kimi_nb.show import Table


@functools.cache
def _plan():
    return build.plan("k2.5", "h200", "single", variant="pip")


class _Nodes:
    """Nodes that all answer the same, whatever they are asked."""

    def __init__(self, output: str) -> None:
        self.unreachable: dict[str, str] = {}
        self._answer = Answer(tuple(node_call.lines(output.splitlines())))

    def look(self, texts):
        return dict.fromkeys(texts, self._answer)

    def change(self, texts, verb):
        return dict.fromkeys(texts, self._answer)

    def close(self):
        pass


def _answers(data: bytes, folder: Path) -> str:
    """Every step of a deployment, on nodes that answer with this."""
    site = OnNodes(_plan(), folder / "bundle", folder, "r", "me",
                   lambda: _Nodes(data.decode("utf-8", "replace")))  # fmt: skip
    (folder / "logs").mkdir(exist_ok=True)
    shown: list[str] = []
    with (
        instead(OnNodes, "text", lambda self, node, verbs, dry=False, seen="": "echo"),
        instead(http_client, "listens", lambda url, seconds: False),
        instead(node_looks, "_text", lambda hardware, looks: "echo"),
    ):
        for step in (site.preview, site.diff, site._claim, *(one.run for one in site.steps[2:]),
                     site.status, lambda: list(site.follow(lambda: True)), site.down):  # fmt: skip
            with guard.refusals(shown):
                shown.append(_told(step()))
        seen = node_looks._ask(site.nodes, load.hardware("a3"), {"n": _looks()})
        shown.append(str(Table("", ("node", "what", "found"),
                               tuple((r.look.name, r.status, r.found[:300]) for r in seen["n"]))))  # fmt: skip
    return screen(*shown)


@functools.cache
def _looks():
    request = _plan().request
    return list(prerequisites.looks(request.hardware, request.site, request.weights, "single"))


def _told(given: object) -> str:
    changes = [*getattr(given, "changes", ()), *getattr(given, "warnings", ())]
    return "\n".join(together(changes)) if changes else str(given)


def _journal(data: bytes, folder: Path) -> str:
    """The record of a deployment, which is the only one below a folder."""
    runs = folder / "runs"
    path = written(runs / "run" / "plan" / "deployments" / "001", "state.json", data)
    shown: list[str] = []
    with guard.refusals(shown):
        found = journal.find(str(runs / "run"), runs)
        shown.append(f"{found.plan} on {found.site}, {found.state} by {found.by}: {found.steps}")
        shown += [one.run for one in journal.up_on(found.site, runs)]
        found.begin("claim")
        found.done("claim")
        found.set("down")
        found.kept_plan()
    with guard.refusals(shown):
        shown.append(journal.Journal.open(runs / "run" / "plan", _plan()).run)
    _goes_on(path, data)
    return screen(*shown) + command("logs", "--no-follow", runs / "run")


def _goes_on(path: Path, data: bytes) -> None:
    """Fail where a secret has come into a record that was written anew.

    By what was in it, such as the word of the run or the names of jobs, the deployment is known to
    the site: that remains.
    """
    if (found := path.read_bytes()) != data:
        try:
            before = json.loads(data)
        except (ValueError, RecursionError):
            before = None  # a damaged one, in whose place another was written
        added = json.dumps(_added(before, json.loads(found)))
        assert guard.SECRET not in added, added
        written(path.parent, path.name, data)


def _added(before: object, now: object) -> object:
    """What is not as it was before, each value below its key."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return now
    other = {key: value for key, value in now.items() if key not in before or value != before[key]}
    return {key: _added(before.get(key), value) for key, value in other.items()}


def _claim(data: bytes, folder: Path) -> str:
    path = written(folder, "claim", data)
    shown = str(claim.take(path, "r1", "plan"))
    guard.message(shown)
    claim.release(path, "r1")
    return screen(shown)


def _copies(data: bytes, folder: Path) -> str:
    """Logs that were copied, of a deployment that is down."""
    place = folder / "run" / "plan" / "deployments" / "001"
    made = journal.Journal(place, "r", "plan", "site", "me", "now", state="down")
    made.write()
    written(place / "logs" / "n1", "rank_0.log", data)
    return command("logs", "--no-follow", folder / "run")


def _slurm(data: bytes, folder: Path) -> str:
    """What squeue, scontrol, sbatch and sinfo print, and files of jobs."""
    text = data.decode("utf-8", "replace")
    shown: list[object] = [slurm_commands.rows(text), slurm_commands.partitions(text)]
    found = slurm_commands.record(text)
    shown += [found, slurm_commands.exit_code(found.get("ExitCode", ""), "FAILED")]
    shown.append(slurm_commands.words(text))
    with guard.refusals([]):
        shown.append(slurm_commands.submitted(text))
    path = written(folder, "vllm_kimi.7.err", data)
    logs = job_logs.JobLogs(folder / "kept", lambda: {path: "../n/1"}, lambda: "")
    logs.read()
    shown += [logs.last("n", 0), logs.last_of("n"), job_book.end_of(path)]
    return screen(*shown)


def _jobs(data: bytes, folder: Path) -> str:
    """The record of jobs, with a queue."""
    path = written(folder, "jobs.json", data)
    wanted = _slurm_plan()
    book = job_book.Book(
        folder, "r", folder, wanted.jobs, [folder], [job.name for job in wanted.jobs]
    )
    shown: list[str] = []
    with guard.refusals(shown):
        queue = slurm_commands.rows(f"7|RUNNING||n1|1:00|{folder}|vllm_kimi|{book.comment}")
        shown.append(str(book.look(queue)))
        book.note("baseline", id=7)
    _goes_on(path, data)
    return screen(*shown)


@functools.cache
def _slurm_plan():
    return build.plan("k2.5", "h200", "single", variant="slurm")


TARGETS = (
    Target("node-answer", _answers, (b"fact\tlog\t", b"fact\tverb\t", b"fail\t", b"change\t",
           b"changed\t", b"warn\t", b"fact\tengines\tended 1\n", b"rank_0.log 0 ", b"fact\tlook 0\t0 ")),
    Target("journal", _journal, (), change.json_values),
    Target("claim", _claim),
    Target("kept-log", _copies),
    Target("slurm", _slurm, (b"|", b"JobState=", b"ExitCode=", b"(null)")),
    Target("jobs", _jobs, (), change.json_values),
)  # fmt: skip
