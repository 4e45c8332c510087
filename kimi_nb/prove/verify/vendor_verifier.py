"""The measures of Moonshot's K2 Vendor Verifier, for any file of requests in its format.

Usage::

    score = vendor_verifier.score(target, Path("samples.jsonl"), folder, say=print)
    score.tool_call_f1, score.schema_accuracy

Source: https://github.com/MoonshotAI/K2-Vendor-Verifier (README "Evaluation Metrics" and
tool_calls_eval.py). A line of the file is either a request body (samples.jsonl) or a result of the
verifier ({"request": ..., "finish_reason": ...}), which is then the reference to compare with::

    tool_call_precision  TP / (TP + FP)    TP: both ended with finish_reason tool_calls
    tool_call_recall     TP / (TP + FN)    FP, FN: only ours did, only the reference did
    tool_call_f1         2 x precision x recall / (precision + recall)
    schema_accuracy      answers whose calls all fit their schema / answers with tool_calls
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kimi_nb import show
from kimi_nb.core import bounded_files, evidence
from kimi_nb.core.errors import ParameterError
from kimi_nb.prove.verify import answer_bodies, fan_out, http_exchange, received, schemas
from kimi_nb.prove.verify.contract import Failed, Gone, KeyRefused
from kimi_nb.prove.verify.target import Target
from kimi_nb.service import reply_mark

FILE = "vendor.jsonl"
_LARGEST = 256 << 20  # bytes of a file of requests
_AT_ONCE = 5  # as in the verifier
_SUCCESS, _FAILED = "success", "failed"


@dataclass(frozen=True)
class Sample:
    """A request of the file.

    Attributes:
        line: Its line number, from 1 on.
        reference: The finish_reason of the reference answer, or "" without one.
    """

    line: int
    request: Mapping[str, Any]
    reference: str

    @property
    def key(self) -> str:
        """A hash that tells one request from another, whichever model is asked."""
        plain = {name: value for name, value in self.request.items() if name != "model"}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, repr=False)
class Score(show.Shown):
    """The verifier's counts, under its names.

    A measure is None if there is nothing to divide by: no answer with tool calls, or no reference.
    """

    success_count: int
    failure_count: int
    finish_stop: int
    finish_tool_calls: int
    finish_others: int
    schema_validation_error_count: int
    successful_tool_call_count: int
    schema_accuracy: float | None
    tool_call_precision: float | None
    tool_call_recall: float | None
    tool_call_f1: float | None
    mark: str = ""
    failures: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def table(self) -> show.Table:
        """Return a table of the measures, with the published figures to compare with."""
        published = {
            "tool_call_f1": "73 % or more for K2-Thinking, 80 % for K2-0905 "
            "(published: K2-Vendor-Verifier, 2025-11-15, its own 4,000 requests)",
            "schema_accuracy": "100 % at Moonshot's own API (published: the same)",
        }
        rows = []
        for name, value in self.as_dict().items():
            if name not in ("mark", "failures"):
                rows.append(
                    (
                        name,
                        f"{value:.2%}"
                        if isinstance(value, float)
                        else "nothing to compute it of"
                        if value is None
                        else value,
                        published.get(name, ""),
                    )
                )
        rows += [("failed request", text, "") for text in self.failures[:5]]
        return show.Table(
            f"{self.mark + ': ' if self.mark else ''}K2 Vendor Verifier, measured",
            ("measure", "is", "to compare with"),
            tuple(rows),
        )


def read(path: Path) -> list[Sample]:
    """Return the requests in a file.

    Raises:
        ParameterError: If the file cannot be read, or a line is not a request; the line is named.
    """
    try:
        lines = bounded_files.read(path, _LARGEST).decode("utf-8").splitlines()
    except OSError as error:
        raise ParameterError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ParameterError(
            f"{path}: is no text; a request as JSON is wanted on each line."
        ) from None
    samples = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ParameterError(
                f"{path}:{number}: no JSON ({error}); a request is wanted on each line."
            ) from None
        request, reference = entry, ""
        if isinstance(entry, dict) and isinstance(entry.get("request"), dict):
            request, reference = entry["request"], str(entry.get("finish_reason") or "")
        if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
            raise ParameterError(
                f"{path}:{number}: a request with messages is wanted, or a result "
                "of the K2 Vendor Verifier with request and finish_reason."
            )
        samples.append(Sample(number, _prepared(request), reference))
    if not samples:
        raise ParameterError(f"{path}: has no request.")
    return samples


def score(
    target: Target,
    path: Path,
    folder: Path | None = None,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Score:
    """Send every request of a file and compute the measures from the answers.

    Results are appended to vendor.jsonl in ``folder`` at once, in the verifier's form. With
    ``resume``, requests that succeeded there for the same service are not repeated. A request that
    fails is counted.

    Raises:
        ParameterError: If the file is not valid.
    """
    samples = read(path)
    known = {
        line.get("hash"): line
        for line in (evidence.read(folder, FILE) if folder and resume else ())
        if line.get("url") == target.url and line.get("status") == _SUCCESS
    }
    results = {
        sample.line: known[_hash(sample, target)]
        for sample in samples
        if _hash(sample, target) in known
    }
    left = [sample for sample in samples if sample.line not in results]
    with tqdm(
        total=len(samples),
        initial=len(results),
        unit="request",
        file=sys.stderr,
        disable=not sys.stderr.isatty(),
    ) as bar:
        for start in range(0, len(left), _AT_ONCE):
            part = left[start : start + _AT_ONCE]
            made = fan_out.each(lambda sample: _asked(sample, target), part, _AT_ONCE)
            for sample, result in zip(part, made, strict=True):
                if isinstance(result, Exception):
                    raise result
                results[sample.line] = result
                if folder:
                    about = {"url": target.url, "mark": target.marked}
                    evidence.record(folder, "vendor", file=FILE, **about, **result)
            bar.update(len(part))
            say(f"{reply_mark.title(target.marked)}{len(results)} of {len(samples)} requests")
            gone = next((one["response"]["error"] for one in made if one.get("end")), "")
            if gone:
                say(f"the other requests are not sent: {gone}")
                break
    # A kept answer was given by whoever answered then.
    kept = next(filter(None, (str(one.get("mark") or "") for one in results.values())), "")
    return measure(samples, results, target.marked or kept)


def measure(
    samples: Sequence[Sample], results: Mapping[int, Mapping[str, Any]], mark: str = ""
) -> Score:
    """Compute the measures from results by the line of their request.

    A request without an answer counts as a failure, but has no effect on precision, recall and f1.
    """
    pairs = [(sample, results.get(sample.line, {})) for sample in samples]
    good = [(sample, one) for sample, one in pairs if one.get("status") == _SUCCESS]
    ends = [one["finish_reason"] for _, one in good]
    called = ends.count("tool_calls")
    fitting = sum(
        bool(one["tool_calls_valid"]) for _, one in good if one["finish_reason"] == "tool_calls"
    )
    precision, recall, f1 = f1_of(
        (one["finish_reason"] == "tool_calls", sample.reference == "tool_calls")
        for sample, one in good
        if sample.reference
    )
    return Score(
        success_count=len(good),
        failure_count=len(pairs) - len(good),
        finish_stop=ends.count("stop"),
        finish_tool_calls=called,
        finish_others=sum(one not in ("stop", "tool_calls", "", None) for one in ends),
        schema_validation_error_count=called - fitting,
        successful_tool_call_count=fitting,
        schema_accuracy=fitting / called if called else None,
        tool_call_precision=precision,
        tool_call_recall=recall,
        tool_call_f1=f1,
        mark=mark,
        failures=tuple(
            f"line {sample.line}: {one['response']['error']}"
            if one
            else f"line {sample.line}: not sent"
            for sample, one in pairs
            if one.get("status") != _SUCCESS
        ),
    )


def f1_of(pairs: Iterable[tuple[bool, bool]]) -> tuple[float | None, float | None, float | None]:
    """Return (precision, recall, f1) of pairs (ours called, the reference called); None for 0 / 0.

    >>> f1_of([(True, True), (True, False), (False, True), (True, True)])
    (0.6666666666666666, 0.6666666666666666, 0.6666666666666666)
    """
    seen = list(pairs)
    both = sum(ours and theirs for ours, theirs in seen)
    ours, theirs = (sum(column) for column in zip(*seen, strict=True)) if seen else (0, 0)
    precision, recall = both / ours if ours else None, both / theirs if theirs else None
    # With TP = 0 and any FP or FN, f1 is 0, not missing.
    f1 = 2 * both / (ours + theirs) if ours + theirs else None
    return precision, recall, f1


def _prepared(request: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the role _input, which the verifier's files use for a system message."""
    return {
        **request,
        "messages": [
            {**one, "role": "system"}
            if isinstance(one, dict) and one.get("role") == "_input"
            else one
            for one in request["messages"]
        ],
    }


