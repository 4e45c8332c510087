"""Deploy a plan on nodes, over SSH or on this machine.

Example::

    target = OnNodes(plan, bundle_folder, root, run_id, holder, connect)
    for step in target.steps:
        step.run()

Every node is checked before any node is changed, so that all problems are known beforehand.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from kimi_nb.bundle import writer
from kimi_nb.deploy import node_call, node_facts, node_looks, unreachable
from kimi_nb.deploy.node_answers import Answer, Line, Nodes
from kimi_nb.deploy.node_logs import NodeLogs
from kimi_nb.deploy.steps import Change, EngineState, Outcome, Step, StepFailed
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis, error_line
from kimi_nb.plan.spec import Plan
from kimi_nb.service import http_client, probe, readiness

# /sys/class/net may be another network's; this one is that of the process.
_INTERFACE = """grep -q '^ *{nic}:' /proc/net/dev || printf 'fail\\tinterface\\t%s\\n' \\
    "{nic} is not there; this node has $(sed -n 's/^ *\\([^:]*\\):.*/\\1/p' /proc/net/dev | paste -sd ' ')"
"""
_ANSWER = 5.0  # seconds for a probe in `status`
TITLES = {
    "reach": "the network",
    "claim": "take the nodes for this run",
    "prepare": "settings of the host",
    "engine": "the engine's image",
    "weights": "the weights",
    "push": "the scripts",
    "start": "the scripts, and start the engines",
}


class OnNodes:
    """A plan on nodes.

    Attributes:
        plan: The plan.
        root: The folder of the deployment, to which logs are copied.
        every: The time between two polls of the logs, in seconds.

    The arguments: ``files`` is the folder of the plan's bundle, ``connect`` reaches the nodes, and
    ``secrets`` are values by name, which are sent to the nodes and written nowhere; with
    ``download`` the weights that a node lacks are fetched, and with ``leave_host`` the settings of
    the hosts are left as they are.
    """

    def __init__(
        self,
        plan: Plan,
        files: Path,
        root: Path,
        run: str,
        holder: str,
        connect: Callable[[], Nodes],
        secrets: Mapping[str, str] | None = None,
        checksums: bool = False,
        every: float = 1.0,
        download: bool = False,
        leave_host: bool = False,
    ) -> None:
        self.plan, self._files, self.root = plan, files, root
        self._run, self._holder, self._secrets = run, holder, dict(secrets or {})
        self._checksums, self._connect, self.every = checksums, connect, every
        self._download, self._leave_host = download, leave_host
        self.logs = NodeLogs(self)
        self.steps: Sequence[Step] = (
            Step("reach", "reach every node", self.reach, always=True),
            Step(
                "claim", "take the nodes for this run, and look at each", self._claim, always=True
            ),
            *(
                Step(verb, self._title(verb), functools.partial(self._step, verb))
                for verb in ("prepare", "engine", "weights")
            ),
            Step("start", TITLES["start"], functools.partial(self._step, "push", "start")),
        )
        self._found: dict[str, dict[str, list[Line]]] = {}
        self._lost: list[str] = []  # nodes whose answer did not arrive whole

    def _title(self, verb: str) -> str:
        if verb == "weights" and self._download:
            log = f"{self.plan.request.site.paths.work}/weights-*.log"
            return f"download the weights that a node lacks; how far it is: {log} on the node"
        return TITLES[verb]

    @functools.cached_property
    def nodes(self) -> Nodes:
        """The nodes, reached at first use."""
        return self._connect()

    @property
    def url(self) -> str:
        """The URL of the front door."""
        return self.plan.url

    @property
    def log_folder(self) -> Path:
        """The folder to which the nodes' logs are copied."""
        return self.root / "logs"

    @property
    def after(self) -> Sequence[Step]:
        """No further steps."""
        return ()

    def queue(self) -> None:
        """Return None: there is no scheduler."""

    def serving(self) -> Plan:
        """Return the plan itself, because its addresses are those of the site."""
        return self.plan

    def text(self, node: str, verbs: Sequence[str], dry: bool = False, seen: str = "") -> str:
        """Return the script that bash is to run on the node."""
        return node_call.text(
            self._files / node,
            verbs,
            run=self._run,
            holder=self._holder,
            dry=dry,
            secrets=self._secrets,
            checksums=self._checksums,
            seen=seen,
            download=self._download,
            leave_host=self._leave_host,
        )

    # Steps ----------------------------------------------------------------------------

    def reach(self) -> Outcome:
        """Reach every node; one that cannot be reached does not hide the others."""
        gone = self.nodes.unreachable
        others = len(gone) < len(self.plan.nodes)
        if gone:
            raise StepFailed(
                "reach",
                [
                    Diagnosis(
                        "unreachable",
                        node,
                        None,
                        f"cannot be reached: {unreachable.why(gone[node])}",
                        f"ssh {self._address(node)}: {unreachable.why(gone[node])}",
                        unreachable.way_out(gone[node], others),
                    )
                    for node in self.plan.nodes
                    if node in gone
                ],
                Outcome(facts={"reached": [node for node in self.plan.nodes if node not in gone]}),
            )
        self._check_interfaces()
        return Outcome(warnings=self._check_links(), facts={"reached": list(self.plan.nodes)})

    def _check_interfaces(self) -> None:
        """Refuse a network interface of the site that a node has not.

        The engines would wait for each other until their time is up.
        """
        site = self.plan.request.site
        named = {node.name: node.nic or site.nic for node in site.nodes}
        texts = {
            node: _INTERFACE.format(nic=named[node].partition(":")[0])
            for node in self.plan.nodes
            if any(
                name.endswith("_SOCKET_IFNAME") and value == named[node]
                for engine in self.plan.of(node)
                for name, value in engine.env.items()
            )
        }
        answers = self.nodes.look(texts) if texts else {}
        failed = [
            self._diagnosis(node, "reach", line)
            for node, answer in answers.items()
            for line in answer.of("fail")
        ]
        if failed:
            raise StepFailed("reach", failed)

    def _check_links(self) -> tuple[Change, ...]:
        """Refuse a link between devices of two nodes that is down; return those not tried.

        The collectives would wait for each other until their time is up.
        """
        if self.plan.transport != "ssh":
            return ()
        hardware = self.plan.request.hardware
        seen = node_looks.links(self.nodes, hardware, self.plan.nodes, every=False)
        down, unknown = node_looks.diagnoses(seen)
        if down:
            raise StepFailed("reach", down)
        return tuple(Change(node, what) for node, what in unknown)

    def undone(self, step: str) -> bool:
        """Return whether engines that were started have ended; see `_claim`, which looks."""
        return step == "start" and any(
            line.kind == "change" for found in self._found.values() for line in found.get(step, ())
        )

    def preview(self) -> list[Change]:
        """Return what the steps would change. Raises StepFailed if anything is wrong on a node."""
        self.reach()
        self._look(["look", node_call.DRY, *node_call.VERBS], self.nodes.look)
        return [
            Change(node, f"{line.thing}: {line.text}")
            for verb in node_call.VERBS
            for node, by_verb in self._found.items()
            for line in by_verb.get(verb, ())
            if line.kind == "change"
        ]

    def diff(self) -> str:
        """Return the changes of the scripts on the nodes as ``diff -u``."""
        before: dict[str, str] = {}
        after: dict[str, str] = {}
        for node, by_verb in self._found.items():
            for line in by_verb.get("push", ()):
                if line.thing != "file":
                    continue
                try:
                    name, data = node_facts.file(line.text)
                except ValueError:
                    continue
                path = self._files / node / name
                if path.is_file():
                    before[f"{node}/{name}"] = data.decode("utf-8", "replace")
                    after[f"{node}/{name}"] = path.read_text(encoding="utf-8")
        return writer.unified(before, after)

    def _claim(self) -> Outcome:
        """Claim every node and check it in the same call.

        If anything is wrong on any node, the claims are released and nothing else is changed. A
        node that did not answer may hold its claim; the failure's outcome names it as changed.
        """
        claim, *others = node_call.VERBS
        try:
            self._look(
                ["look", claim, node_call.DRY, *others],
                functools.partial(self.nodes.change, verb=claim),
            )
        except StepFailed as error:
            taken = [
                node
                for node, by_verb in self._found.items()
                if any(line.kind == "changed" for line in by_verb.get(claim, ()))
            ]
            texts = {node: self.text(node, ["release"]) for node in taken}
            released = self.nodes.change(texts, "release") if texts else {}
            left = [
                *(node for node in self._lost if claim not in self._found[node]),
                *(node for node, one in released.items() if not one.of("changed", "same")),
            ]
            changes = tuple(
                Change(node, "claim: perhaps held: an answer was lost") for node in left
            )
            raise StepFailed(error.step, error.failed, Outcome(changes)) from None
        return Outcome(self._said("changed"), self._said("warn"), dict.fromkeys(self.plan.nodes, 0))

    def _said(self, kind: str) -> tuple[Change, ...]:
        return tuple(
            Change(node, f"{line.thing}: {line.text}")
            for node, by_verb in self._found.items()
            for lines in by_verb.values()
            for line in lines
            if line.kind == kind
        )

    def _look(
        self, verbs: Sequence[str], ask: Callable[[dict[str, str]], dict[str, Answer]]
    ) -> None:
        answers = ask({node: self.text(node, verbs) for node in self.plan.nodes})
        self._found = {node: _by_verb(answer) for node, answer in answers.items()}
        self._lost = [node for node, answer in answers.items() if answer.error]
        wrong = [
            (verb, self._diagnosis(node, verb, line))
            for verb in ("look", *node_call.VERBS)
            for node, by_verb in self._found.items()
            for line in by_verb.get(verb, ())
            if line.kind == "fail"
        ]
        # What runs on a node that another run holds is that run's: its ports say nothing more.
        held = {one.node for verb, one in wrong if verb == "claim"}
        wrong = [(verb, one) for verb, one in wrong if verb == "claim" or one.node not in held]
        wrong += [("look", self._silent(node, answers[node])) for node in self._lost]
        if wrong:
            raise StepFailed(wrong[0][0], [one for _, one in wrong])

    def _step(self, *verbs: str) -> Outcome:
        """Run verbs on the nodes where the check found something to change."""
        name = verbs[-1]
        texts = {
            node: self.text(node, verbs)
            for node in self.plan.nodes
            if any(
                line.kind == "change" for verb in verbs for line in self._found[node].get(verb, ())
            )
        }
        if not texts:
            return Outcome()
        ended: tuple[Change, ...] = ()
        if name == "start":
            ended = self._ended_before(texts)
            texts |= self._whole_groups(texts)
        answers = self.nodes.change(texts, name)
        out = Outcome(
            _changes(answers, "changed"),
            (*ended, *_changes(answers, "warn")),
            {
                node: int(bool(answer.error or answer.of("fail")))
                for node, answer in answers.items()
            },
        )
        if name == "start":
            self.logs.begin(texts)
        if failed := self._failures(answers):
            raise StepFailed(name, failed, out)
        return out

    def _failures(self, answers: Mapping[str, Answer]) -> list[Diagnosis]:
        """Return what is wrong on nodes that were to change something."""
        failed = [
            self._diagnosis(node, verb, line)
            for node, answer in answers.items()
            for verb, lines in _by_verb(answer).items()
            for line in lines
            if line.kind == "fail"
        ]
        return failed + [
            self._silent(node, answer) for node, answer in answers.items() if answer.error
        ]

    def _ended_before(self, nodes: Iterable[str]) -> tuple[Change, ...]:
        """Return how the engines that this run has started before came to their end."""
        answers = self.nodes.look({node: self.text(node, ["state"]) for node in nodes})
        out = []
        for node, answer in answers.items():
            for line in answer.of("fact"):
                if line.thing == "engines":
                    with contextlib.suppress(ValueError):
                        program = node_facts.program(line.text)
                        if not program.runs:
                            how = readiness.how(program.code)
                            out.append(Change(node, f"engines: had ended with {how}"))
        return tuple(out)

    def _whole_groups(self, starting: Iterable[str]) -> dict[str, str]:
        """Stop the other nodes of the starting groups; return the scripts to start them again.

        The ranks of a group meet only once, when they start, so they have to start together. Raises
        StepFailed if one could not be stopped: the new ranks would wait for its old ones.
        """
        groups = {
            (engine.role, engine.group) for engine in self.plan.engines if engine.node in starting
        }
        others = {
            engine.node for engine in self.plan.engines if (engine.role, engine.group) in groups
        } - set(starting)
        running = {node: self.text(node, ["stop"]) for node in self.plan.nodes if node in others}
        answers = self.nodes.change(running, "stop") if running else {}
        if failed := self._failures(answers):
            raise StepFailed("start", failed, Outcome(_changes(answers, "changed")))
        return {node: self.text(node, ["push", "start"]) for node in running}

    def open_door(self) -> Outcome:
        """Start the front door; every engine must be ready."""
        router = self.plan.router
        if router is None:
            return Outcome()
        self._found[router.node] = {"open": [Line("change", "router", "")]}
        self._found |= {node: {} for node in self.plan.nodes if node != router.node}
        return self._step("open")

    # State ----------------------------------------------------------------------------

    def poll(self, verbs: Sequence[str] = ("state", "tails")) -> dict[str, Answer]:
        """Return what runs on each node, and what is new in its logs."""
        return self.nodes.look(
            {
                node: self.text(node, verbs, seen=self.logs.seen(node))
                for node in self.plan.nodes
                if node not in self.nodes.unreachable
            }
        )

    def ended(self) -> dict[str, int]:
        """Return exit codes of what has ended, by "NODE engines" or the router's name."""
        return dict(self.logs.codes)

    def memory_mb(self) -> float:
        """Return the memory of the service's processes in MB; 0 if they run in containers."""
        return round(sum(self.logs.memory.values()) / 1024, 1)

    def follow(self, stop: Callable[[], bool]) -> Iterator[tuple[str, str]]:
        """Yield (node and program or rank, line) of every log, until ``stop`` returns true."""
        shown: dict[str, int] = {}
        for node, why in self.nodes.unreachable.items():
            yield node, f"cannot be reached: {unreachable.why(why)}"
        told: set[str] = set()
        strange: set[str] = set()
        while True:
            last = stop()
            self.logs.read(now=True)
            for log in self.logs.all():
                at = shown.get(log.file, 0)
                for line in log.lines[at:]:
                    yield f"{log.node} {Path(log.file).stem}", line
                shown[log.file] = len(log.lines)
            for node in self.logs.strange.keys() - strange:
                strange.add(node)
                yield node, f"sent a line that is no answer: {self.logs.strange[node]}"
            for node in self.logs.lost() - told:
                told.add(node)
                yield node, "gives no answer any more"
            if last:
                return
            time.sleep(self.every)

    def status(self) -> list[EngineState]:
        """Return the state of every engine, from its process and, if possible, a completion.

        The parts of a KV store follow.
        """
        self.logs.read(now=True)
        ways = {one.engine: one for one in probe.endpoints(self.plan)}
        key = self._secrets.get(self.plan.secrets.get("VLLM_API_KEY", ""), "")
        out = []
        for engine in self.plan.engines:
            state, one = self.logs.states.get(engine.node, "not started"), ways.get(engine.name)
            error = mark = ""
            if engine.node in self.nodes.unreachable:
                state = "unreachable"
            elif state == "starting" and one is not None and http_client.listens(one.url, _ANSWER):
                reply = probe.chat(one, self.plan.served_name, 6 * _ANSWER, key=key, max_tokens=4)
                state = "ready" if reply.answered else state
                error = "" if reply.answered else self._why_not(reply)
                mark = reply.mark
            out.append(
                EngineState(
                    engine.name,
                    engine.node,
                    engine.rank,
                    engine.http_port,
                    state,
                    error
                    or self._last_error(engine.node, engine.rank)
                    or self.logs.strange.get(engine.node, ""),
                    mark,
                )
            )
        return out + self._of_store()

    def _of_store(self) -> list[EngineState]:
        """Return the state of each part of the KV store, from its process."""
        store = self.plan.store
        if store is None:
            return []
        master, service = readiness.STORE
        parts = [(store.node, master, store.port)]
        parts += [(node, service, store.service_port or 0) for node in store.services]
        return [
            EngineState(
                name,
                node,
                None,
                port,
                "unreachable"
                if node in self.nodes.unreachable
                else self.logs.parts.get((node, name), "not started"),
            )
            for node, name, port in parts
        ]

    def _why_not(self, reply: http_client.Reply) -> str:
        """Return what an engine answered instead of a completion; "" if it may be too early."""
        if reply.status in (401, 403):
            names = ", ".join(sorted(set(self.plan.secrets.values()))) or "VLLM_API_KEY"
            return f"asks for a key: {reply.status}; export {names}=... here"
        if reply.fault in http_client.PLAIN:
            return reply.error
        return f"HTTP {reply.status}: {reply.text[:120]}" if reply.status >= 400 else ""

    def _last_error(self, node: str, rank: int) -> str:
        """Return the last error line of a rank, or of its node if the rank has no log."""
        mine = [log for log in self.logs.all() if log.node == node]
        lines = [line for log in mine if log.rank == rank for line in log.lines] or [
            line for log in mine if log.rank is None for line in log.lines
        ]
        return next((line for line in reversed(lines) if error_line(line)), "")

    # The end --------------------------------------------------------------------------

    def down(self) -> Outcome:
        """Stop everything on the nodes that can be reached, and release them.

        Raises StepFailed with the other nodes afterwards.
        """
        there = [node for node in self.plan.nodes if node not in self.nodes.unreachable]
        changes: list[Change] = []
        warnings: list[Change] = []
        try:
            self.logs.read(now=True)  # the last lines are not lost
        except OSError as error:  # such as a full disk: everything is stopped all the same
            unkept = f"logs: the last lines are not kept: {error.strerror}"
            warnings.append(Change("this machine", unkept))
        failed: list[Diagnosis] = []
        for verb in ("stop", "release"):
            answers = self.nodes.change({node: self.text(node, [verb]) for node in there}, verb)
            changes += _changes(answers, "changed")
            warnings += _changes(answers, "warn")
            for node, answer in answers.items():
                failed += [self._diagnosis(node, verb, line) for line in answer.of("fail")]
                if answer.error:
                    failed.append(self._silent(node, answer))
            there = [
                node for node in there if not answers[node].error and not answers[node].of("fail")
            ]
        failed += [
            Diagnosis(
                "unreachable",
                node,
                None,
                f"cannot be reached: {unreachable.why(why)}",
                f"ssh {self._address(node)}: {unreachable.why(why)}",
                remedies.of("node/unreachable"),
            )
            for node, why in self.nodes.unreachable.items()
        ]
        out = Outcome(tuple(changes), tuple(dict.fromkeys(warnings)))
        if failed:
            raise StepFailed("down", failed, out)
        return out

    def close(self) -> None:
        """Close the connections; what runs on the nodes continues."""
        if "nodes" in self.__dict__:
            self.nodes.close()

    # Diagnoses ------------------------------------------------------------------------

    def _address(self, node: str) -> str:
        return self.plan.of(node)[0].address

    def _diagnosis(self, node: str, verb: str, line: Line) -> Diagnosis:
        # Of a path, its last part.
        thing = "disk" if "No space left" in line.text else line.thing.rpartition("/")[2]
        if self._download and thing == "weights":
            thing = "download"
        return Diagnosis(
            f"{verb}-{line.thing}".strip("-"),
            node,
            None,
            f"{TITLES.get(verb, verb)}: {line.thing}: {line.text}",
            f"node.sh {verb}",
            remedies.first((f"node/{thing}", f"node/{verb}"), node=node),
        )

    def _silent(self, node: str, answer: Answer) -> Diagnosis:
        return Diagnosis(
            "no-answer",
            node,
            None,
            f"gave no answer: {answer.error.removeprefix('no answer: ')}",
            "node.sh",
            remedies.of("node/silent", node=node),
        )


def _changes(answers: Mapping[str, Answer], kind: str) -> tuple[Change, ...]:
    """Return the lines of one kind."""
    return tuple(
        Change(node, f"{line.thing}: {line.text}")
        for node, answer in answers.items()
        for line in answer.of(kind)
    )


def _by_verb(answer: Answer) -> dict[str, list[Line]]:
    """Return the lines of an answer by the verb that wrote them."""
    out: dict[str, list[Line]] = {}
    verb = ""
    for line in answer.lines:
        if (line.kind, line.thing) == ("fact", "verb"):
            verb = line.text
        else:
            out.setdefault(verb, []).append(line)
    return out
