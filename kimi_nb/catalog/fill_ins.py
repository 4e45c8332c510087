"""What an author leaves to the reader: ``<node_ip>``, an unset ``$PORT``, ``xxx``, ``{{ value }}``, ``...``.

>>> holds("http://<node ip>:8000"), holds("http://192.0.2.1:8000")
(True, False)
>>> shown(masked("vllm serve <model path> --port {{ port }}"))
'vllm serve <model_path> --port <port>'

Such a text is a value that is not known, and no fault: what does not need it is still compared.
Two fill-ins of one name are one value; of two names they may differ, and may not.
"""

from __future__ import annotations

import functools
import re

MARK = (
    "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
    "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
)
# <node0_ip>, <your model>, <PORT>: what documents write where a value belongs.
ANGLED = re.compile(r"(?<![<>&\d])<([^\W\d_](?:[\w ./-]{0,60}\w)?)>(?![(&>])")
# A document's own marks for code around it; to bash, a command to run.
TICKED = re.compile(r"`<([^\W\d_](?:[\w ./-]{0,60}\w)?)>`")
_OTHERS = (
    re.compile(r"\|([a-z][a-z_]*_version)\|"),
    re.compile(r"\{\{-?\s*([^{}\n\"':][^{}\n]{0,200}?)\s*-?\}\}"),  # Jinja and Helm
    re.compile(
        r"(?:(?<=\s)|(?<==))\[([^\W\d_][\w./-]*(?: [\w./-]+){1,6})\]"
    ),  # [path of the model]
    re.compile(r"(?<![\w$({,])\{ ?([A-Za-z]\w*(?: \w+){0,4}) ?\}(?![\w},])"),  # { node0 ip }
)
# A tag of Jinja or Helm that stands for no value.
_CONTROL = re.compile(
    r"\{%[^{}\n]*%\}|\{\{-?\s*(?:/\*[^\n]*?\*/|#|(?:if|else|end|range|with|define|block)\b"
    r"[^{}\n]{0,400}|\$\w+ :?= [^{}\n]{0,400})\s*-?\}\}"
)
_BARE = re.compile(
    rf"(?<=[\[:,])\s*({MARK[0]}[^{MARK[1]}\"]*{MARK[1]}|\$\{{\w+\}}|\$\(\w+\)|x{{2,}}|\{{?\.{{3,}}\}}?)\s*(?=[,\]}}])"
)
_SUM = re.compile(r"\$\(\([^\n]{0,400}?\)\)")
_MARKED = re.compile(rf"{MARK[0]}([^{MARK[1]}\n]*){MARK[1]}")
_MOST = 1000  # thousands of them are no script, and slow a grammar down
_SHORT = 200  # characters of a text whose answer is kept
_HOLDS = re.compile(
    rf"\$[\w{{@*#?(]|`|{MARK[0]}|\{{\{{|<[^\W\d_][\w .-]*>|\bx{{2,}}\b|\bX{{2,}}\b|"
    r"\b\d+\.(?:\d+\.)*x{1,3}\b|^x\.x|^(?:\{?\.{3,}\}?|\N{HORIZONTAL ELLIPSIS}|\?+|-{3,})$|"
    r"^[a-z]\w*_(?:ip|port|num|size|host|addr|address)$|\byour[_-]\w|\bYOUR_[A-Z]|\bREPLACE_[A-Z]|^\[[A-Za-z_ ]+\]$"
)


def untagged(text: str) -> str:
    """Return a template without the tags that stand for no value, line for line.

    >>> untagged("serve m {{- if .x }} --eager{{ end }}")
    'serve m  --eager'

    A line of tags alone goes, and a command that is continued above it goes on below it.
    """
    if "{{" not in text and "{%" not in text:
        return text
    out: list[str] = []
    for line in text.split("\n"):
        rest = _CONTROL.sub("", line)
        if rest != line and not rest.strip():
            rest = "\\" if out and out[-1].endswith("\\") else ""
        out.append(rest)
    return "\n".join(out)


def stands_for_number(text: str) -> bool:
    """Return whether a text where a number is wanted is a name for one: MAX_MODEL_LEN, PORT."""
    return re.fullmatch(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*", text) is not None


def masked(text: str) -> str:
    """Replace fill-ins by words, so that <ip> is no redirect and |version| no pipe."""

    def word(match: re.Match[str]) -> str:
        name = re.sub(r"[^\w.-]", "_", match[1])
        return f"{MARK[0]}{name}{MARK[1]}"

    text = untagged(text)
    if "<" in text:
        text = ANGLED.sub(word, TICKED.sub(word, text, _MOST), _MOST)
    if "{" in text or "|" in text or "[" in text:
        for pattern in _OTHERS:
            text = pattern.sub(word, text, _MOST)
    if MARK[0] in text and "$((" in text:  # in a sum, a value that is not known is a variable
        text = _SUM.sub(lambda match: _MARKED.sub(_variable, match[0]), text)
    return text


def _variable(match: re.Match[str]) -> str:
    return re.sub(r"\W", "_", match[1])


def quoted(text: str) -> str:
    """Return JSON with quotes around the fill-ins that stand where a value belongs."""
    return _BARE.sub(lambda match: f'"{match[1]}"', text)


def shown(text: str) -> str:
    """Return a masked text as its author wrote it, or nearly so."""
    return text.replace(MARK[0], "<").replace(MARK[1], ">")


def holds(text: object) -> bool:
    """Return whether a text holds a fill-in, so that nobody knows its value."""
    words = str(text)[:4000]
    return _holds(words) if len(words) < _SHORT else _HOLDS.search(words) is not None


@functools.lru_cache(maxsize=1 << 14)
def _holds(words: str) -> bool:
    """Return it for a short text: thousands of engines say the same."""
    return _HOLDS.search(words) is not None
