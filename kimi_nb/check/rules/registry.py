"""The registry of the rules: it finds them and applies them to a deployment.

>>> from kimi_nb.check.rules import registry
>>> registry.all_rules()["topology/ranks"].says
'The nodes of a group cover each rank once.'

`registry.check(deployment)` applies every rule and returns the findings. A rule is a small pure
function that yields what is wrong. Its docstring tells the user what breaks in practice, and is
printed by ``kimi-nb list --rules``. To add a rule, write a function in the module of its family and
a case in ``kimi_nb/data/check/rules/``. Every module beside this one is a family.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kimi_nb.check import ignoring
from kimi_nb.check.findings import ERROR, SEVERITIES, WARNING, Finding, Findings
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import Table

# The order in which rules are listed and findings told; other families follow by name.
_ORDER = (
    "topology",
    "topology_groups",
    "topology_headless",
    "topology_sharing",
    "topology_disaggregation",
    "engine",
    "engine_settings",
    "engine_models",
    "engine_experts",
    "engine_names",
    "engine_needs",
    "engine_spelling",
    "json_flags",
    "variables",
    "variables_features",
    "engine_cpu",
    "capacity",
    "store",
    "security",
    "shell",
    "client",
    "client_requests",
    "client_bodies",
    "containers",
    "containers_build",
    "containers_words",
    "manifests",
    "programs",
    "programs_tools",
    "programs_install",
    "truth",
    "truth_claims",
)


@dataclass(frozen=True)
class Problem:
    """What a rule yields; ``fix`` and ``severity`` replace the rule's own if they are given."""

    spot: Spot
    message: str
    fix: str = ""
    severity: str = ""


Find = Callable[[Deployment], Iterable[Problem]]


@dataclass(frozen=True)
class Rule:
    """A rule: ``says`` is what must hold, ``needs`` the facts without which it is skipped."""

    id: str
    severity: str
    says: str
    fix: str
    source: str
    needs: tuple[str, ...]
    find: Find

    @property
    def why(self) -> str:
        """What breaks in practice, from the docstring of the function."""
        return " ".join((self.find.__doc__ or "").split())


# Families of what differs between versions of the engine.
_BY_VERSION = ("engine/", "json/", "variables/")
_LONGEST = 400  # of a message, whatever a script holds
_RULES: dict[str, Rule] = {}
# The rule that looks at what the others found.
UNUSED = "ignores/unused"
# Rules that miss an engine or a service where another one is: of one script it is not known.
_OTHER_SIDE = {"client/port", "client/host", "client/model-name", "topology/proxy"}
# Rules of these families that look at one command, not at what holds between several.
_ALONE = {
    "topology/devices",
    "topology/visible-devices",
    "topology/rank-range",
    "topology/port-range",
    "topology/proxy-lists",
}


def of_reading(identity: str, why: str, module: str) -> Callable[[Deployment], Iterator[Problem]]:
    """Return a rule's function that tells what reading the files has found already.

    ``module`` is that of the rule, by which rules are ordered.
    """

    def find(d: Deployment) -> Iterator[Problem]:
        for fault in d.faults:
            if fault.rule == identity:
                yield Problem(fault.spot, fault.message, "", fault.severity)

    find.__doc__, find.__module__ = why, module
    return find


def rule(
    identity: str, severity: str, says: str, fix: str, source: str, needs: tuple[str, ...] = ()
) -> Callable[[Find], Find]:
    """Register the decorated function as a rule."""
    assert severity in SEVERITIES and identity not in _RULES, identity

    def register(find: Find) -> Find:
        _RULES[identity] = Rule(identity, severity, says, fix, source, needs, find)
        return find

    return register


@functools.cache
def all_rules() -> dict[str, Rule]:
    """Return every rule by its id, family after family."""
    folder = importlib.import_module(str(__package__)).__path__
    there = {module.name for module in pkgutil.iter_modules(folder)} - {"registry"}
    families = [*_ORDER, *sorted(there.difference(_ORDER))]
    for family in families:
        importlib.import_module(f"{__package__}.{family}")
    order = {f"{__package__}.{family}": index for index, family in enumerate(families)}
    return dict(sorted(_RULES.items(), key=lambda item: order[item[1].find.__module__]))


