"""Rules on the command line of an engine: what the parser of its version refuses."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import arguments, fill_ins, setting_values
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules import variables
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.core import data_files

_DASHES = "\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"
_MOST = 25  # unknown flags of one command; a thousand are no command line
_SLIPS = 2  # letters in which a typing error differs from the flag that was meant
_PARSER = "the argument parser of the version (kimi_nb/data/catalog/vllm.json)"


def _instead(name: str) -> str:
    return data_files.facts("catalog/versions")["instead"].get(name, "")


@rule(
    "engine/flag-unknown",
    ERROR,
    "Every flag exists in some version of the engine.",
    "Take the flag out, or spell it as the engine does.",
    _PARSER,
)
def flag_exists(d: Deployment) -> Iterator[Problem]:
    """The parser refuses an unknown flag after the container has started and before anything
    loads; a whole multi-node start fails for one word."""
    known = [name[2:] for name in catalog.tables("vllm")["serve"]]
    gone = data_files.facts("catalog/versions")["gone"]
    for server in d.options():
        for given in [one for one in server.given if one.fault][:_MOST]:
            single = given.spelt.startswith("-") and not given.spelt.startswith("--")
            if (
                given.fault != arguments.UNKNOWN
                or fill_ins.holds(given.spelt)
                or (catalog.listed(given.name) and not single)
            ):
                continue
            word = given.name.replace("\N{EN DASH}", "-").replace("\N{EM DASH}", "-").strip("-")
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.75)
            slip = bool(near) and variables.distance(word, near[0], _SLIPS) <= _SLIPS
            if why := gone.get(given.name) or gone.get(given.name.partition(".")[0]):
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} is gone: {why}",
                    "",
                    "" if d.engine_known else WARNING,
                )
                continue
            instead = _instead(given.name)
            fix = f"Use {instead}." if instead else f"Did you mean --{near[0]}?" if near else ""
            how = (
                " (it begins with a typographic dash)"
                if given.spelt[:1] in _DASHES
                else " (long flags begin with two dashes)"
                if not given.spelt.startswith("--") and near
                else ""
            )
            # Without a version an old script or a fork may know what no listed version does.
            yield Problem(
                server.at(given.index),
                f"no listed vLLM version has {given.spelt}{how}",
                fix,
                "" if d.engine_known or slip or instead else WARNING,
            )
    yield from _slips_in_prose(d, known)


def _slips_in_prose(d: Deployment, known: list[str]) -> Iterator[Problem]:
    """Yield flags inside sentences that are one letter off a flag; prose names other programs too."""
    others = catalog.tables("vllm")["bench_serve"]
    for server in d.prose:
        for given in [one for one in server.given if one.fault == arguments.UNKNOWN][:_MOST]:
            if not given.spelt.startswith("--") or given.spelt in others:
                continue
            near = difflib.get_close_matches(given.name, known, n=1, cutoff=0.9)
            if not near or len(given.name) < 12 or catalog.listed(given.name):
                continue  # of short names other programs have their own
            if variables.distance(given.name, near[0], 1) <= 1:
                yield Problem(
                    server.at(given.index),
                    f"no listed vLLM version has {given.spelt}",
                    f"Did you mean --{near[0]}?",
                    WARNING,
                )


@rule(
    "engine/flag-removed", ERROR, "No flag is older than the engine.", "Take the flag out.", _PARSER
)
def flag_not_removed(d: Deployment) -> Iterator[Problem]:
    """A flag that a newer version dropped is refused like a misspelt one."""
    for server in d.options():
        for given in server.given:
            span = _span(given)
            instead = _instead(given.spelt.removeprefix("--").replace("_", "-"))
            if span is None and not d.engine_known and (last := _came_back(given, d)):
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} is refused by versions after vLLM {last}",
                    f"Use {instead}." if instead else "",
                    WARNING,
                )
            if span and catalog.older(span[1], d.engine):
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} is gone: vLLM {span[1]} was the last listed version "
                    f"with it, this is {_speaks(d)}",
                    f"Use {instead}." if instead else "",
                    "" if d.engine_known else WARNING,
                )
    gone = data_files.facts("catalog/versions")["gone"]
    for server in d.prose:
        # Prose also tells what is gone; several flags together are meant to be given.
        if len(server.given) < _TOGETHER:
            continue
        for given in server.given:
            if given.name in gone:
                yield Problem(
                    server.at(given.index), f"{given.spelt} is gone from vLLM", "", WARNING
                )


_TOGETHER = 3


@rule(
    "engine/flag-newer",
    ERROR,
    "No flag is newer than the engine.",
    "Take the flag out, or a newer engine.",
    _PARSER,
)
def flag_not_newer(d: Deployment) -> Iterator[Problem]:
    """A flag of a later version is refused like a misspelt one."""
    for server in d.options():
        for given in server.given:
            span = _span(given)
            if span and not catalog.older(span[1], d.engine):
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} needs vLLM {span[0]} or newer, this is {_speaks(d)}",
                    "",
                    "" if d.engine_known else WARNING,
                )


def _came_back(given: arguments.Given, d: Deployment) -> str:
    """Return the last version with a flag that the engine has again as another form, else ""."""
    if not given.spelt.startswith("--"):
        return ""
    listed = catalog.listed(given.spelt[2:].replace("_", "-"))
    return listed[1] if listed and catalog.older(listed[1], d.engine) else ""


def _span(given: arguments.Given) -> tuple[str, str] | None:
    """Return the first and the last version that know a flag which this one does not, else None."""
    if given.fault != arguments.UNKNOWN or not given.spelt.startswith("--"):
        return None
    return catalog.listed(given.name)


def formerly(given: arguments.Given) -> bool:
    """Return whether a version before the first listed one took the value of an option."""
    values = data_files.facts("catalog/versions")["formerly"].get(given.name)
    return bool(values) and re.fullmatch(values, given.text or "") is not None


def _speaks(d: Deployment) -> str:
    """Return the name of the engine, with a remark if nothing names its version."""
    return str(d.engine) if d.engine_known else f"assumed to be {d.engine} (nothing names it)"


@rule(
    "engine/flag-deprecated",
    WARNING,
    "No flag is deprecated.",
    "Use what replaces it; a later version refuses it.",
    _PARSER,
)
def flag_not_deprecated(d: Deployment) -> Iterator[Problem]:
    """A deprecated flag works today and is refused after the next upgrade."""
    for server in d.options():
        for given in server.given:
            spec = catalog.flag(d.engine, given.name)
            if spec and spec.get("deprecated"):
                instead = _instead(given.name)
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} is deprecated in {d.engine}",
                    f"Use {instead}." if instead else "",
                )


@rule(
    "engine/flag-ambiguous",
    ERROR,
    "A shortened flag means one flag.",
    "Write the flag in full.",
    "argparse: unique prefixes only",
)
def flag_unique(d: Deployment) -> Iterator[Problem]:
    """The parser takes a unique beginning of a flag and refuses one of several."""
    for server in d.options():
        for given in server.given:
            if given.fault == arguments.AMBIGUOUS:
                shown = ", ".join(given.candidates[:4])
                more = ", ..." if len(given.candidates) > 4 else ""
                gone = data_files.facts("catalog/versions")["gone"].get(given.name)
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} is gone: {gone}"
                    if gone
                    else f"{given.spelt} could be {shown}{more}",
                    "Take the flag out." if gone else "",
                    "" if d.engine_known else WARNING,
                )


@rule(
    "engine/missing-value",
    ERROR,
    "A flag that takes a value has one.",
    "Write the value after the flag.",
    _PARSER,
)
def value_present(d: Deployment) -> Iterator[Problem]:
    """'expected one argument', and nothing starts. Often an empty shell variable."""
    for server in d.options():
        for given in server.given:
            if given.fault == arguments.MISSING:
                yield Problem(server.at(given.index), f"{given.spelt} has no value")


@rule(
    "engine/stray-value",
    ERROR,
    "A switch has no value, and no word stands alone.",
    "Take the word out; a switch is turned off with its --no- form.",
    _PARSER,
)
def no_stray(d: Deployment) -> Iterator[Problem]:
    """'unrecognized arguments: true', and nothing starts."""
    for server in d.options():
        for given in server.given:
            if given.fault == arguments.STRAY:
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} is a switch and takes no value, found '{given.text}'",
                    "",
                    WARNING if not d.engine_known and formerly(given) else "",
                )
        before = {given.index: given for given in server.given}
        told = [given.index for given in server.given if given.name == "model"]
        for index, word in server.positional[:1] if told else ():
            if index > told[0] and not fill_ins.holds(word):
                said = f"'{word[:60]}' stands beside --model, and is taken for the model"
                yield Problem(server.at(index), said, "", WARNING)
        if any(word.startswith("...") or word.endswith("...") for _, word in server.stray):
            continue  # ...other flags...
        for index, word in server.stray:
            switch = before.get(index - 1)
            if fill_ins.holds(word) or word.startswith(("[-", "(-")):  # [--port PORT]: a synopsis
                continue
            if switch is not None and switch.text is None:
                yield Problem(
                    server.at(index),
                    f"{switch.spelt} is a switch and takes no value, found '{word}'",
                    "",
                    WARNING if not d.engine_known and formerly(replace(switch, text=word)) else "",
                )
            else:
                yield Problem(
                    server.at(index),
                    f"'{word[:60]}' belongs to no flag",
                    "",
                    # What a variable holds there depends on how the script is called.
                    WARNING if server.is_filled(index) else "",
                )


@rule(
    "engine/value",
    ERROR,
    "A value is of the kind that its flag takes.",
    "Write a value of the kind that is named.",
    _PARSER,
)
def value_kind(d: Deployment) -> Iterator[Problem]:
    """The parser refuses a value of the wrong kind before anything loads."""
    limits = data_files.facts("catalog/versions")["limits"]
    for server in d.options():
        last = {given.name: given for given in server.given}
        for given in server.given:
            value = server.flags.get(given.name)
            if (
                isinstance(value, arguments.Unread)
                and "known here" not in value.why
                and not value.why.startswith("not JSON")
                and given.text == value.text
            ):
                yield Problem(
                    server.at(given.index), f"{given.spelt} {value.text[:60]}: {value.why}"
                )
            least, most = limits.get(given.name, (None, None))
            number = server.number(given.name)
            bounds = ""
            if not given.path and not isinstance(value, arguments.Unread | dict | list):
                bounds = setting_values.fault(d.engine, given.name, value)
            spec = catalog.flag(d.engine, given.name) or {}
            if given.name in server.flags and not given.path and not fill_ins.holds(given.text):
                bounds = bounds or _wrong_shape(given.name, spec, value)
            if bounds and given is last.get(given.name):
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} {given.text}: {bounds}",
                    "",
                    "" if d.engine_known else WARNING,
                )
            elif (
                least is not None
                and number is not None
                and not least <= number <= most
                and number != -1
                and given is last.get(given.name)
            ):
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} {given.text}: {least} to {most} is allowed",
                )


def _wrong_shape(name: str, spec: Mapping[str, Any], value: Any) -> str:
    """Return what is wanted where a list holds what is no number, or JSON is no object."""
    if isinstance(value, list) and spec.get("nargs"):
        unread = [one for one in value if isinstance(one, arguments.Unread)]
        return f"{unread[0].text[:40]}: {unread[0].why}" if unread else ""
    is_object = isinstance(spec.get("default"), dict) or name.endswith("-config")
    if (
        is_object
        and catalog.type_of(spec) in ("json", "loads")
        and not isinstance(value, dict | arguments.Unread | None)
    ):
        return "a JSON object is wanted"
    return ""


@rule(
    "engine/choice",
    ERROR,
    "A value is one of the choices of its flag.",
    "Choose one of those named.",
    _PARSER,
)
def choice_exists(d: Deployment) -> Iterator[Problem]:
    """'invalid choice', and nothing starts. Choices change from version to version."""
    for server in d.options():
        for given in server.given:
            spec = catalog.flag(d.engine, given.name)
            if (
                not spec
                or not spec.get("choices")
                or given.text is None
                or given.path
                or fill_ins.holds(given.text)
            ):
                continue
            choices = [str(one) for one in spec["choices"] if one is not None]
            if spec.get("type", "").endswith("<lambda>"):
                text = given.text.lower().replace("-", "_")
            else:
                text = given.text
            if text not in choices and text.replace("_", "-") not in choices:
                near = difflib.get_close_matches(text, choices, n=1)
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt} {given.text} is no choice in {d.engine}"
                    f"{'' if d.engine_known else ' (assumed: nothing names it)'}: "
                    f"{', '.join(choices[:24])}",
                    f"Did you mean {near[0]}?" if near else "",
                    "" if d.engine_known else WARNING,
                )


@rule(
    "engine/flag-twice",
    WARNING,
    "A flag is given once.",
    "Keep one of them; the last one wins.",
    "argparse: the last one wins",
)
def flag_once(d: Deployment) -> Iterator[Problem]:
    """Of two values the last one wins, silently; who edits the first changes nothing."""
    for server in d.options():
        seen: dict[str, arguments.Given] = {}
        for given in server.given:
            if given.path or given.fault in (arguments.UNKNOWN, arguments.AMBIGUOUS):
                continue
            spec = catalog.flag(d.engine, given.name) or {}
            if isinstance(spec.get("default"), list):
                continue  # a list that each use adds to, such as --middleware
            other = seen.setdefault(given.name, given)
            if other is not given:
                first, second = (one.text or ("off" if one.off else "on") for one in (other, given))
                values = f"{first} and {second}" if first != second else f"{first} both times"
                yield Problem(server.at(given.index), f"--{given.name} is given twice: {values}")
