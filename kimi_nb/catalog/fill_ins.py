"""What an author leaves to the reader: ``<node_ip>``, an unset ``$PORT``, ``xxx``, ``{{ value }}``, ``...``.

>>> holds("http://<node ip>:8000"), holds("http://192.0.2.1:8000")
(True, False)
>>> shown(masked("vllm serve <model path> --port {{ port }}"))
'vllm serve <model_path> --port <port>'

Such a text is a value that is not known, and no fault: what does not need it is still compared.
Two fill-ins of one name are one value; of two names they may differ, and may not.
"""

from __future__ import annotations

import re

MARK = (
    "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
    "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
)
# <node0_ip>, <your model>, <PORT>: what documents write where a value belongs.
ANGLED = re.compile(r"(?<![<>&\d])<([A-Za-z](?:[\w ./-]{0,60}\w)?)>(?![(&>])")
# A document's own marks for code around it; to bash, a command to run.
TICKED = re.compile(r"`<([A-Za-z](?:[\w ./-]{0,60}\w)?)>`")
_OTHERS = (
    re.compile(r"\|([a-z][a-z_]*_version)\|"),
    re.compile(r"\{\{-?\s*([\w.$ /-]{1,80}?)\s*-?\}\}"),  # Jinja and Helm
    re.compile(r"(?<![\w$({,])\{ ?([A-Za-z]\w*(?: \w+){0,4}) ?\}(?![\w},])"),  # { node0 ip }
)
_BARE = re.compile(
    rf"(?<=[\[:,])\s*({MARK[0]}[^{MARK[1]}\"]*{MARK[1]}|\$\{{\w+\}}|x{{2,}}|\{{?\.{{3,}}\}}?)\s*(?=[,\]}}])"
)
_MOST = 1000  # thousands of them are no script, and slow a grammar down
_HOLDS = re.compile(
    rf"\$[\w{{@*#?(]|`|{MARK[0]}|\{{\{{|<[A-Za-z][\w .-]*>|\bx{{2,}}\b|\bX{{2,}}\b|"
    r"\b\d+\.(?:\d+\.)*x{1,3}\b|^x\.x|^(?:\{?\.{3,}\}?|\N{HORIZONTAL ELLIPSIS}|\?+|-{3,})$|"
    r"^[a-z]\w*_(?:ip|port|num|size|host|addr|address)$|\byour[_-]\w|\bYOUR_[A-Z]|^\[[A-Za-z_ ]+\]$"
)


def masked(text: str) -> str:
    """Replace fill-ins by words, so that <ip> is no redirect and |version| no pipe."""

    def word(match: re.Match[str]) -> str:
        return f"{MARK[0]}{re.sub(r'[ /]', '_', match[1])}{MARK[1]}"

    if "<" in text:
        text = ANGLED.sub(word, TICKED.sub(word, text, _MOST), _MOST)
    if "{" in text or "|" in text:
        for pattern in _OTHERS:
            text = pattern.sub(word, text, _MOST)
    return text


def quoted(text: str) -> str:
    """Return JSON with quotes around the fill-ins that stand where a value belongs."""
    return _BARE.sub(lambda match: f'"{match[1]}"', text)


def shown(text: str) -> str:
    """Return a masked text as its author wrote it, or nearly so."""
    return text.replace(MARK[0], "<").replace(MARK[1], ">")


def holds(text: object) -> bool:
    """Return whether a text holds a fill-in, so that nobody knows its value."""
    return _HOLDS.search(str(text)[:4000]) is not None
