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
from testbed import metric_families

from kimi_nb.plan import build
from kimi_nb.prove.bench import metrics as bench_metrics
from kimi_nb.rehearse import rehearsal
from kimi_nb.rehearse.engine.api import counters

ROOT = Path(__file__).resolve().parents[2]
RECORDED = json.loads((Path(__file__).parent / "contract" / "api-0.32.0.json").read_text())
EXCHANGES = {one["name"]: one for one in RECORDED["exchanges"]}
FAMILIES = json.loads((Path(__file__).parent / "contract" / "metrics-0.32.0.json").read_text())[
    "families"
]
# Buckets of lengths go up to the context, which is 2048 tokens there and 512 in the rehearsal.
LENGTHS = FAMILIES["vllm:request_prompt_tokens"]["edges"]
SHORTER = [edge for edge in LENGTHS if edge not in ("1000.0", "2000.0")]

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
    "drafts, the tool parser's calls, rejections, estimates of FLOPs",
    "Without a seed a rehearsal repeats itself",
    "`/docs`, `/openapi.json`",
    "Log probabilities are made up",
    "only a bias that leaves no choice",
    "Nothing is cached",
)
# What the panels of public dashboards ask for: examples/observability of vLLM 0.32.0 (Grafana and
# Perses), and the documents of vllm-ascend.
DASHBOARDS = (
    *("e2e_request_latency_seconds", "generation_tokens_total", "inter_token_latency_seconds"),
    *("iteration_tokens_total", "kv_cache_usage_perc", "num_requests_running"),
    *("num_requests_waiting", "prompt_tokens_total", "request_decode_time_seconds"),
    *("request_generation_tokens", "request_max_num_generation_tokens", "request_prompt_tokens"),
    *("request_prefill_time_seconds", "request_queue_time_seconds", "request_success_total"),
    *("request_time_per_output_token_seconds", "time_to_first_token_seconds"),
)
DRAFTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


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
    answer = requests.get(f"{served.url}/v1/models", timeout=60)
    assert answer.headers["server"] == "uvicorn" and answer.headers["vary"] == "Origin"
    assert answer.headers["date"].endswith("GMT")
    body = {"model": "kimi_k25", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for path, kind in (("/v1/chat/completions", "chatcmpl"), ("/v1/completions", "cmpl")):
        body |= {"prompt": "x"}
        url = served.url + path
        answer = requests.post(url, json=body, headers={"X-Request-Id": "mine"}, timeout=60)
        assert answer.json()["id"] == f"{kind}-mine"
        assert requests.post(url, json=body | {"request_id": "abc"}, timeout=60).json()["id"] == (
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
    """Names, types, texts, labels and buckets; what comes with the first request has come."""
    for path, body in (("v1/completions", {"prompt": "hi"}), ("nope", {}), ("v1/models", None)):
        how = requests.get if body is None else requests.post
        how(f"{served.url}/{path}", **({} if body is None else {"json": body}), timeout=60)
    found = metric_families.of(requests.get(f"{served.url}/metrics", timeout=60).text)
    assert set(found) == set(FAMILIES)
    for name, one in FAMILIES.items():
        edges = SHORTER if one["edges"] == LENGTHS else one["edges"]
        assert found[name] == {**one, "edges": edges}, name


def test_dashboards_find_their_families(served):
    text = requests.get(f"{served.url}/metrics", timeout=60).text
    assert {f"vllm:{name}" for name in DASHBOARDS} <= set(metric_families.of(text))
    known = {one["name"] for one in counters.families("0.32.0")}
    assert {f"vllm:spec_decode_{name}_total" for name in DRAFTS} <= known
    # What this program itself reads, by the names of this version.
    assert known.issuperset(set(bench_metrics.FAMILIES) - {"vllm:gpu_cache_usage_perc"})


def test_an_engine_with_drafts_counts_them_by_position():
    origin = counters.Origin("m", "0.32.0", 512, drafts=3)
    found = metric_families.of("\n".join(counters.text({0: counters.Metrics()}, origin)))
    per_position = found["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert per_position["labels"] == ["engine", "model_name", "position"]
    assert {f"vllm:spec_decode_{name}_total" for name in DRAFTS} <= set(found)


def test_requests_are_counted_by_their_route(served):
    def look():
        text = requests.get(f"{served.url}/metrics", timeout=60).text
        found = {}
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                if one.name in ("http_requests_total", "http_request_size_bytes_sum"):
                    found[one.name, *sorted(one.labels.values())] = one.value
        return found

    before = look()
    body = {"model": "kimi_k25", "prompt": "x", "max_tokens": 2, "stream": True}
    sent = requests.post(f"{served.url}/v1/completions", json=body, timeout=60).request
    requests.post(f"{served.url}/v1/completions", json={"model": "nope"}, timeout=60)
    requests.get(f"{served.url}/health", timeout=60)
    after = look()

    def more(*key):
        return after.get(key, 0) - before.get(key, 0)

    assert more("http_requests_total", "/v1/completions", "2xx", "POST") == 1
    assert more("http_requests_total", "/v1/completions", "4xx", "POST") == 1
    assert more("http_request_size_bytes_sum", "/v1/completions") >= len(sent.body)
    assert not [key for key in after if "/health" in key or "/metrics" in key]


def test_metrics_count_what_happens(served):
    def look():
        text = requests.get(f"{served.url}/metrics", timeout=60).text
        return {one.name: one for one in text_string_to_metric_families(text)}

    before = look()
    body = {"model": "kimi_k25", "prompt": "hello", "max_tokens": 5, "ignore_eos": True}
    assert requests.post(f"{served.url}/v1/completions", json=body, timeout=60).ok
    after = look()

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