def _hash(sample: Sample, target: Target) -> str:
    return hashlib.sha256(f"{target.model} {sample.key}".encode()).hexdigest()[:32]


def _asked(sample: Sample, target: Target) -> dict[str, Any]:
    """Send a request and return its result in the form of the verifier's results.jsonl.

    The request's model is replaced by the one that is verified.
    """
    begun = time.monotonic()
    body = {**sample.request, "model": target.model}
    stream = body.pop("stream", False) is True
    body.pop("stream_options", None)
    result: dict[str, Any] = {
        "data_index": sample.line,
        "request": body,
        "hash": _hash(sample, target),
    }
    try:
        answer = _answer(target, body, stream)
    except Failed as error:
        # Without a service or a valid key, the next requests would fail in the same way.
        more = {"end": True} if isinstance(error, Gone | KeyRefused) else {}
        result |= {
            "response": {"error": error.got},
            "status": _FAILED,
            "finish_reason": None,
            "tool_calls_valid": None,
            **more,
        }
    else:
        called = answer.finish_reason == "tool_calls"
        result |= {
            "response": {
                "content": answer.content,
                "reasoning": answer.thoughts,
                "usage": answer.usage,
                "tool_calls": [asdict(one) for one in answer.calls],
            },
            "status": _SUCCESS,
            "finish_reason": answer.finish_reason,
            "tool_calls_valid": all(fits(one, body.get("tools")) for one in answer.calls)
            if called and answer.calls  # else None, which counts as not valid
            else None,
        }
    return result | {
        "last_run_at": evidence.now(),
        "duration_ms": round((time.monotonic() - begun) * 1000),
    }


