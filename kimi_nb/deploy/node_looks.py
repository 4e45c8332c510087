"""Look at nodes before anything is started there, and from node to node; nothing is changed.

Example::

    found = node_looks.of_site(hardware, site, weights, "pd")
    found.failed  # ("a3-1 link",)
    found.table()  # node, check, OK or not, what was found, what to do

A node that cannot be reached, and a program that is missing, are rows like any other. `links` makes
the checks from node to node alone, which a deployment makes as well.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kimi_nb import catalog, show
from kimi_nb.bundle import inventory, scripts, writer
from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import node_facts, unreachable
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.deploy.node_answers import Answer, Nodes
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.params import schema
from kimi_nb.plan.spec import Plan
from kimi_nb.service import prerequisites
from kimi_nb.service.prerequisites import Look, Seen

_MOST = 3  # failures of one check that are shown
_EACH = 20  # seconds for one look
_ALL = 240  # seconds after which a node makes no further look; the transport waits longer
_MISSING, _LATE = 127, 125  # the exit codes of a program that is missing, and of no time left
# Causes that have another id in the table of remedies.
_CAUSES = {"disk": "node/room", "weights": "node/weights", "hccn-conf": "node/hccn.conf"}
# The worst first; one look that was made says more than those that were not.
_STATUS = {"fail": "fail", "pass": "OK", "skipped": "not looked"}
# The words behind the number are a command. What it says may be a long table.
_SCRIPT = r"""
one() {
    local out code=0
    if [ "$SECONDS" -gt "$ALL" ]; then code=$LATE out=
    elif ! command -v "$2" > /dev/null; then code=$MISSING out="$2: command not found"
    else out=$(timeout -k 1 "$EACH" "${@:2}" 2>&1 < /dev/null) || code=$?
    fi
    printf 'fact\tlook %s\t%s %s\n' "$1" "$code" "$(printf %s "$out" | head -c 2000 | base64 -w 0)"
}
"""


@dataclass(frozen=True)
class Row:
    """All looks of one check on one node: pass, fail or skipped, what was found, what to do."""

    node: str
    check: str
    status: str
    found: str
    help: str = ""


@dataclass(frozen=True, repr=False)
class NodeLooks(show.Shown):
    """The results of all checks of all nodes."""

    site: str
    rows: tuple[Row, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The nodes and checks that failed, as "NODE CHECK"."""
        return tuple(f"{one.node} {one.check}" for one in self.rows if one.status == "fail")

    @property
    def counts(self) -> dict[str, int]:
        """How many rows passed, failed and were skipped."""
        return {status: sum(one.status == status for one in self.rows) for status in _STATUS}

    def table(self) -> show.Table:
        """Return a row for each node and check."""
        total = self.counts
        return show.Table(
            f"{self.site}: {total['pass']} OK, {total['fail']} failed, "
            f"{total['skipped']} not looked",
            ("node", "check", "is", "found", "what to do"),
            tuple(
                (one.node, one.check, _STATUS[one.status], one.found, one.help) for one in self.rows
            ),
        )


def of_site(
    hardware: schema.Hardware,
    site: schema.Site,
    weights: schema.Weights,
    layout: str,
    install: str = "docker",
    engine: catalog.Engine | None = None,
) -> NodeLooks:
    """Look at every node of a site that is reached over SSH, or that is this machine.

    The arguments are those of `prerequisites.looks`. Raises ParameterError for a private key that
    is not there.
    """
    looks = list(prerequisites.looks(hardware, site, weights, layout, install, engine))
    names = [node.name for node in site.nodes]
    with tempfile.TemporaryDirectory() as folder:
        nodes = _connect(site, Path(folder))
        try:
            there = [name for name in names if name not in nodes.unreachable]
            seen = _ask(nodes, hardware, {name: _but_itself(looks, site, name) for name in there})
            for name, found in links(nodes, hardware, there, layout).items():
                seen[name] += found
            gone = dict(nodes.unreachable)
        finally:
            nodes.close()
    rows: list[Row] = []
    for name in names:
        if name in gone:
            rows.append(
                Row(
                    name,
                    "reached",
                    "fail",
                    f"cannot be reached: {unreachable.why(gone[name])}",
                    unreachable.way_out(gone[name], len(gone) < len(names)),
                )
            )
        else:
            rows += _rows(name, seen[name])
    return NodeLooks(site.name, tuple(rows))


