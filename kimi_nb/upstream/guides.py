"""Read the commands in a document, and group those that belong together.

For example::

    usual = Deployment(id="va-docs:Kimi-K2.6", hardware="a3", ...)
    for deployment in deployments(markdown, 1, usual, {"a2": 8, "a3": 16}):
        deployment.id  # va-docs:Kimi-K2.6:151, by the line of its first command

The commands of the nodes of one deployment stand below one heading: a head and its workers, or
prefill and decode. A command that needs no other is a deployment of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading import bash, markdown
from kimi_nb.check.view import commands
from kimi_nb.upstream.published import Deployment, Layout, Role, pool_of

LARGEST = 128 << 10  # characters of one document; a parser of markdown takes seconds for more
_LONGEST = 300  # characters of a line of prose that are looked at
_HEADING = re.compile(r"(#{1,6}) +(?=\S)")
_TAB = re.compile(r' *=== "([^"]+)"')
_CHIP = re.compile(
    r"(?<![A-Za-z0-9])(?:\d+ ?[x×])?(GB[23]00|[HB]\d{2,3}|MI\d{3}X|A[235])(?![A-Za-z0-9])"
)
_CHOICE = re.compile(r"(?<==)<(\d\w{0,60})>")  # RANK=<1_OR_2>
_OPEN = re.compile(r"\$\{(\w+)\}(?!\w)")
_MOST_DEVICES = 1 << 20


@dataclass(frozen=True)
class _Place:
    """Where a line stands: the headings above it, its tab, and the hardware that is named."""

    headings: tuple[str, ...]
    tab: str
    chips: tuple[str, ...]

    @property
    def section(self) -> str:
        """The headings and the tab, as people say them."""
        return " / ".join(self.headings) + (f" [{self.tab}]" if self.tab else "")


def deployments(
    text: str, first: int, usual: Deployment, devices: Mapping[str, int]
) -> Iterator[Deployment]:
    """Yield the deployments of a markdown text that begins at line ``first`` of its file.

    ``usual`` holds what is true of all of them; its id and line are completed. ``devices`` is the
    number of devices of a node by hardware.
    """
    group: list[tuple[Role, str]] = []
    at = _Place((), "", ())
    for role, model, place in _roles(text, first):
        if group and (place.headings != at.headings or not _joins(role, group)):
            yield _grouped(group, at, usual, devices)
            group = []
        if not group:
            at = place
        group.append((role, model))
    if group:
        yield _grouped(group, at, usual, devices)


def _joins(role: Role, group: list[tuple[Role, str]]) -> bool:
    """Return whether a command belongs to those before it."""
    names = [one.name for one, _ in group]
    if role.name == "worker":
        return bool({"head", "worker"} & set(names))
    if role.name in ("prefill", "decode"):
        return names[-1] in ("prefill", "decode") and (names[-1], role.name) != (
            "decode",
            "prefill",
        )
    return False


def _roles(text: str, first: int) -> Iterator[tuple[Role, str, _Place]]:
    """Yield the command, the checkpoint and the place of each engine that is started."""
    places = _places(text)
    for fence in markdown.fences(text):
        if fence.kind != "bash":
            continue
        place = places[min(fence.line, len(places)) - 1]
        # <name> would be a redirection to the shell.
        body = _CHOICE.sub(rf"{fill_ins.MARK[0]}\1{fill_ins.MARK[1]}", fence.text)
        script = bash.interpret(fill_ins.masked(body), "", first + fence.line - 1)
        for command in script.commands:
            start = commands.serve_at(command.argv)
            if start is None:
                continue
            words = [_left_open(word) for word in command.argv[start:]]
            env = {name: _left_open(value) for name, value in command.env.items()}
            model = words[0] if words and not words[0].startswith("-") else ""
            role = Role.of("mixed", words[bool(model) :], env, 1, command.line)
            model = model or str(role.flags.get("--model", ""))
            yield replace(role, name=_name(role)), model, place


def _left_open(word: str) -> str:
    """Return a word with what is left to the reader as it is written: $NAME and <name>."""
    return fill_ins.shown(_OPEN.sub(r"$\1", word))


def _name(role: Role) -> str:
    """Return what an engine does: prefill, decode, head, worker or mixed."""
    flags = role.flags
    if pool := pool_of(flags.get("--kv-transfer-config")):
        return pool
    starts = (flags.get("--data-parallel-start-rank", 0), flags.get("--node-rank", 0))
    if "--headless" in flags or any(start != 0 for start in starts):
        return "worker"
    local, dp = role.layout.dp_local, role.layout.dp
    spans = flags.get("--nnodes", 1) != 1 or (local is not None and local != dp)
    return "head" if spans else "mixed"


def _places(text: str) -> list[_Place]:
    """Return the place of each line."""
    out = []
    headings: list[tuple[int, str]] = []
    tab, fenced = "", ""
    chips: tuple[str, ...] = ()
    for line in text.split("\n"):
        bare = line[:_LONGEST].strip()
        if bare.startswith(("```", "~~~")):
            fenced = "" if fenced else bare[:3]
        elif not fenced and (match := _HEADING.match(bare)):
            level, title = len(match[1]), bare[match.end() :].rstrip(" #")
            if title.endswith("}"):  # an anchor: {#name}, {: #name }
                title = title.rpartition("{")[0].rstrip()
            headings = [one for one in headings if one[0] < level] + [(level, title)]
            tab, chips = "", _chips(*(title for _, title in reversed(headings)))
        elif not fenced and (tabbed := _TAB.match(line[:_LONGEST])):
            tab = tabbed[1]
        elif not fenced and not chips:
            chips = _chips(bare)
        out.append(_Place(tuple(title for _, title in headings), tab, chips))
    return out


def _chips(*texts: str) -> tuple[str, ...]:
    """Return the hardware that the first of some texts names, if one does."""
    for text in texts:
        if found := tuple(dict.fromkeys(name.lower() for name in _CHIP.findall(text))):
            return found
    return ()


def _grouped(
    group: list[tuple[Role, str]], place: _Place, usual: Deployment, devices: Mapping[str, int]
) -> Deployment:
    """Return the commands of one deployment as such."""
    known = [chip for chip in place.chips if chip in devices] or list(place.chips)
    hardware = known[0] if known else usual.hardware
    roles = tuple(role for role, _ in group)
    if len(roles) == 1 and roles[0].name == "mixed":
        nodes = math.ceil(_size(roles[0].layout) / devices.get(hardware, 8))
        roles = (replace(roles[0], nodes=nodes),)
    elif roles[-1].name == "worker":
        # One worker's command may stand for those of all further nodes.
        further = _nodes(roles[0].layout) - len(roles)
        roles = (*roles[:-1], replace(roles[-1], nodes=1 + max(0, further)))
    also = tuple(f"written for {', '.join(place.chips)}" for _ in place.chips[1:2])
    return replace(
        usual,
        id=f"{usual.id}:{roles[0].line}",
        source=replace(usual.source, line=roles[0].line),
        model=group[0][1] or usual.model,
        hardware=hardware,
        strategy=place.section,
        nodes=max(sum(role.nodes for role in roles), _nodes(roles[0].layout)),
        roles=roles,
        notes=also,
    )


def _nodes(layout: Layout) -> int:
    """Return the nodes over which data parallel ranks are spread, 1 where that is not told."""
    return min((layout.dp or 1) // (layout.dp_local or layout.dp or 1), _MOST_DEVICES)


def _size(layout: Layout) -> int:
    """Return the devices of an engine, 1 where a size is not known."""
    size = (layout.tp or 1) * (layout.dp or 1) * (layout.pp or 1)
    return min(max(size, 1), _MOST_DEVICES)
