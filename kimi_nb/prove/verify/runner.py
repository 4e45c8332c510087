"""Run the checks one after the other: progress, results saved at once, resuming.

Usage::

    found = verify(target, folder=run.folder / plan.name, resume=True, say=print)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kimi_nb import show
from kimi_nb.core import evidence
from kimi_nb.core.errors import ParameterError
from kimi_nb.prove.verify import http_exchange, received, registry
from kimi_nb.prove.verify.asking import Ask
from kimi_nb.prove.verify.contract import (
    ABOVE,
    FAIL,
    PASS,
    SKIP,
    Contract,
    Failed,
    Gone,
    KeyRefused,
    NoAPI,
    Result,
    Skip,
)
from kimi_nb.prove.verify.registry import Check
from kimi_nb.prove.verify.target import Target
from kimi_nb.service import reply_mark

FILE = "verify.jsonl"
MAX_CONTEXT = 32768  # tokens of the canary's longest prompt, if the engine's context allows
LEAST = 128  # tokens, at least
_LONGEST = 2000  # characters of what was sent or came back; a check shortens what it can name
_TEXTS = ("name", "status", "sent", "got", "help", "cause")  # of a kept `Result`
_NO_SERVICE = "nothing is served with action plan"


@dataclass(frozen=True, repr=False)
class Checks(show.Shown):
    """The checks to make.

    Attributes:
        only: Names of checks or of their families; () for all.
        max_context: Tokens of the longest prompt.

    Raises:
        ParameterError: If a check does not exist, or ``max_context`` is not a number of tokens.
    """

    only: tuple[str, ...] = ()
    max_context: int = MAX_CONTEXT

    def __post_init__(self) -> None:
        chosen(self.only, self.max_context)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the checks, in their order."""
        return tuple(chosen(self.only, self.max_context))

    def table(self) -> show.Table:
        """Return a table with a row for each check."""
        asked = chosen(self.only, self.max_context)
        rows = tuple((name, check.title) for name, check in asked.items())
        return show.Table(f"{len(rows)} checks", ("check", "what must hold"), rows)


def chosen(only: Iterable[str], max_context: int) -> dict[str, Check]:
    """Return the checks that will be made.

    Raises:
        ParameterError: If a check does not exist, or ``max_context`` is not a number of tokens.
    """
    if type(max_context) is not int or max_context < LEAST:
        raise ParameterError(
            f"max_context {max_context!r}: a whole number of tokens is wanted, {LEAST} or more."
        )
    return registry.chosen(only)


def verify(
    target: Target,
    *,
    folder: Path | None = None,
    resume: bool = False,
    only: Iterable[str] = (),
    max_context: int = MAX_CONTEXT,
    say: Callable[[str], None] = lambda text: None,
) -> Contract:
    """Run the checks, or those of some names or families (``only``), and report each result.

    Results are appended to verify.jsonl in ``folder`` at once. With ``resume``, checks that passed
    or did not apply there, for the same service, are not repeated; those that failed are. No
    failure of the service raises an exception.

    Raises:
        ParameterError: If a check does not exist, or ``max_context`` is not a number of tokens.
    """
    checks = chosen(only, max_context)
    if not target.url:
        return Contract(
            "",
            target.model,
            tuple(Result(name, SKIP, "nothing", _NO_SERVICE, "") for name in checks),
        )
    target, absent = _known(target)
    ask = Ask(target, say, max_context)
    ask.absent = absent
    kept = _kept(folder, ask.target) if folder and resume else {}
    results: dict[str, Result] = {}
    end: Failed | None = None
    with tqdm(
        total=len(checks), unit="check", file=sys.stderr, disable=not sys.stderr.isatty()
    ) as bar:
        for number, (name, one) in enumerate(checks.items(), 1):
            bar.set_description(name)
            final = True
            if name in kept:
                result = kept[name]
            else:
                result, end, final = _made(one, ask, results, end)
            results[name] = result
            if folder and name not in kept:
                _keep(folder, result, final, ask.target)
            bar.update()
            known = " (known)" if name in kept else ""
            if not result.got.endswith(ABOVE):
                say(
                    f"{reply_mark.title(ask.target.marked)}{number} of {len(checks)}  {name}: "
                    f"{result.status}{known}" + (f": {result.got}" if result.status == FAIL else "")
                )
    if folder and ask.target.marked != ask.target.mark:
        # A stand-in among the engines has answered late: what was kept before is told anew.
        for result in results.values():
            _keep(folder, result, False, ask.target)
    return Contract(target.url, ask.target.model, tuple(results.values()), ask.target.marked)


