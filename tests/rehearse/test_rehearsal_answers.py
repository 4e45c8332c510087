"""The stand-in engine's answers: vLLM's recorded shapes and errors, and what must always hold."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_nb.rehearse.engine.api import answers, stand_in_text, versions
from kimi_nb.rehearse.engine.api.answers import ApiError, Served
from kimi_nb.rehearse.engine.api.request_fields import ChatCompletionRequest

RECORDED = json.loads((Path(__file__).parent / "contract" / "api.json").read_text())["exchanges"]
MAKERS = {"/v1/chat/completions": answers.chat, "/v1/completions": answers.completion}
MINE = {
    entry["name"]: entry
    for entry in RECORDED
    if entry["method"] == "POST" and entry["path"] in MAKERS and entry["name"] != "tools_named"
}
SERVED = Served(("kimi_k25", "other"), "MODEL", 512, "kimi_k2", "kimi_k2", True, False, "0.20.2")
WIDE = replace(SERVED, max_model_len=262144, multimodal=True, dp_size=4)
# The same examples every time, none stored.
QUICK = settings(derandomize=True, database=None, deadline=None, max_examples=150)
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwA"
    "DhgGAWjR9awAAAABJRU5ErkJggg=="
)


def tool(name, schema=None):
    return {
        "type": "function",
        "function": {
            "name": name,
            "parameters": schema
            or {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }


def ask(served=WIDE, said="hello world", headers=None, **body):
    """The answer to a chat, or to a completion if there is a prompt."""
    make = answers.chat
    if "prompt" in body:
        make = answers.completion
    else:
        body.setdefault("messages", [{"role": "user", "content": said}])
    return make(served, json.dumps(body).encode(), headers or {}, "id-1", 1795299206)


def refusal(*args, **body):
    with pytest.raises(ApiError) as caught:
        ask(*args, **body)
    assert caught.value.body["error"]["code"] == caught.value.status
    return caught.value.status, caught.value.body["error"]["message"]


def message(made):
    return answers.whole(made)["choices"][0]["message"]


def events(frames):
    """The JSON of each frame; every one is one event, the last one [DONE]."""
    assert frames[-1] == b"data: [DONE]\n\n"
    assert all(re.fullmatch(rb"data: [^\n]*\n\n", frame) for frame in frames)
    return [json.loads(frame[6:]) for frame in frames[:-1]]


def joined(made):
    """(text, reasoning, tool calls, finish_reason) of each choice, and the usage, as a client
    puts a stream together."""
    choices, usage = {}, None
    for event in events(answers.frames(made)):
        usage = event.get("usage") or usage
        for one in event["choices"]:
            state = choices.setdefault(one["index"], ["", "", [], None])
            delta = one.get("delta", {"content": one.get("text")})
            state[0] += delta.get("content") or ""
            state[1] += delta.get("reasoning") or ""
            for part in delta.get("tool_calls") or ():
                if "id" in part:
                    assert part["index"] == len(state[2]) and part["type"] == "function"
                    state[2].append([part["id"], part["function"]["name"], ""])
                state[2][part["index"]][2] += part["function"]["arguments"]
            assert state[3] is None
            state[3] = one["finish_reason"]
    return [choices[index] for index in range(len(choices))], usage


def at_once(made):
    """The same of an answer that is not streamed."""
    body = answers.whole(made)
    out = []
    for one in body["choices"]:
        said = one.get("message", {"content": one.get("text")})
        out.append(
            [
                said["content"] or "",
                said.get("reasoning") or "",
                [
                    [call["id"], call["function"]["name"], call["function"]["arguments"]]
                    for call in said.get("tool_calls", ())
                ],
                one["finish_reason"],
            ]
        )
    body["usage"].pop("prompt_tokens_details")
    return out, body["usage"]


# What vLLM was recorded to answer ---------------------------------------------------------------


def keys(value):
    """The keys at every level; lists by their first element; values do not count."""
    if isinstance(value, dict):
        return {key: keys(one) for key, one in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


def alike(found, recorded):
    """Whether the keys are the same wherever both have objects."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        return list(found) == list(recorded) and all(
            alike(found[key], recorded[key]) for key in found
        )
    if found and recorded and isinstance(found, list) and isinstance(recorded, list):
        return alike(found[0], recorded[0])
    return True


