"""Rules on environment variables: whether the version reads them, and whether settings agree."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files

_SOURCES = "the variables that vLLM and vllm-ascend read (kimi_nb/data/catalog/*.json)"
_TRUE = {"1": True, "0": False, "true": True, "false": False, "True": True, "False": False}


@functools.cache
def _known(row: str, tag: str) -> frozenset[str]:
    """Return the variables that a version of the engine reads.

    ``row`` is the vLLM version in the catalog, ``tag`` the vllm-ascend version, "" for plain vLLM.
    """
    names = {
        name for name, runs in catalog.tables("vllm")["env"].items() if catalog.active(runs, row)
    }
    apart = data_files.facts("catalog/versions")["read_apart"]
    names |= {name for name, first in apart.items() if not catalog.earlier(row, first)}
    if tag:
        plugin = catalog.tables("vllm-ascend")
        for table in ("env", "env_read_elsewhere"):
            names |= {name for name, runs in plugin[table].items() if catalog.active(runs, tag)}
    return frozenset(names)


def known(d: Deployment) -> frozenset[str]:
    """Return the variables that the deployment's engine reads."""
    return _known(d.engine.known, d.engine.version if d.ascend else "")


def _set(d: Deployment) -> Iterator[tuple[str, str, Spot]]:
    """Yield (name, value, spot) of the variables of engines, and of what else a script exports."""
    for server in d.environments():
        for name, text in server.env.items():
            yield name, text, server.env_at(name)
    for one in d.exports:
        for name, text in one.env.items():
            yield name, text, one.spot


@functools.lru_cache(maxsize=4096)
def near(name: str) -> str:
    """Return the variable that a name is meant to be, "" if it is near to none.

    The beginning counts as the rest does: ASCEBD_RT_VISIBLE_DEVICES is one letter off. Those of NCCL
    and of other makers' collectives (MCCL, LCCL) are no slips of HCCL's.
    """
    if re.match("[A-GI-Z]CCL_", name):
        return ""
    most = 1 if len(name) < 12 else 2
    known = [*catalog.ever_read(), *data_files.facts("catalog/versions")["others"]]
    whole = next((one for one in known if len(one) > 15 and name.startswith(one)), "")
    if re.fullmatch("[A-Z]{4,}[A-Z_]*", name.removeprefix(whole)) and whole:
        return whole  # pasted once more behind itself
    found = [
        (away, other)
        for other in known
        if other != name
        and abs(len(other) - len(name)) <= most
        and (away := distance(name, other, most)) <= most
        # One digit more or less is another variable: FLASHCOMM1 and FLASHCOMM2.
        and re.sub("[0-9]", "", name) != re.sub("[0-9]", "", other)
    ]
    return min(found)[1] if found else ""


def distance(one: str, other: str, most: int) -> int:
    """Return in how many letters two words differ, or more than ``most``.

    A letter that is left out, added, replaced, or swapped with its neighbour counts as one.
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        older, before, row = before, row, [i]
        for j, right in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]


def _vllm(name: str) -> bool:
    return name.startswith("VLLM_")


@rule(
    "variables/unknown",
    WARNING,
    "Every variable of the engine exists in some version.",
    "Spell it as the engine does, or take it out.",
    _SOURCES,
)
def variable_exists(d: Deployment) -> Iterator[Problem]:
    """A variable that nothing reads changes nothing but the reader's belief."""
    ever = catalog.ever_read()
    others = data_files.facts("catalog/versions")["others"]
    gone = data_files.facts("catalog/versions")["gone"]
    for name, _, spot in _set(d):
        if name in ever or name in others:
            continue
        if name in gone:
            yield Problem(spot, f"{name} does nothing: {gone[name]}")
        elif _vllm(name):
            like = near(name) or next(
                iter(difflib.get_close_matches(name, [*ever, *others], n=1, cutoff=0.82)), ""
            )
            yield Problem(
                spot,
                f"no listed version reads {name}",
                f"Did you mean {like}?" if like else "",
            )
        elif like := near(name):
            yield Problem(spot, f"{name} is not known, {like} is", f"Did you mean {like}?")