def of_cluster(plan: Plan) -> NodeLooks:
    """Look at a SLURM cluster from its login node: the controller, partitions, folders and jobs."""
    from kimi_nb.deploy.slurm.cluster import LOGIN, Cluster  # start-up: only under SLURM

    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(plan, scripts.files(plan), Path(folder), "look", lambda text: None)
        wrong, said = cluster.look()
    rows = [Row(one.node, one.kind, "fail", one.cause, one.help) for one in wrong]
    if not wrong:
        rows.append(Row(LOGIN, "SLURM", "pass", said))
    rows.append(
        Row(
            "the nodes",
            "devices, driver, network",
            "skipped",
            "SLURM gives a node to a job only, so that none can be looked at before one runs",
        )
    )
    return NodeLooks(plan.site, tuple(rows))


def _connect(site: schema.Site, folder: Path) -> Nodes:
    if site.transport == "local":
        return LocalNodes()
    from kimi_nb.deploy.ssh.transport import SshNodes  # start-up: only over SSH

    check_key(site)
    listed = inventory.hosts_of(site, {node.name: node.address for node in site.nodes})
    writer.write(inventory.of_nodes(site, listed), folder / "files")
    return SshNodes(listed, folder / "files" / "deploy", folder / "ssh.log")


def check_key(site: schema.Site) -> None:
    """Refuse a private key that is not on this machine."""
    key = site.ssh.key_file
    if key is not None and not Path(key).expanduser().is_file():
        raise ParameterError(
            f"Site {site.name}, ssh.key_file {key}: there is no such file on this "
            "machine. Name the private key, or leave it out for the agent's and "
            "those of ~/.ssh."
        )


def _but_itself(looks: Sequence[Look], site: schema.Site, name: str) -> list[Look]:
    """Return the looks of a node; it does not look whether it reaches itself."""
    own = {node.name: node.address for node in site.nodes}[name]
    return [one for one in looks if not (one.argv[0] == "ping" and one.argv[-1] == own)]


# From node to node ------------------------------------------------------------------------


def links(
    nodes: Nodes,
    hardware: schema.Hardware,
    names: Sequence[str],
    layout: str = "",
    every: bool = True,
) -> dict[str, list[Seen]]:
    """Check the links between the devices of these nodes; return what each node has seen.

    Each node tries one device of every other node. With ``every`` each of its devices also tries
    the same one of the next node, so that every device has sent and answered once. Without a
    ``layout`` it is any of several nodes.
    """
    checks = {
        name: check
        for name, check in hardware.checks.items()
        if check.each == "link" and (not layout or layout in check.layouts)
    }
    if not checks or len(names) < 2:
        return {}
    devices = range(hardware.devices.count if every else 1)
    asked = prerequisites.addresses(hardware, devices)
    found = _ask(nodes, hardware, {name: list(asked.values()) for name in names})
    known = {
        (name, *key): prerequisites.address_in(seen)
        for name in names
        for key, seen in zip(asked, found[name], strict=False)
    }
    out: dict[str, list[Seen]] = {
        name: [one for one in found[name] if not prerequisites.address_in(one)] for name in names
    }
    tries: dict[str, list[Look]] = {name: [] for name in names}
    for name, (check_name, check), device, peer, other in _pairs(names, checks, len(devices)):
        address = known.get((peer, check_name, other), "")
        one = prerequisites.link(check, check_name, device, peer, other, address)
        if address and known.get((name, check_name, device)):
            tries[name].append(one)
        elif known.get((name, check_name, device)):
            out[name].append(Seen(one, "skipped", f"{peer} does not say the address of {other}"))
    for name, seen in _ask(nodes, hardware, tries).items():
        out[name] += seen
    return out


def _pairs(
    names: Sequence[str], checks: Mapping[str, schema.Check], devices: int
) -> Iterator[tuple[str, tuple[str, schema.Check], int, str, int]]:
    """Yield (node, check, device, other node, its device) of every link that is tried."""
    for at, name in enumerate(names):
        for check in checks.items():
            for distance in range(1, len(names)):
                peer = names[(at + distance) % len(names)]
                several = range(devices) if distance == 1 else ((distance - 1) % devices,)
                for device in several:
                    yield name, check, device, peer, device


def diagnoses(seen: Mapping[str, Sequence[Seen]]) -> tuple[list[Diagnosis], list[tuple[str, str]]]:
    """Return the links that are down, and (node, what) of those about which nothing is known."""
    down: list[Diagnosis] = []
    unknown: list[tuple[str, str]] = []
    for node, found in seen.items():
        for one in found:
            what = f"{one.look.name}: {one.found}"
            if one.status == "fail" and _is_broken(one):
                down.append(
                    Diagnosis(
                        "link-down", node, None, what, shlex.join(one.look.argv), _help(node, one)
                    )
                )
            elif one.status != "pass":
                unknown.append((node, f"link not tried: {what}"))
    return down, unknown


def _is_broken(seen: Seen) -> bool:
    return bool(seen.look.broken and re.search(seen.look.broken, seen.text))


