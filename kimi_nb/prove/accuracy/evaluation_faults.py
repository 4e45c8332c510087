"""Why an evaluation failed, from what the tool printed, and what to do next. Pure."""

from __future__ import annotations

import re

from kimi_nb.prove.accuracy.evaluation import TIMEOUT
from kimi_nb.show import visible

# The first match wins. The server's own answer is listed before what a client made of it.
_SIGNS = (
    (
        r"status[ _:]*(?:code)?:? ?401|status[ _:]*(?:code)?:? ?403|unauthorized|forbidden",
        "HTTP 401: the service wants an API key that it was not given. Name the variable that holds "
        "it in the site file (api_key_env), and set it",
    ),
    (
        r"status[ _:]*(?:code)?:? ?404|not found",
        "HTTP 404: the service knows no such path or model. Compare the URL and the served model "
        "name with GET /v1/models",
    ),
    (
        r"status[ _:]*(?:code)?:? ?429|too many requests",
        "HTTP 429: the service takes no more requests now. Wait, or ask with fewer at a time, and go "
        "on with resume",
    ),
    (
        r"status[ _:]*(?:code)?:? ?5\d\d|internal server error|bad gateway|service unavailable"
        r"|gateway time-?out",
        "HTTP 5xx: the service failed at a request. Its log has the cause (kimi-nb logs); go on with "
        "resume when it answers again",
    ),
    (
        r"status[ _:]*(?:code)?:? ?4\d\d|bad request",
        "HTTP 4xx: the service refused a request. Its words stand in the log",
    ),
    (
        r"jsondecodeerror|contenttypeerror|attempt to decode json|expecting value|json decode",
        "an answer that is no JSON: something other than vLLM answers there, or it broke off",
    ),
    (
        r"cannot connect to host|connection ?refused|clientconnector|serverdisconnected"
        r"|server disconnected|connection reset|clientoserror|connection aborted|remote end closed"
        r"|connect call failed|name or service not known|connector is closed",
        "the service is gone, or was never there: no connection. Look whether it is up (kimi-nb "
        "status), and go on with resume",
    ),
    (
        r"timeouterror|timed? ?out",
        f"no answer in {TIMEOUT} s. Look at the service's load, and go on with resume",
    ),
    (
        r"modulenotfounderror|importerror|no module named",
        "the tool's environment is not whole; make tools makes it again",
    ),
    (
        r"couldn't reach|offline|is not exist|filenotfounderror|datasetnotfound",
        "the task's dataset is not on this machine and could not be fetched",
    ),
)
_STATUS = re.compile(r"status[ _:]*(?:code)?:? ?(\d{3})", re.IGNORECASE)
_WORDS = re.compile(r"response text: (.{1,200}?)(?:\. Retrying|$)", re.IGNORECASE | re.MULTILINE)


def named(log: str) -> str:
    """Return a sentence that explains a log, or the log's last lines if nothing in it is known.

    >>> named("ModuleNotFoundError: No module named 'torch'")
    "the tool's environment is not whole; make tools makes it again."
    """
    for pattern, says in _SIGNS:
        if not re.search(pattern, log, re.IGNORECASE):
            continue
        if says.startswith("HTTP"):
            status = next(
                (
                    code
                    for code in _STATUS.findall(log)
                    if code[0] == says[5] and re.search(pattern, f"status code: {code}")
                ),
                "",
            )
            words = _WORDS.search(log)
            says = (f"HTTP {status}{says[8:]}" if status else says) + (
                f' (it said "{visible(words[1], lines=False)}")' if words else ""
            )
        return says + "."
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return visible(" ".join(lines[-2:])[-300:], lines=False) or "the tool ended without a word."


def of_answers(malformed: int, failed: dict[str, int], samples: int) -> str:
    """Return a sentence about requests without a usable answer, or "" if there are none.

    This covers failures that did not make the tool itself fail.

    >>> of_answers(0, {}, 24)
    ''
    >>> of_answers(2, {}, 24).partition(" (")[0]
    '2 of 24 answers are no completions'
    """
    if failed:
        count = sum(failed.values())
        return f"{count} of {samples} requests came to nothing: {named(' '.join(failed))}"
    if malformed:
        return (
            f"{malformed} of {samples} answers are no completions (JSON without choices): "
            "something between here and vLLM changes them."
        )
    return ""
