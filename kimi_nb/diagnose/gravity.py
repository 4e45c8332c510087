"""Tell whether a line reports a failure, or only looks like one (data/diagnose/error_words.yaml).

>>> from kimi_nb.diagnose import line_grammar
>>> reports_error(line_grammar.of("Fatal Python error: Segmentation fault"))
True
>>> why_harmless(line_grammar.of("ERROR 11-22 05:49:28 [x.py:7] 404 Not Found"))
'refused'
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from kimi_nb.core import data_files
from kimi_nb.diagnose import log_lines
from kimi_nb.diagnose.line_grammar import Said

# Levels below error at which a program all the same says that a process, or its card, is dead.
_DEATHS = re.compile(
    r"A worker died or was killed|killed due to memory pressure|OOMKilled|"
    r"Received context async event .*\b(?:error|fatal|violation)\b"
)
# A limit that is reached again and again ends a program, at whatever level it says so.
LIMIT = re.compile(r"Too many open files")
MAY = re.compile(r"\b(?:can|could|may|might) cause\b")  # what has not happened
# Where in its own code an exception of C++ was raised that was told before.
_DETAIL = re.compile(
    r"Exception raised from \S+ at |ERROR: Ignored the following |', please check the stack trace above"  # the end of a quote
)
# NCCL writes its errors at WARN, beside remarks that mean nothing.
_NCCL = re.compile(
    r"fail|error|errno|no route|closed by|abort|timed? ?out|exceeded|refused|unreachable|mismatch|duplicate|wrong|invalid|corrupt|no POLLOUT|status=[1-9]|got completion from peer",
    re.IGNORECASE,
)
# The border, or a row, of a table, with which CANN shows what it says below.
_DRAWN = re.compile(r"\s*(?:_{5}|-{5}|={5}|\*{5}|\|)")
# By these words SGLang, which writes no level, says that something went wrong.
_FAILS = re.compile(r"\bfailed\b|\b[Ee]rror\b|timed out|^Exception in [A-Z]\w+:")
_HARMLESS = re.compile(
    r"Ignore import error|^Error in extracting tool call from response|^Error trying to handle streaming tool call|^Failed to import \S+ with \w*Error\(|"
    r"Request is disconnected from the client side|Exception ignored in|Error ignored|Error\. nthreads cannot be larger|CancelledError|"
    r"client disconnected|waiting for \S+ to be ready|KeyboardInterrupt|leaked (?:shared_memory|semaphore)|"
    r"destroy_process_group\(\) was not called|Pyspy failed to dump|PRTE ERROR: Bad parameter|"
    r"\bcan (?:be )?(?:safely )?(?:be )?ignored?\b|\b[Tt]o (?:silence|suppress) this warning\b|\b[Rr]etrying \d+ (?:of|/) \d+|"
    r"sleeping and retrying|\(attempt \d{1,4}/\d{1,4}\), retrying in |Aborted by AbortReq|cannot be preloaded \(.*\): ignored\.?$"
)
# What tidies up behind a program, and is none of its own work.
_TIDIES = re.compile(r"multiprocessing/resource_tracker")
# A probe that asks whether a program is ready, and is told that it is not yet.
_PROBE = re.compile(
    r"\b503\b.*(?:uri=|\bGET )/(?:live|health|ready)z?\b|\"GET /(?:live|health|ready)z? .*\b503\b"
)
_WARMS_UP = re.compile(r"\b[Ww]arm-?up error\b")
# A client's mistake, as engines and front doors write it; a hub's answer is none.
_REFUSED = re.compile(
    r"\b(?:40[0-9]|41[0-9]|42[0-9])\b[ :'\"-]*(?:Bad Request|Not Found|Unauthorized|Forbidden|"
    r"Unprocessable|Method Not Allowed|Payload Too Large|Request Entity|Client Error|Too Many)|"
    r"(?:status|status_code|status code|code)[=: ]\s*\"?4\d\d\b|HTTP/1\.[01]\" 4\d\d|"
    r"maximum context length is|max_tokens must be|does not exist\.[^a-z]*NotFoundError",
    re.IGNORECASE,
)
# Nor is that of who a program itself asks, such as Kubernetes.
_HUB = re.compile(
    r"WebSocketBadStatus|huggingface|modelscope|hf-mirror|hf\.co|/resolve/|GatedRepo|RepositoryNotFound"
)
# Grammars of libraries and daemons, which serve no client.
LIBRARIES = ("ray", "nccl", "ucx", "glog", "torch", "cann", "atb", "memfabric", "kernel", "slurm")
# A client's JSON that is none, as the front door meets it.
_BAD_JSON = re.compile(r"JSONDecodeError")
_OF_FRONT_DOOR = re.compile(r"starlette/requests|fastapi/|load_balance_proxy|proxy_server|mini_lb")
# Parts of an engine that serve single requests, whose errors end no engine.
OF_REQUESTS = re.compile(
    r"serving\w*\.py|(?:tool|reasoning)_parsers?\b|ASGI application|entrypoints/openai|preprocess|Request \S+ failed"
)
# A task of an event loop, whose exception ends nothing else.
_OF_TASK = re.compile(r"^(?:Task|Future) exception was never retrieved|^Exception in callback ")
PROGRESS = re.compile(
    r"throughput: |\" 200 OK|(?:Decode|Prefill) batch|HTTP/1\.[01]\" 4\d\d", re.IGNORECASE
)


@functools.cache
def words(of: str) -> tuple[str, ...]:
    """Return the expressions of one part of the file: "broken", "complaints", "lost" or "death"."""
    return tuple(data_files.facts("diagnose/error_words")[of])


@functools.cache
def _pattern(of: str) -> re.Pattern[str]:
    return re.compile("|".join(words(of)), re.MULTILINE)


def reports_error(said: Said) -> bool:
    """Return whether a line reports an error, by its level or by the words of its program.

    A level of warning or below reports none, unless it says that a process is dead. NCCL writes its
    errors as warnings.
    """
    if said.grammar == "nccl" and said.level == "WARNING":
        # Nobody needs the service that tells of NCCL's own state.
        return bool(_NCCL.search(said.text)) and not said.source.startswith("ras/")
    if _DEATHS.search(said.text):
        return True
    if _DETAIL.match(said.text):
        return False
    if said.calm or (said.level and _DRAWN.match(said.text)):
        return False
    if said.grammar == "kernel":  # it tells of errors of a host that is well
        return native(said.text)
    if said.grammar == "sglang" and _FAILS.search(said.text):
        return True
    return (
        bool(said.level) or log_lines.tells_error(said.text) or native(said.text) or complains(said)
    )


def native(text: str) -> bool:
    """Return whether a program that writes no level says that something is broken."""
    return bool(_pattern("broken").search(text))


def complains(said: Said) -> bool:
    """Return whether a program that writes no level complains of what may not be why it ended."""
    return not said.level and bool(_pattern("complaints").search(said.text))


def loses(text: str) -> bool:
    """Return whether a text tells that a request, or who was at the other end, is lost."""
    return bool(_pattern("lost").search(text))


def of_task(said: Said) -> bool:
    """Return whether an exception is that of a task, or of a request, of an API server."""
    return said.speaker in ("APIServer", "ApiServer") or bool(_OF_TASK.match(said.text))


def dies(text: str) -> re.Match[str] | None:
    """Return how a process ended that nothing in its own log explains, or None."""
    return _pattern("death").search(text)


def of_itself(said: Said) -> bool:
    """Return whether a program announces that a request of its own has failed, by which it warms up."""
    return bool(_WARMS_UP.search(said.text))


def of_probe(said: Said) -> bool:
    """Return whether a line tells of a probe that was told that a program is not ready yet."""
    return bool(_PROBE.search(said.text))


def why_harmless(said: Said, frames: Sequence[str] = ()) -> str:
    """Return why a line is no failure of an engine: "ignored", "refused", or "" if it is one.

    ``frames`` are the files of the traceback above it. A client's mistake is refused; the answer of
    a hub is none of a client.
    """
    if _HARMLESS.search(said.text) or any(map(_TIDIES.search, frames)):
        return "ignored"
    if of_probe(said):
        return "refused"
    hub = _HUB.search(said.text) or any(map(_HUB.search, frames))
    if _REFUSED.search(said.text) and not hub and said.grammar not in LIBRARIES:
        return "refused"
    door = said.speaker == "router" or any(map(_OF_FRONT_DOOR.search, frames))
    return "refused" if _BAD_JSON.search(said.text) and door else ""