# Asking ----------------------------------------------------------------------------------


def _ask(
    nodes: Nodes, hardware: schema.Hardware, looks: Mapping[str, Sequence[Look]]
) -> dict[str, list[Seen]]:
    """Make looks on nodes, at the same time on each; a node without an answer fails each."""
    texts = {
        name: _text(hardware, mine)
        for name, mine in looks.items()
        if mine and name not in nodes.unreachable
    }
    answers = nodes.look(texts) if texts else {}
    return {
        name: list(_seen(mine, answers[name])) if name in answers else []
        for name, mine in looks.items()
    }


def _text(hardware: schema.Hardware, looks: Sequence[Look]) -> str:
    """Return the script for a node. What waits for another node goes on beside the others."""
    lines = [
        f"ALL={_ALL} EACH={_EACH} LATE={_LATE} MISSING={_MISSING}",
        f"PATH=$PATH:{shlex.quote(':'.join(['/usr/sbin', '/sbin', *_tools(hardware)]))}",
    ]
    for number, one in enumerate(looks):
        waits = " &" if one.argv[0] == "ping" else ""
        lines.append(f"one {number} {shlex.join(_carried(one.argv))}{waits}")
    return "\n".join([_SCRIPT, *lines, "wait", ""])


def _tools(hardware: schema.Hardware) -> list[str]:
    """Return the folders of the driver's programs, which a container gets from the host.

    They are not on the PATH of a login without a terminal.
    """
    places = hardware.container.mounts if hardware.container else ()
    programs = {check.argv[0] for check in hardware.checks.values()}
    found = (PurePosixPath(place.partition(":")[0]) for place in places)
    return list(dict.fromkeys(str(one.parent) for one in found if one.name in programs))


def _carried(argv: Sequence[str]) -> list[str]:
    """Return a command that needs no file of ours on the node."""
    out: list[str] = []
    for word in argv:
        ours = word == prerequisites.CHECK_WEIGHTS
        out += ["-c", Path(word).read_text(encoding="utf-8")] if ours else [word]
    return out


def _seen(looks: Sequence[Look], answer: Answer) -> Iterator[Seen]:
    said = {line.thing: line.text for line in answer.of("fact")}
    for number, one in enumerate(looks):
        try:
            code, data = node_facts.look(said.get(f"look {number}", ""))
        except ValueError:
            yield Seen(one, "fail", f"no answer: {answer.error or 'the look ended early'}")
            continue
        output = data.decode("utf-8", "replace")
        if code == _LATE and not output:
            yield Seen(one, "skipped", f"no time was left: the looks before it took {_ALL} s")
        elif code == _MISSING and one.needs == "node":
            yield Seen(one, "skipped", output)
        elif code == 124:
            yield Seen(one, "fail", f"no answer within {_EACH} s", "timeout")
        else:
            yield prerequisites.verdict(one, code, output)


# Showing ---------------------------------------------------------------------------------


def _rows(node: str, seen: Sequence[Seen]) -> Iterator[Row]:
    """Yield a row for each check of a node."""
    by_check: dict[str, list[Seen]] = {}
    for one in seen:
        by_check.setdefault(one.look.name.partition(" ")[0], []).append(one)
    for check, found in by_check.items():
        status = next(one for one in _STATUS if any(one == each.status for each in found))
        mine = [one for one in found if one.status == status]
        yield Row(
            node,
            check,
            status,
            _found(mine, found),
            _help(node, mine[0]) if status == "fail" else "",
        )


def _found(mine: Sequence[Seen], every: Sequence[Seen]) -> str:
    """Return what the looks of one check with the worst status have found, ``every`` of them."""
    if len(every) == 1:
        return mine[0].found
    count = f"{len(mine)} of {len(every)}"
    if mine[0].status == "pass":
        rest = next((f"; not looked: {one.found}" for one in every if one.status != "pass"), "")
        return f"{count}{rest}"
    # One sentence where all say the same: a driver that is missing is so for every device.
    if len(mine) == len(every) and len({one.found for one in mine}) == 1:
        return f"{mine[0].found} ({count})"
    shown = [f"{one.look.name.partition(' ')[2]}: {one.found}" for one in mine[:_MOST]]
    more = len(mine) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _help(node: str, seen: Seen) -> str:
    check, program = seen.look.name.partition(" ")[0], seen.look.argv[0]
    if seen.found.startswith("no answer"):
        return remedies.of("node/silent", node=node)
    if seen.found.startswith(f"exit code {_MISSING}:"):
        return remedies.of("look/program", node=node, program=program)
    known = remedies.first((_CAUSES.get(check, f"look/{check}"),), node=node)
    return known or f"Wanted: {seen.look.expect}. By hand: {shlex.join(seen.look.argv)[:200]}"
