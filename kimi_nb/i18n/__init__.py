"""Translate finished English sentences where people read them; knows no domain and no other room.

English is what the project stores, logs, compares and prints as JSON. A face (a table, a terminal
line, a page) calls `translate` on a text just before it shows it, and escapes the result as before.

>>> from kimi_nb import i18n
>>> with i18n.using("zh"):
...     i18n.translate("rank 16 does not exist: dp 16 has ranks 0 to 15")
'rank 16 不存在：dp 16 的 rank 为 0 到 15'
"""

from kimi_nb.i18n.catalogue import into, translate
from kimi_nb.i18n.languages import LANGUAGES, current, use, using

__all__ = ["LANGUAGES", "current", "into", "translate", "use", "using"]