@rule(
    "variables/removed",
    WARNING,
    "No variable is older than the engine.",
    "Take it out.",
    _SOURCES,
    needs=("version",),
)
def variable_not_removed(d: Deployment) -> Iterator[Problem]:
    """A variable that a newer version no longer reads is ignored, at most with a warning in the
    log; what it switched on is off."""
    here, ever = known(d), catalog.ever_read()
    for name, _, spot in _set(d):
        if (
            name in here
            or name not in ever
            or name in data_files.facts("catalog/versions")["never_read"]
        ):
            continue
        last = ever[name][1]
        row = d.engine.version if name in catalog.tables("vllm-ascend")["env"] else d.engine.known
        if catalog.earlier(last, row):
            yield Problem(
                spot,
                f"{name} does nothing: {d.engine} does not read "
                f"it, {last} was the last listed version that did",
            )
        elif catalog.earlier(row, ever[name][0]) and _vllm(name):
            yield Problem(
                spot,
                f"{name} does nothing: it is read from {ever[name][0]}, this is {d.engine}",
            )


@rule(
    "variables/never-read",
    WARNING,
    "No variable is one that no version acts on.",
    "Take it out.",
    "read in the sources of the versions searched",
)
def variable_acts(d: Deployment) -> Iterator[Problem]:
    """The name is declared and nothing reads it: who raises a time-out with it still waits as
    long as before."""
    never = data_files.facts("catalog/versions")["never_read"]
    for name, _, spot in _set(d):
        if name in never:
            yield Problem(spot, f"{name} does nothing: {never[name]}")


@rule(
    "variables/ignored",
    WARNING,
    "No variable is ignored at this version.",
    "Use the key of --additional-config.",
    "vllm-ascend's sources: only the key is read there",
    needs=("ascend", "version"),
)
def variable_not_ignored(d: Deployment) -> Iterator[Problem]:
    """The scripts say that a feature is on, the engine never looks: the gain that was measured
    elsewhere does not come."""
    ignored = data_files.facts("catalog/versions")["ignored"]
    for server in d.environments():
        for name in server.env:
            if name in ignored and _between(d.engine.version, *map(str, ignored[name])):
                key = catalog.moved(d.engine, name)
                yield Problem(
                    server.env_at(name),
                    f"{name} is ignored from {ignored[name][0]} to "
                    f"{ignored[name][1]}: only --additional-config {key} is read",
                    f"Write --additional-config '{{\"{key}\": true}}'.",
                )


def _between(version: str, first: str, last: str) -> bool:
    return not catalog.earlier(version, first) and not catalog.earlier(last, version)


@rule(
    "variables/moved",
    WARNING,
    "A setting stands where the version wants it.",
    "Write it as a key of --additional-config.",
    "vllm-ascend's configuration: key and variable",
    needs=("ascend", "version"),
)
def variable_moved(d: Deployment) -> Iterator[Problem]:
    """The variable still works and goes away with a later version; the key stays."""
    ignored = data_files.facts("catalog/versions")["ignored"]
    for server in d.environments():
        for name in server.env:
            key = catalog.moved(d.engine, name)
            if key and not (
                name in ignored and _between(d.engine.version, *map(str, ignored[name]))
            ):
                yield Problem(server.env_at(name), f"{name} moved to --additional-config {key}")


