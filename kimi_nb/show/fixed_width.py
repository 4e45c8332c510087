"""Show scripts and other texts of fixed width: folded where they are long, with a button to copy.

Example::

    show.Text("client/chat.sh", text)
    show.Files("bundle/node-0", (show.File("node-0/launch.sh", text),))
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from kimi_nb.i18n import translate
from kimi_nb.show.frame import framed

_FOLDED = 30  # lines from which on a text is folded
# Only a secure page (https, 127.0.0.1) has a clipboard; elsewhere the text is selected and copied.
_COPY = (
    "const t=this.nextElementSibling,b=this;const ok=()=>{b.textContent='Copied';"
    "setTimeout(()=>{b.textContent='Copy'},4000)};"
    "const old=()=>{const r=document.createRange();r.selectNodeContents(t);"
    "const s=getSelection();s.removeAllRanges();s.addRange(r);document.execCommand('copy');"
    "ok()};navigator.clipboard?navigator.clipboard.writeText(t.textContent).then(ok,old):old()"
)


def _copyable(text: str) -> str:
    word = html.escape(translate("Copy"))
    script = _COPY.replace("'Copied'", repr(translate("Copied"))).replace("'Copy'", repr(word))
    return (
        '<div class="kimi-copy"><button type="button" class="jupyter-button" '
        f'onclick="{html.escape(script, quote=True)}">{word}</button>{_pre(text)}</div>'
    )


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _clean(text: str) -> str:
    from kimi_nb.core import known_secrets  # start-up: only when shown

    return known_secrets.text(text)


def _folded(title: str, about: str, inner: str) -> str:
    shown = f'{_told(title)} <span class="about">{_told(about)}</span>'
    return f"<details><summary>{shown}</summary>{inner}</details>"


def _told(text: str) -> str:
    return html.escape(translate(text))


def _lines(text: str) -> str:
    many = len(text.splitlines())
    return f"{many} line{'s' * (many != 1)}"


@dataclass(frozen=True)
class Preformatted:
    """A text of fixed width for a page that runs nothing: it can be selected, there is no button."""

    text: str

    def __str__(self) -> str:
        return _clean(self.text)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _pre(str(self))


@dataclass(frozen=True)
class Text:
    """A script or other fixed-width text with a title."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"--- {_clean(self.title)}\n{_clean(self.text)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        title, text = _clean(self.title), _clean(self.text)
        many = len(text.splitlines())
        shown = _copyable(text) if many > 1 else _pre(text)
        if many > _FOLDED:
            return framed(_folded(title, _lines(text), shown))
        return framed((f'<div class="title">{_told(title)}</div>' if title else "") + shown)


@dataclass(frozen=True)
class File:
    """A file to show.

    Attributes:
        name: Its name under the title.
        text: What is in it.
        also: The names of other files with the same text.
        hidden: The path where it can be read, if it is named only.
    """

    name: str
    text: str
    also: tuple[str, ...] = ()
    hidden: str = ""

    @property
    def about(self) -> str:
        """Its size, and where else it is."""
        said = [_lines(self.text)]
        if self.hidden:
            said = [
                f"{said[0]}, {len(self.text.encode(errors='replace')):,} bytes, not shown here: {self.hidden}"
            ]
        if self.also:
            said.append(f"the same: {', '.join(self.also)}")
        return "; ".join(said)


@dataclass(frozen=True)
class Files:
    """Files under a title: each one folded in a notebook, one after another when printed."""

    title: str
    files: tuple[File, ...]

    @property
    def text(self) -> str:
        """The texts that are shown, each below its name."""
        return "\n".join(
            f"##### {one.name} ({one.about})" + ("" if one.hidden else f"\n{one.text}")
            for one in self.files
        )

    def __str__(self) -> str:
        return f"--- {_clean(self.title)}\n{_clean(self.text)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f'<div class="title">{_told(_clean(self.title))}</div>']
        for one in self.files:
            name, about = _clean(one.name), _clean(one.about)
            if one.hidden:
                faint = f'<span class="about">{_told(about)}</span>'
                parts.append(f"<div>{html.escape(name)} {faint}</div>")
            else:
                parts.append(_folded(name, about, _copyable(_clean(one.text))))
        return framed("".join(parts))
