"""Tool calls, whole and streamed: they arrive, with Kimi's ids and arguments that fit.

Each property is judged by one check, so that each fault is reported once. If an engine says that it
was started without its tool parser, that is not a fault of the service and the checks do not apply.
A call that arrives as text is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kimi_nb.core import data_files
from kimi_nb.prove.verify import raw_answers
from kimi_nb.prove.verify.asking import Ask, Exchange, said
from kimi_nb.prove.verify.contract import Failed, Skip
from kimi_nb.prove.verify.offered_tools import (
    ONE,
    TIME,
    TWO,
    WEATHER,
    arguments,
    no_markers,
)
from kimi_nb.prove.verify.received import Answer, short
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.streaming import compare
from kimi_nb.prove.verify.target import Place

_AUTO = ("tool-calls/auto",)
_UNSET = ("requires --enable-auto-tool-choice", "requires --tool-call-parser")


def _call(ask: Ask, place: Place, question: str, *, stream: bool = False, **more: Any) -> Answer:
    """Return an answer to a question with tools on offer.

    Raises:
        Skip: If the engine has no tool parser.
    """
    if place.tools is False:
        raise Skip("the engine was started without --tool-call-parser (feature tool-parser)")
    body = said(question, **{"max_tokens": ask.budget(1024), "tools": [WEATHER, TIME], **more})
    try:
        return ask.chat(place, body, stream=stream)
    except Failed as error:
        if error.cause == "refused" and any(text in error.got for text in _UNSET):
            raise Skip(f"the engine has no tool parser: {error.got}") from None
        raise


def _by_itself(ask: Ask) -> None:
    if not ask.target.sense:
        raise Skip("random weights call no tool by themselves")


def _of_each(ask: Ask, question: str, judge: Callable[[Answer], str], **more: Any) -> str:
    """Return what ``judge`` says about the calls that each place makes."""
    _by_itself(ask)

    def look(place: Place) -> str:
        answer = _call(ask, place, question, **more)
        if not answer.calls:
            raise Failed(f"no call: {answer}")
        return judge(answer)

    return ask.everywhere(look, again=True)


@check("tool-calls/auto")
def auto(ask: Ask) -> str:
    """Check that the model calls the function by itself, with no marker left in the text."""
    _by_itself(ask)

    def look(place: Place) -> str:
        answer = _call(ask, place, ONE, tool_choice="auto")
        no_markers(answer)
        if [one.name for one in answer.calls] != ["get_weather"]:
            raise Failed(f"not one call of get_weather: {answer}")
        if answer.finish_reason != "tool_calls":
            raise Failed(f"finish_reason {answer.finish_reason!r} beside a call")
        return str(answer)

    return ask.everywhere(look, again=True)


@check("tool-calls/ids", needs=_AUTO)
def ids(ask: Ask) -> str:
    """Check that ids are functions.NAME:IDX, which the model expects in later turns."""

    def judge(answer: Answer) -> str:
        for at, one in enumerate(answer.calls):
            if one.id != f"functions.{one.name}:{at}":
                raise Failed(f"id {one.id!r}, not 'functions.{one.name}:{at}'")
        return ", ".join(one.id for one in answer.calls)

    return _of_each(ask, ONE, judge, **ask.quiet)


@check("tool-calls/arguments", needs=_AUTO)
def fitting(ask: Ask) -> str:
    """Check that the arguments are JSON of the function's schema."""

    def judge(answer: Answer) -> str:
        return ", ".join(f"{arguments(one, [WEATHER, TIME])}" for one in answer.calls)

    return _of_each(ask, ONE, judge, **ask.quiet)


@check("tool-calls/streaming", needs=_AUTO)
def streaming(ask: Ask) -> str:
    """Check that streamed calls equal those of the whole answer, and none is in the text."""
    _by_itself(ask)

    def look(place: Place) -> str:
        told = _call(ask, place, ONE, stream=True, **ask.quiet)
        no_markers(told)
        compare(_call(ask, place, ONE, **ask.quiet), told)
        return str(told)

    return ask.everywhere(look, again=True)


@check("tool-calls/several", needs=_AUTO)
def several(ask: Ask) -> str:
    """Check that two calls arrive in one turn, whole and streamed, with different ids."""
    _by_itself(ask)

    def look(place: Place) -> str:
        for stream in (False, True):
            answer = _call(ask, place, TWO, stream=stream, **ask.quiet)
            no_markers(answer)
            if sorted(one.name for one in answer.calls) != ["get_time", "get_weather"]:
                raise Failed(
                    f"not one call of each function, {'streamed' if stream else 'whole'}: {answer}"
                )
            if len({one.id for one in answer.calls}) != 2:
                raise Failed(f"two calls with one id: {answer}")
        return str(answer)

    return ask.everywhere(look, again=True)


