"""Check a node before anything is started there; nothing is changed.

Example::

    for asked in prerequisites.looks(hardware, site, weights, "pd"):
        seen = prerequisites.look(asked, site, here=prerequisites.is_node(site))
        seen.status  # "pass", "fail" or "skipped"
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kimi_nb import catalog, show
from kimi_nb.catalog import companions
from kimi_nb.params import schema
from kimi_nb.plan import checkpoints
from kimi_nb.plan.roles import fill, models_folder
from kimi_nb.service import weights as weights_command

CHECK_WEIGHTS = str(Path(weights_command.__file__))
PLACES = "{weights_places}"  # as a word of a check's command: every place of the weights
Runner = Callable[[Sequence[str]], tuple[int, str]]


@dataclass(frozen=True)
class Look:
    """A read-only command that checks one property of a node, with its placeholders filled in.

    ``title`` says what is checked, ``expect`` what a good node shows. The output must match
    ``pattern``, and each number in its group be ``least`` or more; of a link, what matches ``broken`` is down. ``needs`` is "node" for a command that only makes
    sense on a node of the site, and "file" for one whose last argument must exist.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    expect: str
    pattern: str
    needs: str
    source: str
    broken: str = ""
    least: int | None = None


@dataclass(frozen=True)
class Seen:
    """The result of a `Look`.

    ``status`` is pass, fail or skipped; ``found`` is what the command printed, or why it was
    skipped. ``text`` is all of the output.
    """

    look: Look
    status: str
    found: str
    text: str = ""


