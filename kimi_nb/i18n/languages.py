"""Choose the language in which people read: what was set here, else what the environment says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

LANGUAGES = ("en", "zh")
VARIABLE = "KIMI_NB_LANG"
# As gettext reads them, from strong to weak (POSIX, locale(7)).
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
_chosen = ""


def current() -> str:
    """Return "en" or "zh": what `use` set, else KIMI_NB_LANG, else the locale of the environment.

    Any other language is "en".
    """
    if _chosen:
        return _chosen
    named = next(filter(None, map(os.environ.get, (VARIABLE, *_LOCALE))), "")
    return "zh" if named.casefold().startswith("zh") else "en"


def use(language: str) -> None:
    """Set the language of this process; "" leaves it to the environment.

    Raises ValueError for a language that has no catalogue.
    """
    global _chosen
    if language and language not in LANGUAGES:
        raise ValueError(f"language {language!r} is not known. Allowed: {', '.join(LANGUAGES)}.")
    _chosen = language


@contextlib.contextmanager
def using(language: str) -> Iterator[None]:
    """Set the language for a while."""
    before = _chosen
    use(language)
    try:
        yield
    finally:
        use(before)