def recorded_ask(entry):
    raw = entry["request"]
    raw = raw.encode() if isinstance(raw, str) else json.dumps(raw).encode()
    return MAKERS[entry["path"]](SERVED, raw, entry["headers"], "id-1", 1795299206)


@pytest.mark.parametrize("name", [name for name, one in MINE.items() if one["status"] == 200])
def test_an_answer_has_the_recorded_keys(name):
    entry = MINE[name]
    made = recorded_ask(entry)
    if not made.stream:
        found, recorded = answers.whole(made), json.loads(entry["body"])
        assert alike(keys(found), keys(recorded))
        assert found["system_fingerprint"] == "REHEARSAL"
        assert found["object"] == recorded["object"]
        if recorded["choices"][0]["finish_reason"] == "length" and made.max_tokens < 10:
            assert found["choices"][0]["finish_reason"] == "length"
            assert found["usage"]["completion_tokens"] == recorded["usage"]["completion_tokens"]
        return
    found = events(answers.frames(made))
    parts = entry["body"].strip().split("\n\n")
    recorded = [json.loads(part[6:]) for part in parts[:-1]]
    if parts[-1] != "data: [DONE]":  # long streams were recorded up to the middle of a frame
        assert {"tool_calls"} in [set(one["choices"][0]["delta"]) for one in found]
        found, recorded = found[:5], recorded[:5]
    assert [list(one) for one in found] == [list(one) for one in recorded]
    assert [keys(one) for one in found] == [keys(one) for one in recorded]


@pytest.mark.parametrize("name", [name for name, one in MINE.items() if one["status"] != 200])
def test_a_refusal_is_the_recorded_one(name):
    entry = MINE[name]
    with pytest.raises(ApiError) as caught:
        recorded_ask(entry)
    found, recorded = caught.value.body["error"], json.loads(entry["body"])["error"]
    assert caught.value.status == entry["status"]
    assert list(found) == list(recorded)
    assert {**found, "message": ""} == {**recorded, "message": ""}
    if name == "bad_role":
        assert re.match(r"\d+ validation errors?:\n  {'type': 'missing'", found["message"])
    else:
        assert found["message"] == recorded["message"]


def test_the_models_are_as_recorded():
    recorded = json.loads(next(one for one in RECORDED if one["name"] == "models")["body"])
    found = answers.models(SERVED, 1795299206)
    assert alike(found, recorded) and len(found["data"]) == 2
    same = {key: found["data"][0][key] for key in ("id", "root", "max_model_len", "owned_by")}
    assert same == {key: recorded["data"][0][key] for key in same}


def test_tokenize_is_as_recorded():
    entry = next(one for one in RECORDED if one["name"] == "tokenize")
    found = answers.tokenize(SERVED, json.dumps(entry["request"]).encode())
    assert list(found) == list(json.loads(entry["body"]))
    assert found == {
        "count": 4,
        "max_model_len": 512,
        "tokens": found["tokens"],
        "token_strs": None,
    }
    assert all(type(one) is int and 0 <= one < stand_in_text.VOCABULARY for one in found["tokens"])
    chat = {"messages": [{"role": "user", "content": "hello world"}], "return_token_strs": True}
    found = answers.tokenize(SERVED, json.dumps(chat).encode())
    assert found["count"] == ask(said="hello world").prompt_tokens == len(found["token_strs"])
    with pytest.raises(ApiError, match="2 validation errors"):
        answers.tokenize(SERVED, b"{}")


# What must always hold --------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "auto", "required", "none", "f", "1", "data:,", PIXEL, 2, 0, {}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "text",
                    "image_url",
                    "url",
                    "function",
                    "name",
                    "parameters",
                    "tool_calls",
                    "id",
                    "arguments",
                    "properties",
                    "required",
                    "items",
                    "$ref",
                    "anyOf",
                    "json_schema",
                    "schema",
                    "json",
                    "choice",
                    "thinking",
                    "include_usage",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