@rule(
    "variables/contradiction",
    WARNING,
    "A variable and its key say the same.",
    "Keep the key of --additional-config, take the variable out.",
    "vllm-ascend: the key wins over the variable",
    needs=("ascend", "version"),
)
def variable_agrees(d: Deployment) -> Iterator[Problem]:
    """The key wins, silently: the script that is read says one thing, the engine does another."""
    for server in d.environments():
        table = server.table("additional-config")
        for name, text in server.env.items():
            key = catalog.moved(d.engine, name)
            if key is None:
                continue
            value: object = table
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None and text in _TRUE and bool(value) != _TRUE[text]:
                yield Problem(
                    server.env_at(name),
                    f"{name}={text}, and --additional-config says {key} {str(value).lower()}",
                )


@rule(
    "variables/going",
    NOTE,
    "No variable goes away with a later version.",
    "Look at it before the next upgrade.",
    _SOURCES,
)
def variable_stays(d: Deployment) -> Iterator[Problem]:
    """What a script switches on by such a variable is off after an upgrade, without an error."""
    here, ever, going = known(d), catalog.ever_read(), data_files.facts("catalog/versions")["going"]
    newest = {
        "vllm": catalog.versions("vllm")[-1],
        "vllm-ascend": catalog.versions("vllm-ascend")[-1],
    }
    never = data_files.facts("catalog/versions")["never_read"]
    for server in d.environments():
        for name in server.env:
            if name in going:
                yield Problem(server.env_at(name), f"{name}: {going[name]}")
            elif name in here and _vllm(name) and name not in never:
                package = "vllm" if name in catalog.tables("vllm")["env"] else "vllm-ascend"
                last = ever[name][1]
                if catalog.earlier(last, newest[package]):
                    yield Problem(
                        server.env_at(name),
                        f"{name}: the listed versions that read it "
                        f"end with {last}; it is gone by {newest[package]}",
                    )


@rule(
    "variables/default",
    NOTE,
    "A variable changes something.",
    "It may go.",
    _SOURCES,
    needs=("ascend", "version"),
)
def variable_not_default(d: Deployment) -> Iterator[Problem]:
    """It says what is so anyway."""
    table = catalog.tables("vllm-ascend")["env"]
    for server in d.environments():
        for name, text in server.env.items():
            found = catalog.active(table.get(name, []), d.engine.version)
            if found and found.get("default") is not None and text == str(found["default"]):
                yield Problem(server.env_at(name), f"{name}={text} is the default of {d.engine}")


_NUMBERS = (
    "HCCL_BUFFSIZE",
    "OMP_NUM_THREADS",
    "HCCL_CONNECT_TIMEOUT",
    "HCCL_EXEC_TIMEOUT",
    "HCCL_IF_BASE_PORT",
    "ASCEND_CONNECT_TIMEOUT",
    "ASCEND_TRANSFER_TIMEOUT",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "VLLM_PORT",
    "VLLM_ENGINE_READY_TIMEOUT_S",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
)


@rule(
    "variables/number",
    ERROR,
    "A variable that counts holds a whole number.",
    "Write the number alone: megabytes, seconds or a port, without a unit.",
    "CANN and vLLM: int() of the text",
)
def variable_counts(d: Deployment) -> Iterator[Problem]:
    """CANN refuses the text or takes its default; vLLM stops with a ValueError."""
    for server in d.environments():
        for name in _NUMBERS:
            text = server.env.get(name)
            if text and not text.strip().isdecimal() and not fill_ins.holds(text):
                yield Problem(server.env_at(name), f"{name}={text[:40]} is no whole number")


@rule(
    "variables/backend-suffix",
    WARNING,
    "The name of an attention backend has no suffix of a version.",
    "Take _VLLM_V1 off the name.",
    "vLLM's attention selector from 0.11 on: 'the suffix is no longer necessary'",
)
def backend_suffix(d: Deployment) -> Iterator[Problem]:
    """The names lost their suffix with the V0 engine; versions that do not cut it off know no such
    backend."""
    for name, text, spot in _set(d):
        if name == "VLLM_ATTENTION_BACKEND" and text.endswith("_VLLM_V1"):
            yield Problem(spot, f"{name}={text}: the backend is called {text[: -len('_VLLM_V1')]}")