@dataclass(frozen=True)
class _Fact:
    """What a rule may need: whether a deployment has it, why it has not, and what has it."""

    holds: Callable[[Deployment], bool]
    missing: str
    what: str


_FACTS: dict[str, _Fact] = {
    "model": _Fact(
        lambda d: d.model is not None,
        "the model is none of those whose facts are known",
        "a model whose facts are known",
    ),
    "weights": _Fact(
        lambda d: d.weights is not None,
        "the checkpoint is none that is known",
        "a checkpoint that is known",
    ),
    "hardware": _Fact(
        lambda d: d.hardware is not None,
        "what the nodes are is not known (--hw says it)",
        "nodes that are known (--hw)",
    ),
    "devices": _Fact(
        lambda d: d.devices_per_node is not None,
        "how many devices a node has is not known (--hw says it)",
        "nodes whose number of devices is known (--hw)",
    ),
    "version": _Fact(
        lambda d: d.engine_known,
        "the version is not known (--engine and --engine-version say it)",
        "a version that is known (--engine-version)",
    ),
    "named version": _Fact(
        lambda d: d.engine_known or bool(d.engine_stated),
        "the version is not known (--engine and --engine-version say it)",
        "a version that is named (--engine-version)",
    ),
    "ascend": _Fact(lambda d: d.ascend, "the engine is not vllm-ascend", "vllm-ascend"),
    "plan": _Fact(lambda d: d.plan is not None, "only a plan has it", "a plan"),
    "scripts": _Fact(
        lambda d: bool(d.programs or d.faults or d.plan is None),
        "only scripts have it",
        "scripts",
    ),
    "claims": _Fact(
        lambda d: bool(d.claims), "only a document makes claims", "a document that makes claims"
    ),
}


def families() -> list[str]:
    """Return the families of rules, which are the first words of their ids."""
    return list(dict.fromkeys(name.partition("/")[0] for name in all_rules()))


def needed(rule: Rule) -> str:
    """Return what a rule is asked of, if it is not asked of every deployment; "" otherwise."""
    return ", ".join(_FACTS[fact].what for fact in rule.needs)


def find(identity: str) -> Rule:
    """Return a rule by its id. Raises ParameterError, with the nearest ids, if there is none."""
    known = all_rules()
    if identity not in known:
        raise ParameterError(unknown(identity))
    return known[identity]


def unknown(identity: str) -> str:
    """Return the sentence for the name of a rule that does not exist, with the nearest ones."""
    known = all_rules()
    short = {name.partition("/")[2]: name for name in reversed(known)}  # flag-unknown
    word = identity.casefold()
    near = difflib.get_close_matches(word, [*known, *short], n=3)
    guesses = list(dict.fromkeys(short.get(name, name) for name in near))
    guess = f"; did you mean {' or '.join(guesses)}?" if guesses else "."
    return f"rule {identity!r} is not known{guess} kimi-nb list --rules lists all {len(known)}."