ANY_FIELD = st.sampled_from(
    [
        *sorted(ChatCompletionRequest.model_fields),
        "prompt",
        "tool_choice",
        "stop",
        "guided_json",
        "\ud800",
    ]
)
SAID = st.lists(
    st.sampled_from(
        [
            "what",
            "is",
            "the",
            "weather",
            "in",
            "Paris",
            "ünïcödé 🎉",
            "\n",
            "  two",
            "</think>",
            "a" * 40,
            "<|im_end|>",
            "news",
            "\u2028",
        ]
    ),
    max_size=12,
).map(" ".join)
NUMBERS = {
    "max_tokens": st.none() | st.integers(1, 120),
    "max_completion_tokens": st.none() | st.integers(1, 120),
    "ignore_eos": st.booleans(),
    "n": st.integers(1, 3),
    "min_tokens": st.just(0),
    "seed": st.integers(0, 9),
    "temperature": st.just(0.7),
}
CHATS = st.fixed_dictionaries(
    {"messages": SAID.map(lambda said: [{"role": "user", "content": said}])},
    optional={
        **NUMBERS,
        "include_reasoning": st.booleans(),
        "stop": st.sampled_from(["and", ["e", "so it"]]),
        "chat_template_kwargs": st.sampled_from([{"thinking": False}, {"thinking": True}, {}]),
        "tools": st.just([tool("get_weather"), tool("news.search"), tool("calc")]),
        "response_format": st.sampled_from([{"type": "json_object"}, {"type": "text"}]),
    },
)
COMPLETIONS = st.fixed_dictionaries(
    {"prompt": SAID.filter(bool) | st.lists(st.integers(0, 99), min_size=1, max_size=9)},
    optional=NUMBERS,
)
BODIES = CHATS | COMPLETIONS
SERVERS = st.sampled_from(
    [
        replace(WIDE, max_model_len=900, **more)
        for more in (
            {},
            {"reasoning_parser": ""},
            *({"flaw": flaw} for flaw in ("garbled-output", "reasoning-leaks", "tool-call-leaks")),
        )
    ]
)


@QUICK
@given(
    st.sampled_from([answers.chat, answers.completion, answers.tokenize]),
    st.binary()
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(ANY_FIELD, JSON, max_size=6).map(lambda body: json.dumps(body).encode()),
)
def test_no_body_is_more_than_a_refusal(make, raw):
    more = () if make is answers.tokenize else ({"X-data-parallel-rank": "1"}, "id-1", 1)
    try:
        made = make(WIDE, raw, *more)
        if more and made.n < 9 and len(made.tokens) < 999:
            json.dumps(answers.whole(made), ensure_ascii=False).encode()
            events(answers.frames(made))
    except ApiError as error:
        assert error.status in (400, 404)
        json.dumps(error.body)


@QUICK
@given(
    st.fixed_dictionaries(
        {
            "messages": st.lists(
                st.fixed_dictionaries(
                    {"role": st.sampled_from(["user", "assistant", "tool"])},
                    optional={"content": JSON, "tool_calls": JSON},
                ),
                min_size=1,
                max_size=3,
            )
        },
        optional={
            "tools": st.lists(JSON, max_size=2) | JSON.map(lambda schema: [tool("f", schema)]),
            "tool_choice": JSON,
            "response_format": JSON,
            "structured_outputs": JSON,
            "guided_json": JSON,
            "stop": JSON,
            "stream_options": JSON,
            "stream": st.booleans(),
        },
    )
)
def test_no_chat_is_more_than_a_refusal(body):
    try:
        made = ask(**body)
        json.dumps(answers.whole(made), ensure_ascii=False).encode()
        events(answers.frames(made))
    except ApiError as error:
        assert error.status in (400, 404)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"a":' * 5000,
        b"9" * 5000,
        b'{"max_tokens":' + b"9" * 4000 + b"}",
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"temperature":NaN}',
        b"\xff\xfe{",
        b'{"temperature":1e999}',
        b"\xff",
        b"",
        b"null",
        b'{"messages":[],"temperature":1' + b"0" * 400 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"structured_outputs":{"json":"'
        + b"[" * 900
        + b'"}}',
        b'{"messages":[{"role":"user","content":"x"}],'
        b'"structured_outputs":{"json":"\\"\\\\ud800\\""}}',
        b'{"messages":[{"role":"user","content":"x"}],"kv_transfer_params":{"a":'
        + b"[" * 80
        + b"]" * 80
        + b"}}",
    ],
)
def test_what_is_made_to_break_a_reader_is_refused(raw):
    for make in (answers.chat, answers.completion):
        with pytest.raises(ApiError) as caught:
            make(WIDE, raw, {}, "id-1", 1)
        assert caught.value.status == 400
        json.dumps(caught.value.body)