def _answer(target: Target, body: Mapping[str, Any], stream: bool) -> received.Answer:
    """Ask and read the answer as the verifier's client does, which takes more than ours.

    A stream may end without [DONE] or a finish_reason, which then is "stop". A whole answer may
    have no choices.

    Raises:
        Failed: If the verifier's client gets no answer.
    """
    whole = {"model": target.model, **body}
    if stream:
        whole |= {"stream": True, "stream_options": {"include_usage": True}}
    place = target.door
    reply = http_exchange.asked(
        http_exchange.send(place, target, "POST", http_exchange.CHAT, body=whole, stream=stream)
    )
    if stream:
        return answer_bodies.streamed(reply.text, strict=False)
    if not answer_bodies.mapping(reply.text).get("choices"):
        return received.Answer("", "", (), "", {})
    return answer_bodies.parsed(reply.text, strict=False)


def fits(call: received.ToolCall, tools: Any) -> bool:
    """Tell whether a call's arguments fit its function's schema; without a schema they do not.

    The verifier takes arguments that came as an object in place of a text; tool-calls/arguments
    does not.
    """
    listed = tools if isinstance(tools, list) else []
    functions = [one.get("function") for one in listed if isinstance(one, dict)]
    schema = next(
        (
            one.get("parameters")
            for one in functions
            if isinstance(one, dict) and one.get("name") == call.name
        ),
        None,
    )
    if not schema:
        return False
    try:
        return not schemas.fault(json.loads(call.arguments), schema)
    except ValueError:
        return False
