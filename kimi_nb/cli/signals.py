"""Handle the signals that end a command."""

from __future__ import annotations

import signal


def end_like_ctrl_c() -> None:
    """Handle SIGTERM (a scheduler) and SIGHUP (a closed terminal) like Ctrl-C.

    The command then stops what it started and closes the evidence.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup ignores SIGHUP on purpose.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