@QUICK
@given(SERVERS, BODIES)
def test_a_stream_is_the_whole_answer_and_usage_its_tokens(served, body):
    made = ask(served, **body, stream=True, stream_options={"include_usage": True})
    choices, usage = joined(made)
    assert (choices, usage) == at_once(made)
    assert usage["completion_tokens"] == sum(len(one.tokens) for one in made.choices)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 1 <= len(made.tokens) <= made.max_tokens
    roles = made.n if made.kind == "chat" else 0
    assert len(answers.frames(made)) == roles + usage["completion_tokens"] + 2
    if body.get("ignore_eos") and "stop" not in body:
        assert len(made.tokens) == made.max_tokens
    # Asked again, or for a stream or not, it is the same; so are its parts whoever asks.
    again = ask(served, **body)
    assert at_once(again) == at_once(made) and again.digest == made.digest


@QUICK
@given(
    SERVERS,
    BODIES.map(
        lambda body: {
            key: value
            for key, value in body.items()
            if key not in ("stop", "max_completion_tokens")
        }
    ),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_a_longer_answer_begins_as_the_shorter_one(served, body, one, other):
    short, long = (ask(served, **body | {"max_tokens": most}) for most in sorted((one, other)))
    for found, more in zip(joined(short)[0], joined(long)[0], strict=True):
        assert more[0].startswith(found[0]) and more[1].startswith(found[1])
        for call, longer in itertools.zip_longest(found[2], more[2], fillvalue=("", "", "")):
            assert longer[2].startswith(call[2])


@QUICK
@given(st.text())
def test_the_tokens_of_a_text_are_the_text(said):
    tokens = stand_in_text.split(said)
    assert "".join(tokens) == said and all(tokens)
    assert len(tokens) >= len(said) / 45


@QUICK
@given(st.lists(st.text(max_size=60) | SAID, max_size=20).map(" ".join))
def test_an_answer_has_its_natural_length(said):
    if not said.isascii():
        said = said.encode(errors="replace").decode()
    made = ask(said=said)
    thought = [one for one in made.tokens if one.channel == "reasoning"]
    spoken = [one for one in made.tokens if one.channel == "content"]
    assert 10 <= len(thought) <= 20 and 20 <= len(spoken) - 1 <= 60
    assert message(made)["content"].startswith("REHEARSAL: ")
    assert message(made)["reasoning"].startswith("REHEARSAL thinking about: ")
    assert made.finish_reason == "stop"


def test_the_filler_is_one_token_a_word():
    assert (
        all(stand_in_text.split(word) == [word] for word in stand_in_text.FILL)
        and len(set(stand_in_text.FILL)) > 20
    )
    made = ask(max_tokens=500, min_tokens=400)
    assert len(made.tokens) == 401 and made.finish_reason == "stop"
    made = ask(max_tokens=50_000, ignore_eos=True)
    assert len(made.tokens) == 50_000 and made.finish_reason == "length"
    assert len(answers.frames(made)) == 50_002


# Lengths, stops, ranks --------------------------------------------------------------------------


def test_the_prompt_and_the_answer_share_the_context():
    made = ask(SERVED)
    assert made.max_tokens == 512 - made.prompt_tokens
    assert ask(SERVED, max_tokens=512 - made.prompt_tokens).max_tokens == made.max_tokens
    status, why = refusal(SERVED, max_tokens=513 - made.prompt_tokens)
    assert status == 400 and "maximum context length is 512 tokens" in why
    assert refusal(SERVED, max_completion_tokens=600, max_tokens=5) == (
        400,
        "max_completion_tokens=600 cannot be greater than max_model_len=max_total_tokens=512. "
        "Please request fewer output tokens. (parameter=max_completion_tokens, value=600)",
    )
    assert ask(max_completion_tokens=4, max_tokens=9).max_tokens == 4
    assert ask(prompt="hi").max_tokens == 16
    assert ask(SERVED, prompt="hi", max_tokens=None).max_tokens == 511


def test_a_stop_string_ends_the_text_before_itself():
    full = message(ask())["content"]
    made = ask(stop=[" all but", "zzz"], include_reasoning=False)
    assert message(made)["content"] == full[: full.index(" all but")]
    assert (made.finish_reason, made.stop_reason) == ("stop", " all but")
    assert message(ask(stop="R", chat_template_kwargs={"thinking": False}))["content"] == ""
    assert refusal(stop="")[1] == "stop cannot contain an empty string."
    assert ask(stop="R", min_tokens=30, max_tokens=80).finish_reason == "stop"
    assert len(ask(stop="R", min_tokens=30, max_tokens=80).tokens) >= 30


@pytest.mark.parametrize(("given", "rank"), [("3", 3), ("x", None), ("", None), ("9" * 5000, None)])
def test_a_rank_is_read_from_its_header(given, rank):
    assert ask(headers={"x-DATA-parallel-rank": given}).rank == rank
    assert ask(prompt="a", headers={"X-data-parallel-rank": given}).rank == rank


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"max_tokens": "many"}, "int_parsing"),
        ({"max_tokens": 1.5}, "int_from_float"),
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 10**6}, "n must be at most 16384"),
        ({"stream": []}, "bool_type"),
        ({"messages": "x"}, "list_type"),
        ({"model": 3}, "string_type"),
        ({"stream_options": {"include_usage": True}}, "Stream options can only be defined when"),
        ({"tool_choice": "auto"}, "When using `tool_choice`, `tools` must be set."),
        ({"tools": []}, "`tools` must not be an empty array."),
        ({"tools": [{}]}, "'function'"),
        ({"tools": [tool("a")], "tool_choice": {"function": {"name": "b"}}}, "does not match any"),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0.0."),
        ({"stop": 1}, "string_type"),
        (
            {"max_tokens": 2, "min_tokens": 3},
            "min_tokens must be less than or equal to max_tokens=2",
        ),
        ({"response_format": {"type": "json_schema"}}, "'json_schema' field must be provided"),
        ({"response_format": {"type": "xml"}}, "literal_error"),
        ({"messages": [{"role": "user", "content": [{"type": "odd"}]}]}, "Unknown part type: odd"),
        ({"messages": [{"role": "user", "content": 5}]}, "string_type"),
    ],
)
def test_a_field_that_is_wrong_is_named(body, why):
    status, said = refusal(**body)
    assert status == 400 and why in said


