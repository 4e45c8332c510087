"""Write what the client of a drill has seen: the progress of the start, and every answer.

Some failures are in no engine's log. They show only to those who ask the service::

    REHEARSAL 11-23 09:41:06 decode0-rank3 (a3-3, rank 3): POST /v1/chat/completions: 200 in 0.1 s; \
content '!!!!'
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from kimi_nb.core.marks import MARK
from kimi_nb.service.http_client import Reply
from kimi_nb.service.probe import Endpoint

_LONGEST = 160  # characters of a text that are kept


class ClientLog:
    """The log of the client of one drill, as a file; may be written from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._health: dict[str, str] = {}
        path.touch()

    def say(self, text: str) -> None:
        """Add a line of progress."""
        line = " ".join(text.split())
        with self._lock, self.path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{MARK} {time.strftime('%m-%d %H:%M:%S')} {line}\n")

    def heard(self, asked: str, where: Endpoint | None, reply: Reply) -> None:
        """Add an answer; that of /health only where it differs from the rank's last one."""
        who = f"{where.name} ({where.node}, rank {where.rank})" if where else "front door"
        if asked == "GET /health":
            said = f"{reply.status} {reply.error}"
            if self._health.get(who) == said:
                return
            self._health[who] = said
        self.say(f"{who}: {asked}: {_told(asked, reply)}")


def _told(asked: str, reply: Reply) -> str:
    out = f"{reply.status or 'no answer'} in {reply.seconds:.1f} s"
    if reply.error:
        out += f"; {_short(reply.error)}"
    if reply.status != 200:
        return f"{out}; {_short(reply.text)}" if reply.text else out
    if asked.startswith("GET"):
        return out
    message = reply.message
    if not message:
        return f"{out}; body {_short(reply.text)!r}"
    out += f"; content {_short(reply.content)!r}"
    if reply.thoughts:
        out += f"; reasoning {_short(reply.thoughts)!r}"
    if calls := message.get("tool_calls"):
        out += f"; tool calls {len(calls)}"
    if "kv_transfer_params" in asked:
        out += f"; kv_transfer_params {'given' if reply.body.get('kv_transfer_params') else 'none'}"
    return out


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
