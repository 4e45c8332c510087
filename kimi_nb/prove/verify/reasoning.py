"""Thoughts are in a field of their own and can be turned off."""

from __future__ import annotations

from kimi_nb.prove.verify.answer_bodies import THOUGHTS
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed, Skip
from kimi_nb.prove.verify.received import Answer, short
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service.chat_markers import THINKING
from kimi_nb.service.probe import QUESTION

_TELLING = 12  # characters; a shorter text may be in another one by chance


def after_thoughts(content: str) -> str:
    """Return the content after any thoughts that leaked into it; another check reports those.

    >>> after_thoughts("<think>It is July.</think>Yes")
    'Yes'
    """
    return THINKING.split(content)[-1]


@check("reasoning/apart")
def apart(ask: Ask) -> str:
    """Check that `reasoning` or `reasoning_content` has the thoughts and content no tags."""

    def look(place: Place) -> str:
        if place.reasoning is False:
            raise Skip(
                "the engine was started without --reasoning-parser (feature reasoning-parser)"
            )
        more = {} if ask.target.always_thinks else {"chat_template_kwargs": {"thinking": True}}
        answer = ask.chat(place, said(QUESTION, max_tokens=ask.budget(512), **more))
        _no_tags(answer)
        both = {answer.body["choices"][0]["message"].get(name) for name in THOUGHTS} - {None, ""}
        if len(both) > 1:
            raise Failed(f"{' and '.join(THOUGHTS)} differ: {both}")
        _not_twice(answer)
        if not answer.thoughts and place.reasoning is None:
            _no_leak(ask, place, answer)
        if not answer.thoughts:
            raise Failed(f"no thoughts: {answer}")
        return f"in {' and '.join(answer.named)}: {short(answer.thoughts, 60)!r}"

    return ask.everywhere(look)


def _not_twice(answer: Answer) -> None:
    """Check that the thoughts are not in the content as well."""
    thoughts = " ".join(answer.thoughts.split())
    if len(thoughts) >= _TELLING and thoughts in " ".join(answer.content.split()):
        raise Failed(f"the thoughts are in the content as well: {short(answer.content)!r}")


def _no_leak(ask: Ask, place: Place, answer: Answer) -> None:
    """Check that an answer without thoughts is one of a model that does not think.

    Raises:
        Failed: If thinking can be turned off, which shows in the prompt or in the answer.
        Skip: If nothing says that there should be thoughts.
    """
    if ask.target.always_thinks:
        raise Failed(f"no thoughts of a model that always thinks: {answer}")
    short_ = ask.chat(place, said(QUESTION, max_tokens=ask.budget(512), **ask.quiet))
    counts = [one.usage.get("prompt_tokens") for one in (answer, short_)]
    if counts[0] != counts[1]:
        raise Failed(
            f"no thoughts in a field of their own, although the prompt asks for them "
            f"({counts[0]} tokens, {counts[1]} with thinking off): {answer}"
        )
    longer = len(answer.content) - len(short_.content)
    if short_.content and short_.content in answer.content and longer >= _TELLING:
        raise Failed(f"thoughts in the content, without a tag: {answer}")
    raise Skip(f"nothing was thought, and no tag says that it should: {answer}")


@check("reasoning/off")
def off(ask: Ask) -> str:
    """Check that chat_template_kwargs {"thinking": false} gives an answer without thoughts."""
    if ask.target.always_thinks:
        raise Skip(f"{ask.target.model} always thinks")

    def look(place: Place) -> str:
        answer = ask.chat(place, said(QUESTION, **ask.quiet))
        _no_tags(answer)
        if answer.thoughts or not answer.content:
            raise Failed(f"thinking was not turned off: {answer}")
        return f"content only: {short(answer.content, 60)!r}"

    return ask.everywhere(look)


def _no_tags(answer: Answer) -> None:
    found = THINKING.search(answer.content)
    if found:
        start = max(0, found.start() - 30)
        raise Failed(f"thoughts in the content: {answer.content[start : found.end() + 30]!r}")