def test_numbers_are_read_as_pydantic_reads_them():
    made = ask(max_tokens="8", n=2.0, stream="true", temperature="0.5", ignore_eos=1)
    assert (made.max_tokens, made.n, made.stream, len(made.tokens)) == (8, 2, True, 8)


# Messages ---------------------------------------------------------------------------------------


def seen(*parts):
    return ask(messages=[{"role": "user", "content": list(parts)}])


def test_parts_and_images_count():
    plain = ask(said="see")
    words = seen({"type": "text", "text": "see"})
    both = seen({"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PIXEL}})
    other = seen("see", {"type": "image_url", "image_url": "https://a.example/b.png"})
    assert plain.prompt_tokens == words.prompt_tokens == both.prompt_tokens - 64
    assert plain.digest == words.digest and len({both.digest, other.digest, plain.digest}) == 3
    for url in (
        "data:image/png;base64,a*b=",
        "data:image/png;base64,",
        "data:image/png,xx",
        "ftp:",
    ):
        with pytest.raises(ApiError):
            seen({"type": "image_url", "image_url": {"url": url}})


def test_the_prompt_is_all_that_a_digest_is_made_of():
    same = [ask(), ask(stream=True), ask(temperature=0, max_tokens=1, seed=4)]
    assert len({one.digest for one in same}) == 1
    other = [
        ask(said="hello worlds"),
        ask(chat_template_kwargs={"thinking": False}),
        ask(tools=[tool("calc")]),
    ]
    assert len({one.digest for one in [*same, *other]}) == 4
    assert re.fullmatch("[0-9a-f]{64}", same[0].digest)


def test_another_prompts_cache_makes_nonsense():
    made = ask()
    assert answers.regenerate(made, made.digest) == made
    bad = answers.regenerate(made, ask(said="other").digest)
    assert "REHEARSAL" not in json.dumps(message(bad))
    assert len(bad.tokens) == len(made.tokens) and bad.digest == made.digest
    assert all(
        one.text != two.text for one, two in zip(made.tokens, bad.tokens, strict=True) if one.text
    )


def test_what_a_prefill_returns_is_passed_on():
    given_ = {"do_remote_decode": True, "do_remote_prefill": False}
    made = ask(kv_transfer_params=given_, max_tokens=1)
    assert made.kv == given_
    assert answers.whole(made)["kv_transfer_params"] is None
    assert answers.whole(made, {"remote_port": 1})["kv_transfer_params"] == {"remote_port": 1}
    assert answers.internal("").body == {
        "error": {"message": "", "type": "InternalServerError", "param": None, "code": 500}
    }


# Reasoning and tools ----------------------------------------------------------------------------


def test_reasoning_is_where_the_server_puts_it():
    made = message(ask())
    assert made["reasoning"] and "think" not in made["content"]
    assert message(ask(max_tokens=3))["content"] is None
    for served in (replace(WIDE, reasoning_parser=""), replace(WIDE, flaw="reasoning-leaks")):
        raw = message(ask(served))
        assert raw["reasoning"] is None
        assert raw["content"] == f"{made['reasoning']}</think>{made['content']}"
    assert message(ask(include_reasoning=False)) == made | {"reasoning": None}
    assert message(ask(chat_template_kwargs={"thinking": False}))["reasoning"] is None


def test_tools_are_called_when_they_are_asked_for():
    tools = [tool("get_weather"), tool("news.search"), tool("calc")]
    made = ask(said="Weather and NEWS, please", tools=tools)
    assert [call["id"] for call in message(made)["tool_calls"]] == [
        "functions.get_weather:0",
        "functions.news.search:1",
    ]
    assert made.finish_reason == "tool_calls" and message(made)["content"] is None
    assert message(made)["tool_calls"][0]["function"]["arguments"] == '{"city":"REHEARSAL"}'
    history = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "content": None, "tool_calls": message(made)["tool_calls"]},
        {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "sun"},
    ]
    assert message(ask(messages=history, tools=tools))["tool_calls"] == []
    forced = ask(messages=history, tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert [call["id"] for call in message(forced)["tool_calls"]] == ["functions.get_weather:2"]
    named = ask(tools=tools, tool_choice={"type": "function", "function": {"name": "calc"}})
    assert [call["id"] for call in message(named)["tool_calls"]] == ["functions.calc:0"]
    for more in ({"tool_choice": "none"}, {"tool_choice": None}):
        assert message(ask(said="weather", tools=tools, **more))["tool_calls"] == []
    assert message(ask(said="hello", tools=tools))["tool_calls"] == []
    cut = ask(
        said="weather", tools=tools, max_tokens=len(ask(said="weather", tools=tools).tokens) - 3
    )
    assert cut.finish_reason == "length" and len(message(cut)["tool_calls"]) == 1


def test_tools_need_their_parser():
    for served in (replace(WIDE, auto_tools=False), replace(WIDE, tool_parser="")):
        assert refusal(served, tools=[tool("a")]) == (
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to '
            "be set",
        )
        assert ask(served, tools=[tool("a")], tool_choice="none").finish_reason == "stop"


def test_flaws_show():
    leak = message(
        ask(replace(WIDE, flaw="tool-call-leaks"), said="weather", tools=[tool("get_weather")])
    )
    assert leak["tool_calls"] == [] and leak["content"] == (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city":"REHEARSAL"}<|tool_call_end|>'
        "<|tool_calls_section_end|>"
    )
    bad = message(ask(replace(WIDE, flaw="garbled-output")))
    assert set(bad["content"]) == set(bad["reasoning"]) == {"!"}
    assert set(
        answers.whole(ask(replace(WIDE, flaw="garbled-output"), prompt="x"))["choices"][0]["text"]
    ) == {"!"}


# Schemas ----------------------------------------------------------------------------------------

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "required": ["value", "next"],
            "properties": {
                "value": {"type": "integer", "minimum": 3, "multipleOf": 4},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
        }
    },
}
LEAVES = st.one_of(
    st.just({"type": "string"}),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({}),
    st.just({"enum": ["b", 2]}),
    st.just({"const": {"a": [1]}}),
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
        st.integers(0, 30),
        st.integers(0, 9),
    ),
    st.builds(
        lambda kind, low, size: {"type": kind, "minimum": low, "maximum": low + size},
        st.sampled_from(["integer", "number"]),
        st.integers(-99, 99),
        st.integers(0, 9),
    ),
    st.builds(
        lambda kind, low: {"type": kind, "exclusiveMinimum": low},
        st.sampled_from(["integer", "number"]),
        st.floats(-99, 99),
    ),
    st.builds(
        lambda low: {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + 0.5},
        st.floats(-99, 99),
    ),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda parts, needed: {
                "type": "object",
                "properties": parts,
                "required": [name for name in sorted(parts) if name in needed],
            },
            st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
            st.sets(st.sampled_from("abcd")),
        ),
        st.builds(
            lambda items, low: {"type": "array", "items": items, "minItems": low},
            inner,
            st.integers(0, 3),
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
        inner.map(lambda part: {"type": ["object", "null"], "properties": {"x": part}}),
    ),
    max_leaves=8,
)