@check("tool-calls/none")
def none(ask: Ask) -> str:
    """Check that tool_choice none gives words and no call."""

    def look(place: Place) -> str:
        answer = _call(ask, place, ONE, tool_choice="none", **ask.quiet)
        if answer.calls:
            raise Failed(f"a call although tool_choice is none: {answer}")
        return str(answer)

    return ask.everywhere(look)


@check("tool-calls/required", needs=_AUTO)
def required(ask: Ask) -> str:
    """Check that tool_choice required gives a call, whatever is asked."""
    return _forced(ask, "required", ("get_weather", "get_time"))


@check("tool-calls/named", needs=_AUTO)
def named(ask: Ask) -> str:
    """Check that tool_choice with a function's name gives a call of that function."""
    return _forced(ask, {"type": "function", "function": {"name": "get_time"}}, ("get_time",))


def _forced(ask: Ask, choice: Any, allowed: tuple[str, ...]) -> str:
    """Check a call that the engine's grammar enforces, for any model."""

    def look(place: Place) -> str:
        answer = _call(ask, place, "Good morning.", tool_choice=choice, **ask.quiet)
        if not ask.target.sense and answer.finish_reason == "length":
            raise Skip(f"random weights did not end the call: {answer}")
        if not answer.calls or any(one.name not in allowed for one in answer.calls):
            raise Failed(f"no call of {' or '.join(allowed)}: {answer}")
        # vLLM 0.32 enforces the call but not its schema: random weights may give any JSON.
        for one in answer.calls if ask.target.sense else ():
            arguments(one, [WEATHER, TIME])
        return str(answer)

    return ask.everywhere(look)


@check("tool-calls/schemas", needs=(*_AUTO, "tool-calls/required"))
def schemas_kept(ask: Ask) -> str:
    """Check that arguments fit schemas of many forms, whole and streamed."""
    _by_itself(ask)
    cases = data_files.facts("prove/vendor_checks")["tool_schemas"]

    def look(place: Place) -> str:
        for name, schema in cases.items():
            tool = {"name": f"note_{name}", "description": "Note a value.", "parameters": schema}
            tools = [{"type": "function", "function": tool}]
            for stream in (False, True):
                answer = _call(
                    ask,
                    place,
                    f"Call note_{name} with any values that its schema allows.",
                    stream=stream,
                    tools=tools,
                    tool_choice="required",
                    **ask.quiet,
                )
                if not answer.calls:
                    raise Failed(f"no call of note_{name}: {answer}")
                for one in answer.calls:
                    arguments(one, tools)
        return f"{len(cases)} schemas, whole and streamed"

    return ask.everywhere(look, ask.few, again=True)


@check("tool-calls/next-turn", needs=_AUTO)
def next_turn(ask: Ask) -> str:
    """Check that the result of a call is used, with no special token in the words."""
    _by_itself(ask)
    call = {
        "id": "functions.get_weather:0",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Beijing", "unit": "celsius"}'},
    }
    messages = [
        *said(ONE)["messages"],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": '{"celsius": 23}'},
    ]

    def look(place: Place) -> str:
        answer = _call(ask, place, ONE, messages=messages, **ask.quiet)
        found = raw_answers.SPECIAL.search(answer.content)
        if found:
            raise Failed(
                f"a special token in the words: {short(answer.content[found.start() :])!r}"
            )
        if not answer.answered:
            raise Failed(f"no words: {answer}")
        return str(answer)

    return ask.everywhere(look)


@check("tool-calls/end", needs=_AUTO)
def end(ask: Ask) -> str:
    """Check that each answer says tool_calls if there are calls, and only then."""

    def look(place: Place) -> str:
        found = _with_tools(ask, place)
        for one in found:
            if wrong := raw_answers.end_fault(one.answer, named=one.named):
                raise Failed(wrong)
        return f"{len(found)} answers"

    return ask.everywhere(look)


@check("tool-calls/form", needs=_AUTO)
def form(ask: Ask) -> str:
    """Check the fields of each call as it came: type, id, index."""

    def look(place: Place) -> str:
        calls = 0
        for one in _with_tools(ask, place):
            if wrong := raw_answers.calls_fault(one.answer):
                raise Failed(wrong)
            calls += len(one.answer.calls)
        if not calls:
            raise Skip("no answer has a call")
        return f"{calls} calls"

    return ask.everywhere(look)


def _with_tools(ask: Ask, place: Place) -> list[Exchange]:
    """Return every answer of a place to a request with tools; whole and streamed ones.

    Raises:
        Skip: If the engine has no tool parser, or no valid answer came, which others report.
    """
    for stream in (False, True):
        if not any(one.tools and one.answer.wire.streamed is stream for one in ask.of(place)):
            try:
                _call(ask, place, ONE, stream=stream, **ask.quiet)
            except Failed as error:
                raise Skip(f"no answer with tools on offer: {error.got}") from None
    return [one for one in ask.of(place) if one.tools]
