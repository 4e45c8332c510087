"""Is the text garbled? First a short answer everywhere, then answers after ever longer prompts.

Broken kernels, transfers and parsers give text that no model would say: one character over and
over, replacement characters, an endless phrase, hardly any variety, or letters of many scripts. A
salad of real words looks like none of these; an engine that gives it cannot repeat three words.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter

from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed, Skip
from kimi_nb.prove.verify.received import Answer, short
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place
from kimi_nb.service import probe
from kimi_nb.service.probe import QUESTION

_RUN = re.compile(r"([^\w\s])\1{11,}|!{8,}")
_SQUEEZED, _FROM = 8.0, 400  # compression ratio of zlib, judged from so many characters on
_PERIOD = re.compile(r"(.{2,80}?)\1{7,}$", re.DOTALL)
_RANDOM = "random weights say nothing that could be judged"
_FIRST, _STEP = 1024, 2  # tokens of the shortest prompt, and the factor from one to the next
_LINES = 40
_REPEATED = ("copper", "willow", "seven")
_LETTERS, _SENTENCE = 12, 8  # letters and different words from which on a language can be told
# Words without which hardly an English sentence is made, and which other languages do not have.
_SMALL = frozenset(
    [
        "the",
        "of",
        "and",
        "is",
        "are",
        "am",
        "i'm",
        "be",
        "by",
        "to",
        "that",
        "this",
        "it",
        "you",
        "your",
        "my",
        "i",
        "with",
        "for",
        "who",
        "what",
        "can",
        "from",
    ]
)
_SCRIPTS = 4  # a text with letters of so many scripts is none that answers our questions
_SCRIPT_OF = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "BOPOMOFO": "CJK", "HANGUL": "CJK"}
_KNOWN = re.compile(
    "LATIN|GREEK|CYRILLIC|ARMENIAN|GEORGIAN|HEBREW|ARABIC|DEVANAGARI|BENGALI|TAMIL|TELUGU|KANNADA|"
    "MALAYALAM|GUJARATI|GURMUKHI|SINHALA|THAI|LAO|KHMER|MYANMAR|TIBETAN|ETHIOPIC|CJK"
)


def fault(text: str) -> str:
    """Return how a text is garbled, or "" if it is not.

    >>> fault("The weather in Beijing is fine."), fault("!" * 40)
    ('', "'!' over and over")
    """
    plain = "".join(text.split())
    if plain.count("\N{REPLACEMENT CHARACTER}") >= 3:
        return "replacement characters"
    run = _RUN.search(plain)
    if run:
        return f"{run[0][0]!r} over and over"
    if probe.garbled(text):
        return "one or two characters only"
    if mixed := _mixed(text):
        return mixed
    period = _PERIOD.search(text[-1000:])
    if period:
        return f"{short(period[1], 40)!r} again and again at the end"
    raw = text.encode()
    if len(text) >= _FROM and len(raw) > _SQUEEZED * len(zlib.compress(raw, 9)):
        return "next to no variety"
    return ""


def _mixed(text: str) -> str:
    """Return how a text mixes scripts, or "" if it is no mixture.

    A word or a name in another script is none. Japanese and Korean count as one script with
    Chinese, and Greek letters inside of words are units and formulas.
    """
    if text.isascii():
        return ""
    count = Counter(map(_script, text))
    found = sorted(name for name, letters in count.items() if name and letters > 1)
    if len(found) >= _SCRIPTS:
        return f"letters of {len(found)} scripts ({', '.join(found).lower()})"
    words = [word for word in re.findall(r"\w+", text) if _two_alphabets(word)]
    return f"letters of two scripts inside of words ({', '.join(words[:3])})" if words[1:] else ""


def _two_alphabets(word: str) -> bool:
    return {"LATIN", "CYRILLIC"} <= {_script(letter) for letter in word}


def _script(letter: str) -> str:
    first = unicodedata.name(letter, "").partition(" ")[0] if letter.isalpha() else ""
    script = _SCRIPT_OF.get(first, first)
    return script if _KNOWN.fullmatch(script) else ""


def _judged(answer: Answer) -> str:
    if not answer.answered:
        raise Failed(f"200 without words: {answer}", "empty-200")
    wrong = fault(answer.text)
    if wrong:
        raise Failed(f"{wrong}: {short(answer.text, 80)!r}")
    return str(answer)


@check("canary/words")
def words(ask: Ask) -> str:
    """Check that every place answers a short question with text, and can repeat three words."""
    if not ask.target.sense:
        raise Skip(_RANDOM)

    def look(place: Place) -> str:
        told = _judged(ask.chat(place, said(QUESTION, max_tokens=ask.budget(128))))
        _repeats(ask, place)
        _understands(ask, place)
        return told

    return ask.everywhere(look, drop=True)


def _repeats(ask: Ask, place: Place) -> None:
    """Check that three words come back; text that answers nothing may look like any other."""
    *first, last = _REPEATED
    wanted = f"{', '.join(first)} and {last}"
    body = said(f"Repeat these words: {wanted}.", max_tokens=ask.budget(256), **ask.quiet)
    answer = ask.chat(place, body)
    _judged(answer)
    text = answer.text.casefold()
    if not all(word in text for word in _REPEATED):
        raise Failed(f"the words {wanted} were to be repeated: {short(answer.text, 80)!r}")


def _understands(ask: Ask, place: Place) -> None:
    """Check that a question in English is answered in English."""
    answer = ask.chat(place, said(QUESTION, max_tokens=ask.budget(128), **ask.quiet))
    _judged(answer)
    if wrong := _foreign(answer.content or answer.thoughts):
        raise Failed(f"{wrong}: {short(answer.text, 80)!r}")


def _foreign(text: str) -> str:
    """Return why a text is no English sentence, or "".

    A short text is not judged, nor which words it has besides the small ones.

    >>> _foreign("Soy Kimi, un asistente de inteligencia artificial creado por Moonshot AI.")
    'not English, in which was asked'
    """
    letters = [letter for letter in text if letter.isalpha()]
    latin = sum(_script(letter) == "LATIN" for letter in letters)
    words = set(re.findall(r"[a-z']+", text.casefold()))
    if len(letters) >= _LETTERS and latin * 2 < len(letters):
        return "not in the script in which was asked"
    if len(words) >= _SENTENCE and len(words & _SMALL) < 2:
        return "not English, in which was asked"
    return ""


@check("canary/contexts")
def contexts(ask: Ask) -> str:
    """Check the same after ever longer prompts: some faults begin at 15,000 tokens."""
    if not ask.target.sense:
        raise Skip(_RANDOM)
    place, answer_tokens = ask.places[0], ask.budget(128)
    most = min(ask.max_context, (ask.target.max_model_len or ask.max_context) - answer_tokens - 64)
    lengths: list[int] = []
    wanted, per_line = min(_FIRST, most), 0.0
    if most < 128:
        raise Skip(f"the longest context to try is {most} tokens")
    while True:
        # The tokens of a line are known after the first prompt; until then, use few lines.
        lines = max(1, int(wanted / per_line) if per_line else min(_LINES, wanted // 40))
        answer = ask.chat(
            place,
            _ledger(lines, len(lengths), answer_tokens),
            seconds=(ask.target.seconds * (1 + wanted / 8192)),
        )
        told = answer.prompt_tokens
        per_line = max(told / lines, 1.0)
        lengths.append(told)
        ask.say(f"    {ask.name}: {told} tokens of context")
        try:
            _judged(answer)
        except Failed as error:
            raise Failed(f"at {told} tokens of context: {error.got}", error.cause) from None
        if told >= most * 0.9:
            return f"text at {', '.join(map(str, lengths))} tokens of context, {place.name}"
        if len(lengths) > 1:
            wanted *= _STEP
        wanted = min(wanted, int(most * 0.97))
        if len(lengths) > 40:
            raise Failed(f"prompt_tokens do not grow with the prompt: {lengths}")


def _ledger(lines: int, number: int, tokens: int) -> dict[str, object]:
    """Return a chat whose prompt has ``lines`` different lines.

    ``number`` makes the first line unlike that of any other prompt, so that no prefix is cached.
    """
    goods = ("crates of tea", "rolls of wire", "sacks of rice", "boxes of glass", "tins of paint")
    ports = ("Harbin", "Lagos", "Oslo", "Lima", "Perth", "Quebec", "Turin")
    text = "\n".join(
        f"{at}: the depot at {ports[at * 5 % 7]} holds {at * 37 % 991} {goods[at * 3 % 5]}."
        for at in range(lines)
    )
    return said(
        f"Ledger {number}\n{text}\nSay in one sentence what this ledger lists.", max_tokens=tokens
    )
