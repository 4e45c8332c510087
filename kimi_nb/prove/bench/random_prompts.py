"""Random prompts of a given number of tokens, counted by the server's tokenizer if it answers.

Usage::

    texts, how = await random_prompts.make(session, url, model, load, headers)
    # how: "counted by the server's /tokenize: ..." or "estimated: 1.3 tokens a word, ..."
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping

import aiohttp

from kimi_nb.prove.bench import load_session
from kimi_nb.prove.bench.workload import Load
from kimi_nb.service.http_client import Limits

# Plain words, one or two tokens each in most tokenizers; none is a special token.
_WORDS = (
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
)
_PER_WORD = 1.3  # tokens, if no tokenizer counts them
_ROUNDS = 4  # of correction with the tokenizer's counts
_LIMITS = Limits(10.0, size=16 << 20)  # an answer has every token of a prompt
_SAMPLE = 16  # prompts whose tokens are counted; the others get the same number of words


async def make(
    session: aiohttp.ClientSession, url: str, model: str, load: Load, headers: Mapping[str, str]
) -> tuple[list[str], str]:
    """Return a prompt for each request of a load, and how their length was determined.

    The prompts depend only on the load's seed and the tokenizer. They begin differently, so that no
    prefix cache knows them.
    """
    dice = random.Random(load.seed)
    words = [[dice.choice(_WORDS) for _ in range(load.input_len)] for _ in range(load.prompts)]

    async def count(text: str) -> int | None:
        try:
            async with session.post(
                f"{url}/tokenize",
                headers=headers,
                json={"model": model, "prompt": text, "add_special_tokens": False},
                timeout=aiohttp.ClientTimeout(total=_LIMITS.total),
                **load_session.ONLY,
            ) as answer:
                if answer.status != 200:
                    return None
                found = json.loads(await load_session.whole(answer, _LIMITS))
                told = found.get("count") if isinstance(found, dict) else None
                return told if type(told) is int and told > 0 else None
        except (TimeoutError, aiohttp.ClientError, load_session.Unbounded, ValueError):
            return None

    per_word, how = _PER_WORD, f"estimated: {_PER_WORD} tokens a word, /tokenize does not answer"
    for _ in range(_ROUNDS):
        number = max(1, round(load.input_len / per_word))
        sample = [" ".join(one[:number]) for one in words[:_SAMPLE]]
        counted = [one for one in await asyncio.gather(*map(count, sample)) if one]
        if not counted:
            break
        mean = sum(counted) / len(counted)
        how = f"counted by the server's /tokenize: {mean:.0f} tokens each before its template"
        if abs(mean - load.input_len) <= 1 or number == 1 == round(load.input_len / per_word):
            break
        per_word = mean / number
    number = max(1, round(load.input_len / per_word))
    # If a word is less than one token there are not enough words: repeat them.
    return [" ".join((one * (1 + number // len(one)))[:number]) for one in words], how
