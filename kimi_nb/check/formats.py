"""The findings of a check in the formats that other programs read: SARIF, and GitHub's commands.

>>> from kimi_nb.check import formats, judge
>>> from kimi_nb.plan import build
>>> found = judge.plan(build.plan("k2.5", "a3", "pd"))
>>> formats.sarif(found)["version"]
'2.1.0'

What stands in a script is hostile here: a message must not become a command, a link or a place
outside the files that were checked.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping
from typing import Any

from kimi_nb import __version__
from kimi_nb.check import rule_pages
from kimi_nb.check.findings import ERROR, NOTE, WARNING, Finding, Findings
from kimi_nb.check.rules import registry
from kimi_nb.show import visible

# https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
# GitHub Actions, "Workflow commands": the annotations that there are.
_COMMANDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}


def sarif(found: Findings, base: str = "", home: str = "") -> dict[str, Any]:
    """Return the findings as a SARIF 2.1.0 log.

    ``base`` is the folder to which the paths of the log are relative. ``home`` is the address of
    the folder that holds the pages of the rules (``helpUri``); without one a rule brings its page
    as a text alone.
    """
    results = [
        *((one, "") for one in found.findings),
        *found.ignored,
    ]
    ids = list(dict.fromkeys(one.rule for one, _ in results))
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kimi-nb",
                        "version": __version__,
                        "rules": [_rule(identity, home) for identity in ids],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            *(_notification(found, spot, base) for spot in found.unread),
                            {"level": "note", "message": {"text": _inert(found.verdict)}},
                        ],
                    }
                ],
                "results": [
                    _result(found, one, ids.index(one.rule), base) | _suppressed(reason)
                    for one, reason in results
                ],
            }
        ],
    }


def github(found: Findings, base: str = "") -> str:
    """Return the findings as workflow commands of GitHub Actions, one a line, the verdict last.

    ``base`` is the folder to which the paths are relative.
    """
    lines = [
        _command(
            _COMMANDS[one.severity],
            f"{one.told}. {one.fix}",
            file=_path(found, one.file, base),
            line=one.line,
            title=one.rule,
        )
        for one in found.findings
    ]
    for spot in found.unread:
        path = _path(found, str(spot["file"]), base)
        said = f"not read: {spot['reason']}"
        lines.append(_command("notice", said, file=path, line=spot.get("line"), title="not read"))
    return "\n".join([*lines, _command("notice", found.verdict, title="kimi-nb check")])


def _command(name: str, said: str, **properties: object) -> str:
    """Return a workflow command, in which no text can end it or begin another."""
    given = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value)
    return f"::{name} {given}::{_data(said)}"


def _data(text: str) -> str:
    # Of a text of many lines, visible() has made one; these are the escapes of the commands.
    return visible(text, lines=False).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _rule(identity: str, home: str) -> dict[str, Any]:
    rule = registry.find(identity)
    page = visible(rule_pages.page(rule))
    link = {"helpUri": f"{home.rstrip('/')}/{rule_pages.path(identity)}"} if home else {}
    return {
        "id": identity,
        "shortDescription": {"text": rule.says},
        "fullDescription": {"text": rule.why},
        "defaultConfiguration": {"level": rule.severity},  # the words are the same
        "help": {"text": f"{rule.why} {rule.fix} Source: {rule.source}", "markdown": page},
        **link,
    }


def _result(found: Findings, one: Finding, index: int, base: str) -> dict[str, Any]:
    lines = (one.line, *one.also)
    places = [_place(found, one.file, line, base) for line in lines] if one.file else []
    first = places[0] if places else {}
    others = [{"id": number, **place} for number, place in enumerate(places[1:], start=1)]
    return {
        "ruleId": one.rule,
        "ruleIndex": index,
        "level": one.severity,
        "message": {"text": _inert(f"{one.message}. {one.fix}")},
        "locations": [
            {**first, "logicalLocations": [{"fullyQualifiedName": visible(one.where, lines=False)}]}
        ],
        **({"relatedLocations": others} if others else {}),
    }


def _suppressed(reason: str) -> dict[str, Any]:
    """Return what is said of a finding that a comment ignores for a reason."""
    said = {"kind": "inSource", "justification": visible(reason, lines=False)}
    return {"suppressions": [said]} if reason else {}


def _notification(found: Findings, spot: Mapping[str, Any], base: str) -> dict[str, Any]:
    return {
        "level": "note",
        "message": {"text": _inert(f"not read: {spot['reason']}")},
        "locations": [_place(found, str(spot["file"]), spot.get("line") or 0, base)],
    }


def _place(found: Findings, file: str, line: int, base: str) -> dict[str, Any]:
    region = {"region": {"startLine": line}} if line else {}
    uri = urllib.parse.quote(os.fsencode(_path(found, file, base)))
    # A colon would make a scheme of what is before it.
    uri = f"file://{uri}" if uri.startswith("/") else uri.replace(":", "%3A")
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, **region}}


def _path(found: Findings, file: str, base: str) -> str:
    """Return where a file lies: relative to ``base`` where it lies below it."""
    path = os.path.normpath(found.paths.get(file, file)) if file else ""
    below = os.path.join(base, "")
    return path.removeprefix(below) if base else path


def _inert(text: str) -> str:
    """Return a text in which SARIF sees no link (``[text](target)``), and nothing is hidden."""
    return visible(text, lines=False).replace("](", "] (")
