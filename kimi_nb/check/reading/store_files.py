"""Read what a script writes for the clients of a shared KV store: Mooncake's JSON.

>>> of('{"master_server_address": "192.0.2.11:50051"}', "a.sh", 3)[0].settings
{'master_server_address': '192.0.2.11:50051'}
"""

from __future__ import annotations

import json

from kimi_nb.check.view.deployment import StoreFile
from kimi_nb.check.view.engine_view import Spot

_KEY = "master_server_address"  # each of these files names the master
_LONGEST = 20_000  # characters; such a file has some three hundred


def of(text: str, file: str, line: int) -> list[StoreFile]:
    """Return the settings that a heredoc holds; nothing for any other text.

    The file that writes them counts as the node.
    """
    if _KEY not in text or len(text) > _LONGEST:
        return []
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(settings, dict) or not isinstance(settings.get(_KEY), str):
        return []
    return [StoreFile(Spot(file, file, line), file, settings)]
