"""The stand-in engine beside the real vLLM 0.32.0: the same requests, and what is known to differ."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal

ROOT = Path(__file__).resolve().parents[2]
RECORDED = json.loads((Path(__file__).parent / "contract" / "api-0.32.0.json").read_text())
EXCHANGES = {one["name"]: one for one in RECORDED["exchanges"]}

# What is different, and why: each reason is a sentence of docs/rehearse.md.
WORDS = "the words of the pydantic alternatives, the regex engine and the grammar parser"
MODEL = "which words come, and when an answer ends"
ROUTES = "routes that no client of ours uses"
RARE = "a fault of the engine: 500 where a request is at fault"
DIFFERENT = {
    **dict.fromkeys(
        (
            *("tools_required", "tools_required_stream", "tools_required_stream_nothink"),
            *("tools_named", "tools_named_stream", "tools_named_stream_nothink", "clamp_chat"),
            *("so_choice_think", "n3_stream", "c_stop_incl", "c_stop", "include_reasoning"),
        ),
        MODEL,
    ),
    **dict.fromkeys(
        (
            *("so_bad_regex", "so_bad_regex2", "so_regex_look", "so_bad_grammar2", "rf_no_name"),
            *("rf_bad_type", "rf_bad_pattern", "rf_true", "rf_minmax", "c_so_bad_regex"),
            *("bad_roles", "content_null", "content_number", "part_odd", "part_no_text"),
        ),
        WORDS,
    ),
    **dict.fromkeys(("so_bad_grammar", "so_word"), RARE),
    **dict.fromkeys(
        (
            *("cors", "responses", "responses_get", "responses_bad", "responses_cancel"),
            *("messages", "messages_bad", "messages_unknown", "messages_tools", "batch"),
            *("get_scale_elastic_ep", "post_scale_elastic_ep", "count_tokens_bad"),
            *("get_is_scaling_elastic_ep", "post_is_scaling_elastic_ep"),
        ),
        ROUTES,
    ),
    "two_models": "the plan that is rehearsed gives its model one name",
}

NOT_COMPARED = (
    "`process_` and `http_` families, cache settings, rejections, and calls of the tool parser",
    "Without a seed a rehearsal repeats itself",
    "`/docs`, `/openapi.json`",
    "Log probabilities are made up",
    "only a bias that leaves no choice",
    "Nothing is cached",
)
NO_FAMILIES = (
    *("vllm:estimated_", "vllm:cache_config_info", "vllm:admission_rejections"),
    "vllm:tool_call_parser",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The plan of the recorded engine, rehearsed."""
    plan = build.plan("k2.5", "cpu", "single", pairs=["max-model-len=512"])
    with rehearsal.start(plan, tmp_path_factory.mktemp("cpu")) as found:
        assert found.result.ok, found.result
        yield found


def asked(served, exchange):
    body = exchange["request"]
    headers = dict(exchange["headers"])
    data = None
    if body is not None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        kind = headers.pop("Content-Type", "application/json")
        headers |= {"Content-Type": kind} if kind else {}
    return requests.request(
        exchange["method"],
        served.url + exchange["path"],
        data=data,
        headers=headers,
        timeout=20,
        allow_redirects=False,
    )


def shape(value):
    """The keys and types at every level; a list by its first element, a map of ids by its values."""
    if isinstance(value, dict):
        if value and all(isinstance(one, float) for one in value.values()):
            return "probabilities by token"
        if value and all(key.isdecimal() for key in value):
            return ["by id", shape(next(iter(value.values())))]
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        known = [one for one in value if one is not None]
        return [shape(known[0])] if known else []
    return type(value).__name__


def events(text):
    """The shapes of the events of a stream: the first ones, and the last ones."""
    parts = [part.removeprefix("data: ") for part in text.strip().split("\n\n")]
    assert parts.pop() == "[DONE]"
    found = [shape(json.loads(part)) for part in parts]
    return found[:2] + found[-2:]