@dataclass(frozen=True, repr=False)
class Looks(show.Shown):
    """The results of all checks of a node."""

    seen: tuple[Seen, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(one.look.name for one in self.seen if one.status == "fail")

    @property
    def counts(self) -> dict[str, int]:
        """How many checks passed, failed and were skipped."""
        return {
            status: sum(one.status == status for one in self.seen)
            for status in ("pass", "fail", "skipped")
        }

    def table(self) -> show.Table:
        """Return a row for each result; results of one check that were all skipped share a row."""
        rows: list[tuple[str, ...]] = []
        by_check: dict[str, list[Seen]] = {}
        for one in self.seen:
            by_check.setdefault(one.look.name.partition(" ")[0], []).append(one)
        for name, group in by_check.items():
            together = len(group) > 1 and {one.status for one in group} == {"skipped"}
            for one in group[:1] if together else group:
                title = f"{name} ({len(group)} times)" if together else one.look.name
                rows.append((title, one.look.title, one.look.expect, one.status, one.found))
        total = self.counts
        return show.Table(
            f"{total['pass']} passed, {total['fail']} failed, {total['skipped']} skipped",
            ("check", "what", "OK is", "status", "seen"),
            tuple(rows),
        )


def looks(
    hardware: schema.Hardware,
    site: schema.Site,
    weights: schema.Weights,
    layout: str,
    install: str = "docker",
    engine: catalog.Engine | None = None,
) -> Iterator[Look]:
    """Yield every check for this layout, one for each device or peer where a check asks so.

    ``install`` is how the engine is installed: one in a container sees another cache. ``engine`` is
    what the driver has to be new enough for; without it, the oldest that is known. Those from
    node to node need the addresses of the other nodes' devices: `addresses` and `link`.
    """
    home = checkpoints.hub_home(hardware, site, install, {})
    there = checkpoints.checkpoint(site, weights, models_folder(site, weights), home)
    words = {
        "weights_folder": there.places[0],
        "weights_gb": str(there.size_gb or 0),
        "check_weights": CHECK_WEIGHTS,
        "engine": site.paths.engine or "",
        "devices": str(hardware.devices.count),
        "driver": str(_driver(hardware, install, engine)),
    }
    for name, check in hardware.checks.items():
        if layout not in check.layouts or check.each == "link":
            continue
        over: list[dict[str, str]] = [{}]
        if check.each == "device":
            over = [{"device": str(number)} for number in range(hardware.devices.count)]
        elif check.each == "peer":
            over = [{"peer": node.address} for node in site.nodes]
        for extra in over:
            here = words | extra
            yield Look(
                name=" ".join([name, *extra.values()]),
                title=check.title,
                argv=tuple(
                    filled
                    for word in check.argv
                    for filled in (there.places if word == PLACES else (fill(word, here),))
                ),
                expect=fill(check.expect, here),
                pattern=check.pattern,
                needs=check.needs,
                source=check.source,
                least=int(words["driver"]) if check.least == "driver" else check.least,
            )


def _driver(hardware: schema.Hardware, install: str, engine: catalog.Engine | None) -> int:
    """Return the least version of NVIDIA's driver for an engine that is installed like this."""
    if engine is None or hardware.vendor != "nvidia":
        return companions.driver()
    return companions.driver(companions.cuda_major(engine, image=install == "docker"))


def addresses(hardware: schema.Hardware, devices: Sequence[int]) -> dict[tuple[str, int], Look]:
    """Return what prints the address of each of these devices, by the name of a link and device."""
    return {
        (name, device): Look(
            name=f"{name} of {device}",
            title=check.title,
            argv=tuple(fill(word, {"device": str(device)}) for word in check.address.argv),
            expect="an address",
            pattern=check.address.pattern,
            needs=check.needs,
            source=check.source,
        )
        for name, check in hardware.checks.items()
        if check.address is not None
        for device in devices
    }


def address_in(seen: Seen) -> str:
    """Return the address that the command of `addresses` has printed; "" where it did not."""
    found = re.search(seen.look.pattern, seen.text) if seen.status == "pass" else None
    return found[1] if found else ""


def link(check: schema.Check, name: str, device: int, peer: str, other: int, address: str) -> Look:
    """Return the check of a link: from a device of the node to one of the node ``peer``."""
    words = {"device": str(device), "device_address": address}
    return Look(
        name=f"{name} {device} to {other} of {peer} ({address})",
        title=check.title,
        argv=tuple(fill(word, words) for word in check.argv),
        expect=check.expect,
        pattern=check.pattern,
        needs=check.needs,
        source=check.source,
        broken=check.broken,
    )


def look(asked: Look, site: schema.Site, here: bool, runner: Runner | None = None) -> Seen:
    """Run a check if it can run on this machine.

    ``here`` says whether this machine is a node of the site; other machines skip what needs a node.
    """
    why = _skip(asked, site, here)
    if why:
        return Seen(asked, "skipped", f"{why}; would have run: {shlex.join(asked.argv)}")
    return verdict(asked, *(runner or run)(asked.argv))


def elsewhere(site: schema.Site) -> Looks:
    """Return the results on a machine that only starts a deployment on other nodes."""
    asked = Look(
        name="nodes",
        title="devices, driver, disk and network of the nodes",
        argv=(),
        expect="every node is looked at before one is changed",
        pattern="",
        needs="node",
        source="",
    )
    why = (
        f"this machine is not a node of {site.name}: the deployment itself looks at every node "
        "before it changes one; notebook 01 with action deploy shows each look"
    )
    return Looks((Seen(asked, "skipped", why),))


def verdict(asked: Look, code: int, text: str) -> Seen:
    """Judge what the command of a check has printed."""
    shown = " ".join(text.split())[:160]
    if code:
        return Seen(asked, "fail", f"exit code {code}: {shown}", text)
    good = bool(not asked.pattern or re.search(asked.pattern, text, re.MULTILINE))
    if good and asked.least is not None:
        found = [match[1] or "" for match in re.finditer(asked.pattern, text, re.MULTILINE)]
        good = all(re.fullmatch("[0-9]{1,18}", one) and int(one) >= asked.least for one in found)
    return Seen(asked, "pass" if good else "fail", shown, text)


def _skip(asked: Look, site: schema.Site, here: bool) -> str:
    if asked.needs == "node" and not here:
        return f"this machine is not a node of the site {site.name}"
    if asked.needs == "file" and not Path(asked.argv[-1]).exists():
        return f"{asked.argv[-1]} is not on this machine"
    if shutil.which(asked.argv[0]) is None:
        return f"{asked.argv[0]} is not on this machine"
    return ""


def run(argv: Sequence[str], seconds: float = 30) -> tuple[int, str]:
    """Return (exit code, output) of a command; 124 after ``seconds``, as in timeout(1)."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {seconds:g} s"
    except OSError as error:
        return 126, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def is_node(site: schema.Site) -> bool:
    """Return whether this machine is a node of the site.

    It is if it can bind one of the site's addresses, or if its host name is the name of a node.
    """
    name = socket.gethostname()
    return any(node.name == name or _is_local(node.address) for node in site.nodes)


def _is_local(address: str) -> bool:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True
