"""Let the search of the pages take English words and Chinese text, which has no spaces.

Of Chinese every two characters are a word, in the index and in a question alike; so it is in the FAQ
of the notebooks (`kimi_nb.diagnose.faq`). No dictionary is needed.
"""

from __future__ import annotations

import re
from typing import ClassVar

from sphinx.search.en import SearchEnglish

_HAN = "\\u4e00-\\u9fff"
_PARTS = re.compile(rf"[{_HAN}]+|[^\W{_HAN}]+")


class BilingualSearch(SearchEnglish):
    """English, and Chinese by pairs of characters."""

    lang: ClassVar[str] = "en+zh"
    # Of the stemmer: Sphinx writes its name into JavaScript.
    language_name: ClassVar[str] = "English"
    js_splitter_code: ClassVar[str] = rf"""
var splitQuery = (query) => (query.match(/[{_HAN}]+|[^{_HAN}\W]+|[^{_HAN}\x00-\x7f\s]+/gu) || [])
  .flatMap((part) => /^[{_HAN}]{{2,}}$/u.test(part)
    ? Array.from(part).slice(1).map((next, at) => Array.from(part)[at] + next)
    : [part]);
"""

    def split(self, input: str) -> list[str]:
        """Return the words of a text.

        >>> BilingualSearch({}).split("NPU 显存不足, OOM")
        ['NPU', '显存', '存不', '不足', 'OOM']
        """
        return [word for part in _PARTS.findall(input) for word in _words(part)]


def _words(part: str) -> list[str]:
    if re.match(f"[{_HAN}]", part) and len(part) > 1:
        return [part[at : at + 2] for at in range(len(part) - 1)]
    return [part]