def form(status, kind, body):
    """What a client can tell of an answer, without the words of a model."""
    if status == 200 and (kind or "").startswith("text/event-stream"):
        return status, kind, events(body)
    if not body or not (kind or "").startswith("application/json"):
        return status, kind, body
    value = json.loads(body)
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        said = error["message"].replace(", other", "")
        said = re.sub(r"(Vocabulary size: )\d+", r"\1N", said)
        return status, kind, error["type"], error.get("param"), error.get("code"), said
    return status, kind, shape(value)


def recorded(exchange):
    return form(exchange["status"], exchange["type"], exchange["body"])


def found(served, exchange):
    answer = asked(served, exchange)
    return form(answer.status_code, answer.headers.get("content-type"), answer.text)


def test_answers_are_those_of_the_engine_but_for_what_is_listed(served):
    same = {
        name
        for name, exchange in EXCHANGES.items()
        if found(served, exchange) == recorded(exchange)
    }
    assert set(EXCHANGES) - same == set(DIFFERENT)


def test_each_difference_is_explained_to_the_reader():
    section = (ROOT / "docs/rehearse.md").read_text().partition("## Where the stand-in differs")[2]
    for reason in {*DIFFERENT.values(), *NOT_COMPARED}:
        assert reason in section, reason


def test_headers_are_those_of_the_engine(served):
    answer = requests.get(f"{served.url}/v1/models", timeout=5)
    assert answer.headers["server"] == "uvicorn" and answer.headers["vary"] == "Origin"
    assert answer.headers["date"].endswith("GMT")
    body = {"model": "kimi_k25", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for path, kind in (("/v1/chat/completions", "chatcmpl"), ("/v1/completions", "cmpl")):
        body |= {"prompt": "x"}
        url = served.url + path
        answer = requests.post(url, json=body, headers={"X-Request-Id": "mine"}, timeout=5)
        assert answer.json()["id"] == f"{kind}-mine"
        assert requests.post(url, json=body | {"request_id": "abc"}, timeout=5).json()["id"] == (
            f"{kind}-abc"
        )


def test_an_idle_connection_is_closed_after_five_seconds(served):
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert one.recv(4096).startswith(b"HTTP/1.1 200")
        begun = time.monotonic()
        assert one.recv(4096) == b""
        assert 4 < time.monotonic() - begun < 8


def test_metrics_have_the_families_of_the_engine(served):
    def look():
        text = requests.get(f"{served.url}/metrics", timeout=5).text
        return text, {one.name: one for one in text_string_to_metric_families(text)}

    before = look()[1]
    body = {"model": "kimi_k25", "prompt": "hello", "max_tokens": 5, "ignore_eos": True}
    assert requests.post(f"{served.url}/v1/completions", json=body, timeout=5).ok
    text, after = look()
    said = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    helped = dict(re.findall(r"# HELP (\S+) (.+)", text))
    for name, family in RECORDED["metrics"].items():
        if name.startswith(NO_FAMILIES):
            continue
        assert said[name] == family["type"] and helped[name] == family["help"], name
        if family["buckets"]:
            edges = re.findall(rf'^{name}_bucket\{{.*le="([^"]+)"', text, re.MULTILINE)
            assert edges[: len(family["buckets"])] == family["buckets"], name

    def count(seen, name, suffix):
        samples = seen[name].samples
        return sum(one.value for one in samples if one.name == name + suffix)

    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        name = f"vllm:{name}_seconds"
        assert count(after, name, "_count") == count(before, name, "_count") + 1
        assert count(after, name, "_sum") >= count(before, name, "_sum") >= 0
    name = "vllm:inter_token_latency_seconds"
    assert count(after, name, "_count") == count(before, name, "_count") + 4
    queries = "vllm:prefix_cache_queries"
    assert count(after, queries, "_total") > count(before, queries, "_total")