def check(deployment: Deployment) -> Findings:
    """Apply every rule whose facts are known.

    Findings that say the same of several engines become one.
    """
    out: dict[tuple[str, str, str, str], list[tuple[Spot, str]]] = {}
    skipped: dict[str, str] = {}
    known = all_rules()
    places = _places(deployment)
    # A published recipe, and a plan, have all of their parts.
    alone = deployment.read is not None and _in_one_file(deployment)
    for identity, one in known.items():
        missing = [_FACTS[fact].missing for fact in one.needs if not _FACTS[fact].holds(deployment)]
        if missing:
            skipped[identity] = missing[0]
            continue
        if identity == UNUSED:
            continue  # asked below, when the others have been
        between = identity.startswith(("topology/", "client/")) and identity not in _ALONE
        for problem in one.find(deployment):
            severity = problem.severity or one.severity
            if between and severity == ERROR and problem.spot.file in deployment.documents:
                severity = WARNING  # its commands may be alternatives, not one deployment
            if deployment.outside and severity == ERROR and identity.startswith(_BY_VERSION):
                severity = WARNING  # only what two listed versions refuse is sure for another
            if identity in _OTHER_SIDE and severity == ERROR and alone:
                severity = WARNING  # it may stand in a file, or on a host, that is not here
            if _of_shell(identity) and not problem.severity and not _in_engine(places, problem):
                # What another program makes of it, and whether it runs at all, is not known.
                severity = WARNING if severity == ERROR else severity
            key = (identity, severity, problem.message, problem.spot.file)
            out.setdefault(key, []).append((problem.spot, problem.fix or one.fix))
    told = [_finding(known[key[0]], key[1], key[2], spots) for key, spots in out.items()]
    findings, ignored, marked = ignoring.applied(told, deployment)
    if UNUSED not in skipped:
        unused = known[UNUSED]
        findings += [
            _finding(unused, unused.severity, one.message, [(one.spot, unused.fix)])
            for one in unused.find(marked)
        ]
    order = {kind: index for index, kind in enumerate(SEVERITIES)}
    findings.sort(key=lambda found: order[found.severity])  # stable: families stay together
    seen = {
        name: len(getattr(deployment, name))
        for name in ("servers", "proxies", "clients", "boxes", "launchers", "batches")
    }
    unread = tuple(
        {"file": spot.file, "line": spot.line, "reason": why} for spot, why in deployment.unread
    )
    return Findings(
        deployment.title,
        str(deployment.engine),
        tuple(findings),
        len(known),
        skipped,
        unread,
        seen,
        deployment.read,
        paths=deployment.paths,
        ignored=ignored,
    )


def _in_one_file(deployment: Deployment) -> bool:
    """Return whether everything that serves or asks stands in one file."""
    spots = [
        *(one.spot for one in deployment.servers),
        *(one.spot for one in deployment.proxies),
        *(one.spot for one in deployment.clients),
        *(one.spot for one in deployment.launchers),
        *(one.spot for one in deployment.boxes),
    ]
    return len({spot.file for spot in spots}) < 2


def _of_shell(identity: str) -> bool:
    return identity.startswith("shell/") and identity != "shell/yaml"


def _places(deployment: Deployment) -> dict[str, list[range]]:
    """Return the lines of vLLM's own commands, and of proxies and containers of engines, by file.

    A line more at both ends is theirs: there they are cut off.
    """
    out: dict[str, list[range]] = {}
    commands = [
        *((one.spot, one.lines) for one in (*deployment.servers, *deployment.fragments)),
        *((one.spot, ()) for one in deployment.proxies),
        *((one.spot, ()) for one in deployment.clients if one.argv[:1] == ("vllm",)),
    ]
    for spot, more in commands:
        lines = (spot.line, *more)
        out.setdefault(spot.file, []).append(range(min(lines) - 1, max(lines) + 2))
    for box in deployment.boxes:
        if not box.runs_engine:
            continue
        after = [span for span in out.get(box.spot.file, ()) if span.stop > box.spot.line]
        if after:
            ends = min(span.stop for span in after)
            out[box.spot.file].append(range(box.spot.line - 1, ends))
    return out


def _in_engine(places: dict[str, list[range]], problem: Problem) -> bool:
    return any(problem.spot.line in span for span in places.get(problem.spot.file, ()))


def _finding(rule: Rule, severity: str, message: str, spots: list[tuple[Spot, str]]) -> Finding:
    spot, fix = spots[0]
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
    names = list(dict.fromkeys(each.name for each, _ in spots))
    where = names[0] if len(names) < 2 else f"{names[0]} and {len(names) - 1} more"
    lines = {each.line for each, _ in spots if each.file == spot.file and each.line} - {spot.line}
    return Finding(
        rule.id,
        severity,
        where,
        message,
        fix,
        rule.source,
        spot.file,
        spot.line,
        tuple(sorted(lines)),
    )


def as_dict(one: Rule) -> dict[str, object]:
    """Return a rule as plain values."""
    return {
        "rule": one.id,
        "severity": one.severity,
        "says": one.says,
        "why": one.why,
        "fix": one.fix,
        "source": one.source,
        "needs": list(one.needs),
    }


def table(known: Iterable[Rule]) -> Table:
    """Return rules as a table."""
    rows = tuple((one.id, one.severity, one.says, one.why) for one in known)
    return Table(f"{len(rows)} rules", ("rule", "severity", "what must hold", "what breaks"), rows)
