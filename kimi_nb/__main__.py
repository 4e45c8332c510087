"""``kimi-nb`` and ``python -m kimi_nb``: the command line.

Ctrl-C ends it without a traceback from the first import on: until a command runs there is nothing
to stop, so the signal does what it does to any program, and ends it.
"""

import gc
import os
import signal
import sys

_COLLECT_AT = 50_000  # new objects; the usual 700 cost a tenth of a short command, and free nothing
_OURS = signal.default_int_handler  # not so where Ctrl-C is ignored, as behind nohup and "&"


def run() -> int:
    """Run the command line; return the exit code."""
    gc.set_threshold(_COLLECT_AT)
    # Looking for plugins of pydantic reads the metadata of each installed distribution: this is for
    # the programs that are started.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    known = signal.getsignal(signal.SIGINT) is _OURS
    if known:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kimi_nb.cli import main  # start-up: what takes long is imported once this is settled
    from kimi_nb.core import lean_imports

    lean_imports.without_plugins()

    try:
        if known:
            signal.signal(signal.SIGINT, _OURS)
        return main.main()
    except KeyboardInterrupt:  # once more, while the first one was told
        return 130
    finally:
        if known:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # threads are waited for at the end


if __name__ == "__main__":
    sys.exit(run())
