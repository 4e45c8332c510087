"""One plan of a run: what was planned, found, written, started, checked and measured.

plans.of(folder / "k2.5-a3-pd", entries, gaps, root)      # Planned
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb.bundle.writer import NAMED_ONLY
from kimi_nb.report import service_section, stage_section
from kimi_nb.report.run_files import Gaps, is_file, items, mapping, number, rows, table, text

_SCRIPTS = (".sh", ".sbatch")
_MOST_SCRIPTS = 60  # that stand in the page; the others are linked
_MOST_TEXT = 400_000  # characters of them together


@dataclass(frozen=True)
class Script:
    """A script of the bundle.

    Attributes:
        path: Where it stands in the bundle.
        also: The other folders where it is the same.
        text: What it says; "" where it is only linked.
        size: Its length in bytes.
    """

    path: str
    also: tuple[str, ...]
    text: str
    size: int


@dataclass(frozen=True)
class Planned:
    """A plan as the report shows it.

    Attributes:
        parts: A row for each role: role, engines, nodes, data parallel size, tensor parallel
            size, devices of each engine, ports.
        pictures: (title, words, data URL) of the parts ``plan`` and ``service``.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, ...], ...]
    settings: tuple[tuple[str, ...], ...]
    findings: tuple[Mapping[str, str], ...]
    counts: Mapping[str, int]
    rules: str
    memory: tuple[tuple[str, ...], ...]
    scripts: tuple[Script, ...]
    files: int
    errata: tuple[Mapping[str, str], ...]
    attempts: tuple[service_section.Attempt, ...]
    attached: tuple[str, ...]
    attached_mark: str
    contract: stage_section.Figures | None
    accuracy: stage_section.Figures | None
    performance: stage_section.Figures | None
    limits: stage_section.Figures | None
    sweep: stage_section.Figures | None
    pictures: Mapping[str, tuple[tuple[str, str, str], ...]]
    hashes: tuple[tuple[str, str], ...]
    hardware: str
    versions: tuple[tuple[str, str], ...]

    @property
    def last(self) -> service_section.Attempt | None:
        """The newest start of a service."""
        return self.attempts[-1] if self.attempts else None

    @property
    def rehearsed(self) -> bool:
        """Whether any figure here is of stand-ins."""
        marks = [*(one.mark for one in self.attempts), self.attached_mark, *self._marks]
        return stage_section.REHEARSAL in marks

    @property
    def asked_engines(self) -> bool:
        """Whether a service that was there already was one of engines, as far as its replies tell."""
        stood_in = self.attached_mark == stage_section.REHEARSAL
        figures = self._marks
        return bool(self.attached and not stood_in and (not figures or "" in figures))

    @property
    def _marks(self) -> list[str]:
        """The marks of the stages that have figures."""
        stages = (self.contract, self.accuracy, self.performance, self.sweep)
        return [one.mark for one in stages if one is not None]


def of(folder: Path, entries: Sequence[Mapping[str, Any]], gaps: Gaps, root: Path) -> Planned:
    """All that is known of the plan in a folder; ``entries`` are the run's that name it."""
    plan = _plan(folder, gaps, root)
    found = (
        table(folder / "findings.json", gaps, root) if (folder / "findings.json").is_file() else {}
    )
    scripts, files = _scripts(folder, plan, gaps, root)
    engines = rows(plan.get("engines"))
    planned: Mapping[str, Any] = next(
        (one for one in reversed(entries) if one.get("stage") == "plan"), {}
    )
    written: Mapping[str, Any] = next(
        (one for one in reversed(entries) if one.get("stage") == "write"), {}
    )
    attached = [one for one in entries if one.get("stage") == "attach"]
    return Planned(
        folder.name,
        _facts(plan, engines),
        _parts(engines),
        _settings(plan),
        tuple(
            _texts(one, ("severity", "where", "message", "fix", "rule"))
            for one in rows(found.get("findings"))
        ),
        {str(key): int(number(value) or 0) for key, value in mapping(found.get("counts")).items()},
        f"{found.get('rules', '?')} rules of {found.get('engine', '?')}" if found else "",
        tuple(map(_bar, rows(found.get("memory")))),
        scripts,
        files,
        tuple(
            _texts(one, ("id", "document", "says", "uses", "why", "evidence"))
            for one in rows(plan.get("errata"))
        ),
        tuple(service_section.of(folder, entries, gaps, root)),
        tuple(str(one.get("url", "")) for one in attached),
        str(attached[-1].get("mark") or "") if attached else "",
        stage_section.contract(folder, gaps, root),
        stage_section.accuracy(folder, entries, gaps, root),
        stage_section.performance(folder, gaps, root),
        stage_section.limits(folder, gaps, root),
        stage_section.sweep(entries, folder, gaps, root),
        {
            part: stage_section.pictures(folder / "pictures", gaps, root, *names)
            for part, names in (
                ("plan", ("topology", "memory")),
                ("service", ("faults", "readiness")),
            )
        },
        tuple(
            (title, str(entry["hash"]))
            for title, entry in (("plan", planned), ("bundle", written))
            if entry.get("hash")
        ),
        str(plan.get("hardware") or ""),
        tuple(
            (title, str(plan[key]))
            for title, key in (
                ("engine", "engine"),
                ("engine version", "engine_version"),
                ("vLLM", "vllm_version"),
                ("image", "image"),
                ("weights", "weights"),
                ("installed by", "install"),
            )
            if plan.get(key)
        ),
    )


def _texts(given: Mapping[str, Any], keys: Sequence[str]) -> dict[str, str]:
    return {key: str(given.get(key, "")) for key in keys}