@QUICK
@given(SCHEMAS)
def test_an_example_is_an_instance_of_its_schema(schema):
    jsonschema.validate(stand_in_text.example(schema), schema)
    assert stand_in_text.example(schema) == stand_in_text.example(schema)
    made = ask(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    jsonschema.validate(json.loads(message(made)["content"]), schema)
    made = ask(
        tools=[tool("f", {"type": "object", "properties": {"x": schema}})],
        tool_choice="required",
        ignore_eos=True,
        max_tokens=4000,
    )
    call = message(made)["tool_calls"][0]["function"]
    jsonschema.validate(json.loads(call["arguments"])["x"], schema)


def test_an_example_of_what_recurs_or_is_junk_ends():
    jsonschema.validate(stand_in_text.example(TREE), TREE)
    wide = {
        "$defs": {
            "t": {
                "type": "object",
                "required": list("abcdef"),
                "properties": {name: {"$ref": "#/$defs/t"} for name in "abcdef"},
            }
        },
        "$ref": "#/$defs/t",
    }
    assert len(json.dumps(stand_in_text.example(wide))) < 100_000
    for junk in (
        None,
        True,
        3,
        "x",
        [],
        {"type": 7},
        {"$ref": "#"},
        {"$ref": "http://x"},
        {"anyOf": [{"$ref": "#"}]},
        {"allOf": [3]},
        {"type": []},
        {"type": "odd"},
    ):
        assert stand_in_text.example(junk) == {}
    both = {
        "allOf": [
            {"$ref": "#/$defs/a"},
            {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
        ],
        "$defs": {"a": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }
    assert stand_in_text.example(both) == {"a": "REHEARSAL", "b": 1}


@pytest.mark.parametrize(
    ("body", "content"),
    [
        ({"response_format": {"type": "json_object"}}, '{"REHEARSAL":true}'),
        ({"structured_outputs": {"json": {"type": "integer", "minimum": 5}}}, "5"),
        ({"structured_outputs": {"regex": "(ab|cd){2}"}}, "abab"),
        ({"structured_outputs": {"grammar": 'root ::= "ab" | "cd"'}}, "ab"),
        ({"structured_outputs": {"json": {"type": "string", "pattern": "^[A-Z]{3}$"}}}, '"AAA"'),
        ({"structured_outputs": {"json": '{"type": "boolean"}'}}, "true"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes"),
    ],
)
def test_a_structured_output_is_what_was_asked_for(body, content):
    assert message(ask(**body))["content"] == content
    padded = message(ask(**body, ignore_eos=True, max_tokens=90))["content"]
    assert padded.strip() == content and len(padded) > len(content)


# What versions, seeds and settings change -------------------------------------------------------

NEW = replace(WIDE, version="0.32.0", max_model_len=512)


def contents(made):
    return [one["message"]["content"] for one in answers.whole(made)["choices"]]


def test_every_change_has_a_version_between_those_that_were_read():
    found = [versions.changes(version) for version in ("0.11.2", "0.20.2", "0.22.1", "0.32.0")]
    assert found[0] == frozenset() and all(one < two for one, two in itertools.pairwise(found))
    assert {"prompt_text"} <= found[2] and "output_is_clamped" not in versions.changes("0.31.0")


def test_the_output_is_clamped_to_the_context_from_a_version_on():
    made = ask(NEW, max_tokens=510)
    assert made.max_tokens == 512 - made.prompt_tokens
    assert "maximum context length" in refusal(replace(NEW, version="0.31.0"), max_tokens=510)[1]
    assert ask(NEW, prompt=[5] * 511, max_tokens=8).max_tokens == 1
    assert "max_tokens must be at least 1, got 0." in refusal(NEW, prompt=[5] * 512)[1]
    assert "contains 600 input tokens" in refusal(NEW, prompt=[5] * 600)[1]


def test_seeds_and_places_give_other_words_above_temperature_0():
    off = {"chat_template_kwargs": {"thinking": False}, "temperature": 1}
    three = contents(ask(n=3, **off))
    assert len(set(three)) == 3 and all("REHEARSAL" in one for one in three)
    seeds = [contents(ask(seed=seed, **off))[0] for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert contents(ask(seed=1, **off | {"temperature": 0})) == contents(ask(**off))
    assert contents(ask(seed=1, top_k=1, **off)) == contents(ask(**off))


def test_guided_fields_are_ignored_but_by_old_versions():
    body = {"guided_json": {"type": "integer", "minimum": 5}}
    assert message(ask(replace(WIDE, version="0.11.2"), **body))["content"] == "5"
    assert message(ask(NEW, **body))["content"].startswith("REHEARSAL")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"structured_outputs": {"regex": "(a"}}, "Grammar error"),
        ({"structured_outputs": {"grammar": "no grammar"}}, "Invalid grammar specification"),
        ({"structured_outputs": {"json": {"type": "nope"}}}, "Invalid type: nope"),
        ({"structured_outputs": {"json": {"$ref": "#/$defs/no"}}}, "does not exist"),
        ({"structured_outputs": {}}, "none are specified"),
        ({"structured_outputs": {"choice": []}}, "cannot be an empty list"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "look-around"),
        ({"structured_outputs": {"grammar": "root ::= root"}}, "does not end"),
        ({"temperature": 3}, "temperature must be in [0, 2], got 3.0."),
        ({"seed": 2**70}, "9223372036854775807"),
        ({"stop": list("abcde")}, "List should have at most 4 items"),
        ({"top_logprobs": 2}, "`logprobs` must be set to true"),
        ({"reasoning_effort": "huge"}, "literal_error"),
        ({"prompt": "x", "suffix": "y"}, "suffix is only supported"),
        ({"logit_bias": {"x": 1}}, "converted to integer token IDs: ['x']"),
    ],
)
def test_what_the_newest_version_refuses(body, why):
    status, said = refusal(NEW, **body)
    assert status == 400 and why in said


def test_older_versions_take_what_newer_ones_refuse():
    old = replace(NEW, version="0.20.2")
    for body in ({"temperature": 3}, {"stop": list("abcde")}):
        assert ask(old, **body).tokens
    with pytest.raises(ApiError) as caught:
        ask(old, model="nope")
    assert "aliases" not in str(caught.value)


def test_a_bias_that_leaves_no_choice_is_obeyed():
    off = {"chat_template_kwargs": {"thinking": False}, "max_tokens": 4}
    one = stand_in_text.number("hell")
    assert contents(ask(logit_bias={str(one): 100}, **off)) == ["hell" * 4]
    made = ask(logit_bias={str(one): 100}, stop_token_ids=[one], **off)
    assert (made.finish_reason, made.stop_reason) == ("stop", one)
    banned = stand_in_text.number("REHE")
    assert "REHEARSAL" not in contents(ask(logit_bias={str(banned): -100}, **off))[0]


def test_stop_strings_and_prompts_are_kept_or_cut_as_asked():
    kept = ask(stop="so it", include_stop_str_in_output=True, include_reasoning=False)
    assert message(kept)["content"].endswith("so it") and kept.stop_reason == "so it"
    assert ask(prompt="hello world again", truncate_prompt_tokens=2).prompt_tokens == 2
    goes_on = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "I say"}]
    both = {"messages": goes_on, "add_generation_prompt": False}
    longer = ask(messages=goes_on, echo=True)
    continued = ask(**both, continue_final_message=True)
    assert continued.prompt_tokens < longer.prompt_tokens
    assert message(longer)["content"].startswith("I say")


def test_a_named_tool_ends_with_stop():
    tools = {"tools": [tool("calc")], "max_tokens": 90}
    named = {"type": "function", "function": {"name": "calc"}}
    assert ask(**tools, tool_choice=named).finish_reason == "stop"
    assert ask(**tools, tool_choice="required").finish_reason == "tool_calls"


def test_a_server_without_eyes_refuses_pictures():
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    body = {"messages": [{"role": "user", "content": [picture]}]}
    assert refusal(replace(NEW, text_only=True), **body)[1] == (
        "At most 0 vision_chunk(s) may be provided in one prompt. (parameter=vision_chunk)"
    )
    assert ask(WIDE, **body).tokens