def _keep(folder: Path, result: Result, final: bool, target: Target) -> None:
    """Write a result into the evidence; one that is ``final`` is not repeated by a resumed call."""
    evidence.record(folder, "verify", file=FILE, **result.as_dict(), final=final, **_of(target))


def _made(
    one: Check, ask: Ask, results: dict[str, Result], end: Failed | None
) -> tuple[Result, Failed | None, bool]:
    """Run a check; return (its result, what ends all further ones, whether it is final)."""
    if isinstance(end, Gone):
        return (
            Result(one.name, FAIL, "nothing", f"gone{ABOVE}", registry.cause_help(end.cause)),
            end,
            False,
        )
    if end is not None:
        why = "no OpenAI API is there" if isinstance(end, NoAPI) else "the key is refused"
        return Result(one.name, SKIP, "nothing", f"{why}{ABOVE}", ""), end, False
    if ask.absent:
        end = NoAPI(ask.absent)
        return (
            Result(
                one.name,
                FAIL,
                f"GET {http_exchange.MODELS}, POST {http_exchange.CHAT}",
                _clean(end.got, ask.target),
                registry.cause_help(end.cause),
            ),
            end,
            False,
        )
    failed = [name for name in one.needs if name in results and results[name].status == FAIL]
    if failed:
        return (
            Result(one.name, SKIP, "nothing", f"it needs {failed[0]}, which failed", ""),
            None,
            False,
        )
    ask.begin(one.name)
    asked_all = not (ask.lost or ask.unlike)
    cause = ""
    try:
        status, got, help_ = PASS, one.run(ask), ""
    except Skip as why:
        status, got, help_ = SKIP, why.why, ""
    except Failed as error:
        status, got, cause = FAIL, error.got, error.cause
        help_ = registry.cause_help(error.cause) or one.help
        end = error if isinstance(error, Gone | KeyRefused | NoAPI) else None
    # A result of only some engines is not final: it is repeated once all of them are there.
    return (
        Result(
            one.name, status, _clean(ask.sent, ask.target), _clean(got, ask.target), help_, cause
        ),
        end,
        status != FAIL and asked_all,
    )


def _known(target: Target) -> tuple[Target, str]:
    """Return (the target with what the service says about itself, why there is no API or "")."""
    listed: list[Any] = []
    absent = ""
    proxied = False
    # The front door may lack the list, as the upstream proxy of vllm-ascend does.
    for place in (target.door, *target.engines[:1]):
        try:
            reply = http_exchange.send(place, target, "GET", http_exchange.MODELS)
        except Failed:  # the checks will report it
            continue
        if place.is_door:
            absent = http_exchange.no_api(target, reply)
            proxied = reply.status == 404 and http_exchange.is_example_proxy(target)
        listed = listed or http_exchange.listing(reply)
    mine: dict[str, Any] = next((one for one in listed if one.get("id") == target.model), {})
    length, root = mine.get("max_model_len"), mine.get("root")
    same = (one["id"] for one in listed if root and one.get("root") == root)
    return replace(
        target,
        mark=target.marked,
        example_proxy=proxied,
        max_model_len=length if isinstance(length, int) else target.max_model_len,
        identity=f"{target.identity} {root or ''} {length or ''}".strip(),
        aliases=tuple(name for name in same if name != target.model),
    ), absent


def _of(target: Target) -> dict[str, str]:
    return {
        "url": target.url,
        "model": target.model,
        "identity": target.identity,
        "mark": target.marked,
    }


def _kept(folder: Path, target: Target) -> dict[str, Result]:
    """Return the results of an earlier run for this very service that need not be repeated."""
    out: dict[str, Result] = {}
    for line in evidence.read(folder, FILE):
        about = _of(target)
        if any(line.get(key) != about[key] for key in ("url", "model", "identity")):
            continue
        if line.get("mark") != about["mark"]:
            out.pop(str(line.get("name")), None)  # another kind of engine has answered since
            continue
        texts = [line.get(key, "") for key in _TEXTS]
        whole = all(isinstance(one, str) for one in texts) and texts[1] in (PASS, SKIP)
        if line.get("final") and whole:
            out[texts[0]] = Result(*texts)
        else:
            out.pop(str(line.get("name")), None)
    return out


def _clean(text: str, target: Target) -> str:
    """Return a text without the key, wherever that came from, as long as a table holds."""
    clean = text.replace(target.key, "(the key)") if target.key else text
    return received.short(clean, _LONGEST)