def _plan(folder: Path, gaps: Gaps, root: Path) -> dict[str, Any]:
    """Return the plan as its bundle tells it; of a deployment or rehearsal where that is all there is."""
    places = [
        folder / "bundle",
        *sorted(folder.glob("deployments/*/bundle"), reverse=True),
        *sorted(folder.glob("rehearsals/*/bundle"), reverse=True),
    ]
    for place in places:
        if (place / "plan.json").is_file():
            return {**table(place / "plan.json", gaps, root), "at": place}
    gaps.say(
        f"{folder.name}: holds no bundle (plan.json), so its plan, scripts and errata are "
        "not shown."
    )
    return {}


def _facts(
    plan: Mapping[str, Any], engines: Sequence[Mapping[str, Any]]
) -> tuple[tuple[str, str], ...]:
    out = [
        (title, str(plan[key]))
        for title, key in (
            ("what", "title"),
            ("layout", "layout"),
            ("scenario", "scenario"),
            ("variant", "variant"),
            ("site", "site"),
            ("reached by", "transport"),
            ("served as", "served_name"),
            ("front door", "url"),
            ("document", "source"),
        )
        if plan.get(key)
    ]
    derived = mapping(plan.get("derived"))
    if derived:
        out.insert(0, ("DERIVED", f"from {derived.get('base', '')}; published by nobody"))
    if engines:
        nodes = {str(one.get("node")) for one in engines}
        devices = {
            (str(one.get("node")), str(device))
            for one in engines
            for device in items(one.get("devices"))
        }
        out.append(
            (
                "size",
                f"{len(engines)} engine{'s' * (len(engines) != 1)} on {len(nodes)} "
                f"node{'s' * (len(nodes) != 1)}, {len(devices)} devices",
            )
        )
    router = mapping(plan.get("router"))
    if router:
        out.append(("router", f"{router.get('kind', '')} on {router.get('node', '')}"))
    store = mapping(plan.get("store"))
    if store:
        held = f"{store.get('kind', '')}, {store.get('mode', '')}"
        out.append(("KV store", f"{held}, master on {store.get('node', '')}"))
    return tuple(out)


def _parts(engines: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    """Return the engines by role and group."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in engines:
        groups.setdefault((str(one.get("role", "")), str(one.get("group", ""))), []).append(one)
    out = []
    for (role, group), found in groups.items():
        nodes = list(dict.fromkeys(str(one.get("node", "")) for one in found))
        first = found[0]
        shown = ", ".join(nodes) if len(nodes) <= 6 else f"{nodes[0]} ... {nodes[-1]}"
        out.append(
            (
                role,
                group,
                str(len(found)),
                shown,
                str(first.get("dp_size", "")),
                _devices_of_a_rank(first),
                str(len(items(first.get("devices"))) or ""),
            )
        )
    return tuple(out)


def _devices_of_a_rank(engine: Mapping[str, Any]) -> str:
    """Return the tensor parallel size, with the sizes of pipeline and prefill context beside it."""
    more = (("pp", engine.get("pp_size")), ("pcp", engine.get("pcp_size")))
    return " x ".join(
        [
            str(engine.get("tp_size", "")),
            *(f"{name} {size}" for name, size in more if size not in (None, 1)),
        ]
    )


def _settings(plan: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(str(one.get(key, "")) for key in ("role", "kind", "name", "value", "layer", "source"))
        for one in rows(plan.get("settings"))
    )


def _bar(bar: Mapping[str, Any]) -> tuple[str, ...]:
    parts = {
        str(name): value
        for name, given in mapping(bar.get("parts_gib")).items()
        if (value := number(given))
    }
    return (
        str(bar.get("role", "")),
        str(bar.get("engine", "")),
        f"{bar.get('device_gib', '?')}",
        f"{bar.get('budget_gib', '?')}",
        ", ".join(f"{name} {value:.1f}" for name, value in parts.items()),
        f"{bar.get('headroom_gib', '?')}",
        _tokens(bar),
        str(bar.get("figures", "")),
    )


def _tokens(bar: Mapping[str, Any]) -> str:
    """Return the tokens of cache and their range; records of earlier versions have none."""
    known = f"{bar.get('cache_tokens', '?')}"
    low, high = (number(bar.get(f"cache_tokens_{side}")) for side in ("low", "high"))
    return known if low is None or high is None else f"{known} ({low:.0f} to {high:.0f})"


def _scripts(
    folder: Path, plan: Mapping[str, Any], gaps: Gaps, root: Path
) -> tuple[tuple[Script, ...], int]:
    """Return the scripts of a bundle, each text once, and how many files the bundle has."""
    place, listed = plan.get("at"), plan.get("files")
    if not isinstance(place, Path) or not isinstance(listed, list):
        return (), 0
    same: dict[str, list[str]] = {}
    for name in listed:
        path = place / str(name)
        # A plan.json of somebody else's making names no file outside of its folder.
        if (
            not str(name).endswith(_SCRIPTS)
            or ".." in Path(str(name)).parts
            or Path(str(name)).is_absolute()
        ):
            continue
        if is_file(path):
            same.setdefault(text(path, gaps, root), []).append(str(name))
        else:
            gaps.say(f"{path.relative_to(root)}: is listed in plan.json and is not there.")
    out: list[Any] = []
    room = _MOST_TEXT
    for said, names in same.items():
        shown = len(out) < _MOST_SCRIPTS and len(said) <= room
        shown = shown and Path(names[0]).name != NAMED_ONLY
        room -= len(said) if shown else 0
        at = str((place / names[0]).relative_to(root))
        out.append(
            Script(at, tuple(names[1:]), said if shown else "", len(said.encode(errors="replace")))
        )
    return tuple(out), len(listed)
