"""Verification: every check passes where all is well, and a fault fails its own checks only."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from testbed.odd_server import OddServer

from kimi_nb import start
from kimi_nb.bundle import scripts
from kimi_nb.cli import main
from kimi_nb.core import data_files, evidence
from kimi_nb.core.errors import ParameterError
from kimi_nb.core.marks import MARK
from kimi_nb.plan import build
from kimi_nb.prove.verify import (
    answer_bodies,
    canary,
    content,
    contract,
    curl,
    http_exchange,
    offered_tools,
    reasoning,
    received,
    registry,
    runner,
    schemas,
    target,
    vendor_verifier,
    verify,
)
from kimi_nb.rehearse import rehearsal
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.service import http_client, probe
from kimi_nb.service.handle import Service
from kimi_nb.service.readiness import Watch

PARSERS = ("reasoning-parser", "tool-parser")
PAIR = (("k2.6", "a3", "pd"), "throughput")
ROUTED = ("router=vllm-router",)
TROUBLES = set(data_files.facts("diagnose/signatures"))


@contextlib.contextmanager
def live(folder, *names, fault="", **more):
    """A service of stand-ins, as a notebook has it."""
    plan = build.plan(*names, **more)
    with rehearsal.start(plan, folder, fault=fault) as found:
        assert found.result.ok, found.result
        yield Service(None, plan, found)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Prefill and decode, two ranks each, behind the real router."""
    folder = tmp_path_factory.mktemp("pair")
    with live(folder, *PAIR[0], scenario=PAIR[1], chosen=PARSERS, pairs=ROUTED) as found:
        yield found


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """The same behind what the plan has by itself: the example proxy, by its stand-in."""
    folder = tmp_path_factory.mktemp("proxied")
    with live(folder, *PAIR[0], scenario=PAIR[1], chosen=PARSERS) as found:
        yield found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Several ranks behind one port, as published: without parsers."""
    with live(tmp_path_factory.mktemp("plain"), "k2.5", "a3", "single") as found:
        yield found


def open_door(watch) -> None:
    """Wait for the front door alone."""
    end = time.monotonic() + 60
    while not http_client.listens(watch._plan.url, 1) and time.monotonic() < end:
        time.sleep(0.05)


@pytest.fixture
def unwatched(monkeypatch):
    """Rehearsals that nobody looks at: a service with a fault stays up."""
    monkeypatch.setattr(Watch, "_probe", lambda self, one: probe.healthy(one.url, 3))
    monkeypatch.setattr(Watch, "first_answer", open_door)
    for name in ("check_transfer", "look_at_answers", "load"):
        monkeypatch.setattr(Watch, name, lambda self: None)


def failed(found) -> set[str]:
    return {one.name for one in found.failed}


def reasons(found) -> dict[str, str]:
    return {one.name: one.got for one in found.results if one.status == contract.SKIP}


def odd(server, **more):
    return target.at(server.url, "kimi", seconds=2.0, pauses=(0.0, 0.01), **more)


# What there is --------------------------------------------------------------------------


def test_every_check_has_its_words():
    data = data_files.facts("prove/checks")
    assert list(registry.all_checks()) == list(data["checks"])
    assert set(registry._CHECKS) == set(data["checks"])
    for entry in [*data["checks"].values(), *data["causes"].values()]:
        assert set(entry) <= {"title", "trouble"}
        assert set(filter(None, entry.get("trouble", "").split(", "))) <= TROUBLES
    told = data_files.facts("diagnose/remedies")
    assert all(text.endswith((".", ")", "?")) for text in told.values())
    asked = {*data["checks"], *(f"answer/{cause}" for cause in data["causes"])}
    elsewhere = ("loss/", "start/", "reach/", "node/", "look/", "slurm/", "kubernetes/", "job/")
    assert {name for name in told if not name.startswith(elsewhere)} == asked
    for one in registry.all_checks().values():
        assert one.help.startswith(told[one.name])
        assert one.title and one.run.__doc__ and set(one.needs) <= set(data["checks"])
        order = list(data["checks"])
        assert all(order.index(need) < order.index(one.name) for need in one.needs)


def test_a_check_that_is_not_known():
    with pytest.raises(ParameterError, match="did you mean 'tool-calls'"):
        registry.chosen(["tool-call"])
    assert list(registry.chosen(["api/chat", "load"])) == ["api/chat", "load/concurrent"]


# Where all is well ----------------------------------------------------------------------


def test_a_prefill_decode_service_keeps_all_of_it(pair):
    found = verify(target.of(pair))
    assert found.ok and found.mark == MARK and found.counts[contract.PASS] == 38, found
    assert reasons(found) == {
        "api/prompt-tokens": "stand-ins and tiny models have a vocabulary of their own",
        "errors/wrong-key": "no key is used: whoever reaches the port is served",
    }
    got = {one.name: one.got for one in found.results}
    assert "4 of 4 places" in got["engines/completion"]
    assert "5 of 5 places" in got["streaming/equal"], "the front door and every engine"
    assert "2 decode engines" in got["disaggregation/equal"]
    told = [int(word) for word in re.findall(r"\d+", got["canary/contexts"])]
    assert told[-1] > 14000 and len(told) > 4 and told == sorted(told)
    assert all(one.sent and one.got for one in found.results)


def test_behind_the_example_proxy_a_mistake_is_no_4xx_and_the_door_is_named(proxied):
    found = verify(target.of(proxied))
    mistakes = {"errors/unknown-model", "errors/too-long", "errors/bad-json", "parameters/refused"}
    assert failed(found) == mistakes, found
    assert not found.ok and found.only_door
    for one in found.failed:
        assert one.got.startswith("front door: 500, not 40"), one
        assert "--set router=vllm-router" in one.help and "not an engine" in one.help
    assert "no /v1/models" in reasons(found)["api/models"]


def test_behind_the_example_proxy_a_url_alone_is_known_by_its_healthcheck(proxied, capsys):
    words = ["verify", proxied.url, "--model", proxied.model, "--only", "errors", "--json"]
    assert main.main(words) == 1, "a failure is one, whoever causes it"
    told = json.loads(capsys.readouterr().out)
    by_door = {one["name"] for one in told["checks"] if one["cause"] == contract.DOOR}
    assert by_door == {"errors/unknown-model", "errors/bad-json"}


def test_a_resumed_failure_keeps_its_cause(proxied, tmp_path):
    found = verify(target.of(proxied), only=["errors"], folder=tmp_path)
    assert found.only_door and not found.ok
    assert (
        found.only_door
        == verify(target.of(proxied), only=["errors"], folder=tmp_path, resume=True).only_door
    )


def test_a_fault_behind_the_example_proxy_is_not_the_doors(proxied):
    wrong = dataclasses.replace(target.of(proxied), model="another")
    found = verify(wrong, only=["api/chat"])
    assert failed(found) == {"api/chat"} and not found.only_door
    assert "hides what an engine said" in found.failed[0].help


def test_a_url_alone(pair):
    found = verify(target.at(f"{pair.url}/v1/", pair.model))
    assert found.ok and found.mark == MARK and found.url == pair.url, found
    assert set(reasons(found)) == {
        "api/prompt-tokens",
        "engines/completion",
        "errors/wrong-key",
        "disaggregation/moves",
        "disaggregation/equal",
    }


def test_without_parsers_is_not_applicable(plain):
    """Every rank of one port by X-data-parallel-rank; and each reason is the engine's own."""
    for whom in (target.of(plain), target.at(plain.url, plain.model)):
        found = verify(whom, max_context=2048)
        why = reasons(found)
        if whom.engines:
            assert found.ok, found
            assert "--reasoning-parser" in why["reasoning/apart"]
            got = {one.name: one.got for one in found.results}
            assert f"{len(whom.engines)} of {len(whom.engines)}" in got["engines/completion"]
        else:  # of a URL alone the thoughts in the content are all that is seen
            assert failed(found) == {"reasoning/apart"}
        assert "tool-call-parser" in why["tool-calls/auto"]
        assert {name for name in why if name.startswith("tool-calls")} >= {
            "tool-calls/ids",
            "tool-calls/arguments",
            "tool-calls/streaming",
        }


def test_random_weights_pass_nothing_by_chance(pair):
    found = verify(target.at(pair.url, pair.model, sense=False))
    why = reasons(found)
    for name in ("canary/words", "canary/contexts", "tool-calls/auto", "tool-calls/several"):
        assert "random weights" in why[name]
    assert found.ok and "tool-calls/required" not in why


def test_a_model_that_always_thinks(tmp_path):
    with live(tmp_path, "k2-thinking", "a3", "single", chosen=PARSERS) as found:
        result = verify(target.of(found), max_context=2048)
        assert result.ok, result
        assert "always thinks" in reasons(result)["reasoning/off"]
        assert "text only" in reasons(result)["content/image"]


@pytest.mark.parametrize(
    ("name", "always"),
    [
        ("k2.7-code", True),
        ("moonshotai/Kimi-K2.7-Code", True),
        ("moonshotai/Kimi-K2-Thinking", True),
        ("a-thinking-model", True),
        ("moonshotai/Kimi-K2.5", False),
        ("kimi_k25", False),
        ("/data/models/Kimi-K3-w4a8", False),
        ("moonshotai/Kimi-K2-Instruct", False),
    ],
)
def test_models_that_always_think_are_known_by_their_files(name, always):
    assert target.at("http://192.0.2.11:8000", name).always_thinks is always


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("The user wants a number.</think>42", "reasoning-leaks"),
        ("A number.<|close|>think<|sep|><|open|>response<|sep|>42", "reasoning-leaks"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>f", "tool-call-leaks"),
        ('<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>', "tool-call-leaks"),
        ("I think that the tools are open.", ""),
    ],
)
def test_the_marks_of_both_chat_formats_are_no_content(content, kind):
    """Kimi-K2's tokens, and the channels that Kimi-K3 writes where its parsers are missing."""
    where = probe.Endpoint("mixed0", "mixed", "n", 0, "http://127.0.0.1:1", None, True, True)
    body = {"choices": [{"message": {"content": content}}]}
    reply = http_client.Reply(200, json.dumps(body), 0.1)
    found = probe.flaw(reply, where)
    assert (found[0] if found else "") == kind
    if kind == "reasoning-leaks":
        assert reasoning.after_thoughts(content) == "42"
    if kind == "tool-call-leaks":
        assert offered_tools.MARKERS.search(content)


def test_a_key(tmp_path, site_file, monkeypatch, capsys):
    """A wrong one is refused, the right one is nowhere to be read."""
    monkeypatch.setenv("KIMI_KEY", "sk-very-secret")
    site = site_file(("transport:", "api_key_env: KIMI_KEY\ntransport:"))
    with live(tmp_path, "k2.5", "a3", "single", site=site, chosen=PARSERS) as found:
        assert found.key
        whom = target.of(found)
        result = verify(whom, folder=tmp_path / "kept", max_context=2048)
        assert result.ok and "errors/wrong-key" not in reasons(result), result
        assert found.key not in repr(whom)
        assert found.key not in (tmp_path / "kept" / runner.FILE).read_text()
        monkeypatch.setenv("KIMI_KEY", found.key)
        args = ["verify", found.url, "--only", "api/chat,errors/wrong-key", "--json"]
        assert main.main([*args, "--api-key-env", "KIMI_KEY"]) == 0
        text = capsys.readouterr()
        assert found.key not in text.out + text.err
        assert main.main(args) == 1, "no key is a named result"
        told = json.loads(capsys.readouterr().out)
        assert [one["status"] for one in told["checks"]] == ["fail", "not applicable"]
        assert "--api-key-env" in told["checks"][0]["help"]
        asked = curl.run(found.plan, found.url, found.key)
        assert asked.status == contract.PASS and found.key not in str(asked), asked


# Faults of stand-ins --------------------------------------------------------------------

FAULTS = {
    "garbled-output": {"canary/words"},
    "reasoning-leaks": {"reasoning/apart"},
    "tool-call-leaks": {"tool-calls/auto"},
    "empty-200": {"api/models", "api/chat"},
    "engine-hangs": {"engines/completion"},
    "first-chat-500": {"engines/completion"},
}


ONE_PORT = (("k2.5", "a3", "single"), "")


@pytest.mark.parametrize(
    "fault, of",
    [
        ("garbled-output", PAIR),
        ("reasoning-leaks", ONE_PORT),
        ("tool-call-leaks", ONE_PORT),
        ("empty-200", PAIR),
        ("engine-hangs", ONE_PORT),
        ("first-chat-500", ONE_PORT),
    ],
)
def test_a_fault_of_one_rank_fails_its_own_checks(fault, of, unwatched, tmp_path):
    names, scenario = of
    more = {"pairs": ROUTED} if of is PAIR else {}
    with live(tmp_path, *names, scenario=scenario, chosen=PARSERS, fault=fault, **more) as found:
        whom = dataclasses.replace(target.of(found), seconds=4.0)
        result = verify(whom, max_context=2048)
        assert failed(result) == FAULTS[fault], result
        assert all(one.help for one in result.failed)
        if fault != FaultName.EMPTY_200:
            faulty, well = whom.engines[-1].name, whom.engines[0].name
            got = result.failed[0].got
            assert got.startswith(f"{faulty}: ") and f"{well}: " not in got


@pytest.mark.parametrize(
    "manner, wanted",
    [
        ("garbled", {"canary/words"}),
        ("leaked-thoughts", {"reasoning/apart"}),
        ("leaked-call", {"tool-calls/auto"}),
        ("500", {"api/chat"}),
        ("empty", {"api/chat"}),
        ("hangs", {"api/chat"}),
    ],
)
def test_a_fault_behind_a_url(manner, wanted):
    with OddServer(manner) as server:
        assert failed(verify(odd(server), max_context=2048)) == wanted


@pytest.mark.parametrize(
    "manner, told",
    [
        ("garbled", "over and over"),
        ("word-salad", "the words copper, willow and seven were to be repeated"),
        ("mixed-scripts", "letters of 6 scripts"),
    ],
)
def test_one_of_four_ranks_that_talks_nonsense(manner, told):
    with OddServer(f"{manner}@2") as server:
        ranks = tuple(
            probe.Endpoint("mixed0-node0", "mixed", "a3-0", rank, server.url, rank, True, True)
            for rank in range(4)
        )
        found = verify(odd(server, endpoints=ranks), only=["engines", "canary/words"])
        (bad,) = found.failed
        assert bad.name == "canary/words" and bad.got.startswith("mixed0-rank2: ") and bad.help
        assert told in bad.got and "rank1" not in bad.got


def test_counts_as_text_end_no_check_with_a_traceback():
    """The one check that judges counts fails; those that need them do not apply, and say why."""
    with OddServer("text-usage") as server:
        found = verify(odd(server), max_context=2048)
        assert failed(found) == {"api/usage"}, found
        told = reasons(found)
        assert "prompt_tokens is the text" in told["content/image"]
        assert "prompt_tokens is the text" in told["canary/contexts"]


def test_arguments_as_an_object_fail_where_arguments_are_judged():
    with OddServer("object-arguments") as server:
        found = verify(odd(server), only=["tool-calls"])
        assert failed(found) == {
            "tool-calls/arguments",
            "tool-calls/required",
            "tool-calls/named",
        }, found


# Faults of anybody ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "manner, cause, name",
    [
        ("429", "429 after several tries", "api/chat"),
        ("500", "500: ", "api/chat"),
        ("html", "no JSON object", "api/chat"),
        ("no-choices", "no choices", "api/chat"),
        ("empty", "empty 200", "api/chat"),
        ("cut-body", "", "api/chat"),
        ("empty-stream", "no event in the stream", "streaming/equal"),
        ("cut-stream", "ends without [DONE]", "streaming/equal"),
        ("broken-stream", "", "streaming/equal"),
        ("slow-stream", "no ", "streaming/equal"),
        ("error-stream", "an error in the stream", "streaming/equal"),
        ("other-stream", "content differs", "streaming/equal"),
        ("bad-usage", "usage", "api/usage"),
        ("bad-arguments", "no JSON", "tool-calls/arguments"),
        ("wrong-arguments", "do not fit", "tool-calls/arguments"),
        ("bad-ids", "functions.get_weather:0", "tool-calls/ids"),
        ("leaked-call", "a tool call as text", "tool-calls/auto"),
        ("wrong-reason", "finish_reason", "api/finish-reason"),
        ("accepts-all", "200, not 404", "errors/unknown-model"),
        ("mixes", "was told", "load/concurrent"),
        ("loses-words", "4 of 16 did not say their word", "load/concurrent"),
        ("text-usage", "prompt_tokens is the text '26', not a whole number", "api/usage"),
        ("object-arguments", "an object, not a text of JSON", "tool-calls/arguments"),
        ("bad-schema", "JSON of another form", "content/json-schema"),
    ],
)
def test_each_oddity_is_a_named_result(manner, cause, name):
    with OddServer(manner) as server:
        found = verify(odd(server), only=["api/chat", name])
        told = {one.name: one for one in found.failed}
        assert set(told) == {name}, found
        assert cause in told[name].got and told[name].help


def test_a_good_odd_server_is_good():
    """What the oddities are measured against."""
    with OddServer("") as server:
        found = verify(odd(server), max_context=2048)
        assert found.ok, found
        assert set(reasons(found)) == {
            "api/prompt-tokens",
            "engines/completion",
            "errors/wrong-key",
            "disaggregation/moves",
            "disaggregation/equal",
        }


def test_a_limit_that_passes_is_waited_for():
    with OddServer("429-once") as server:
        assert verify(odd(server), only=["api"]).ok


def test_an_error_in_the_middle_is_one_result():
    with OddServer("500-third") as server:
        found = verify(odd(server), only=["api"])
        assert len(found.failed) == 1 and found.failed[0].got.startswith("500"), found


def test_a_service_that_goes_half_way():
    with OddServer("") as server:
        server.after(12, server.shut)
        begun = time.monotonic()
        found = verify(odd(server))
        assert time.monotonic() - begun < 10, "nobody waits for what is gone"
        gone = [one for one in found.results if "gone" in one.got]
        assert found.counts[contract.PASS] >= 2 and len(gone) > 10
        assert all(one.status == contract.FAIL for one in gone)
        assert sum("takes no connections" in one.got for one in gone) == 1, "said once"


def test_nobody_there():
    found = verify(target.at("http://127.0.0.1:9", "kimi"))
    assert found.counts[contract.FAIL] == len(found.results) and "gone" in found.results[0].got


@contextlib.contextmanager
def files_server():
    """What `python -m http.server` is: pages of HTML, no API."""
    handler = http.server.SimpleHTTPRequestHandler
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_what_is_no_api_is_said_once():
    with files_server() as port:
        found = verify(target.at(f"http://127.0.0.1:{port}", "kimi"))
        (one,) = found.failed
        assert one.name == "api/models" and one.got == (
            "no OpenAI API is there: 404 with HTML at /v1/models, "
            "501 with HTML at /v1/chat/completions"
        )
        assert "front door?" in one.help
        assert set(reasons(found).values()) == {f"no OpenAI API is there{contract.ABOVE}"}
        assert len(found.results) == len(registry.all_checks()) and not found.ok
        alone = verify(target.at(f"http://127.0.0.1:{port}", ""), only=["api/chat"])
        assert [one.name for one in alone.failed] == ["api/chat"]


@pytest.mark.parametrize(
    "status, text, wanted",
    [
        (404, '{"detail": "Not Found"}', "404"),
        (200, "<!DOCTYPE html><p>Sign in", "200 with HTML"),
        (405, "", "405"),
        (404, '{"error": {"message": "The model `a` does not exist."}}', ""),
        (404, '{"object": "error", "message": "The model `a` does not exist."}', ""),
        (502, "<html>Bad Gateway</html>", ""),
        (401, "<html>Sign in</html>", ""),
        (200, '{"data": []}', ""),
        (500, "Internal Server Error", ""),
    ],
)
def test_what_no_api_would_answer(status, text, wanted):
    assert http_exchange._foreign(http_client.Reply(status, text, 0.0)) == wanted


def test_tls_where_none_is_spoken_is_said_once():
    with files_server() as port:
        found = verify(target.at(f"https://127.0.0.1:{port}", "kimi"))
        (one,) = found.failed
        assert f"no TLS is spoken there; use http://127.0.0.1:{port}" in one.got, one
        assert "http://" in one.help and len(reasons(found)) == len(found.results) - 1


def test_a_name_that_nobody_knows():
    found = verify(target.at("http://no-such-host.invalid:8000", "kimi"))
    assert "the name 'no-such-host.invalid' is not known to this machine" in found.results[0].got


@pytest.mark.parametrize("end", ["/v1/chat/completions", "/v1/models/", "/health"])
def test_a_url_of_one_endpoint(end):
    with pytest.raises(ParameterError, match=r"name the service, http://192.0.2.11:8000/kimi, and"):
        target.at(f"http://192.0.2.11:8000/kimi{end}", "kimi")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "http://",
        "ftp://x",
        "http://a:b@h:1",
        "http://h:x",
        "http://h/?key=1",
        "http://[::1",
        "http://[x]",
        "http://h:0",
        "http://h:99999",
        "http://a b",
        "http://" + 3000 * "a",
    ],
)
def test_what_is_no_url(url):
    with pytest.raises(ParameterError, match="URL"):
        target.at(url, "kimi")


# Garbled text ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("!" * 10, "'!' over and over"),
        ("ok \ufffd\ufffd\ufffd then", "replacement characters"),
        ("a" * 50, "one or two"),
        ("the end of the line " * 12, "again and again"),
        ("So " + "and so it is, " * 80, "again and again"),
        ("".join(f"and so it is {at % 3}, " for at in range(300)) + "end of all", "variety"),
        ("I am потому 一个 assistant ที่ made по 由 Moonshot และ здесь by עם AI.", "letters of"),
        ("Я аssistаnt Kimi, создaнный Mооnshоt для пoмoщи.", "inside of words"),
        ("I am Kimi, a helpful assistant.", ""),
        ("Kimi (月之暗面, Moonshot AI) says привет: hello.", ""),
        ("The angle \u03b1 and the angle \u03b2 of 月 are 30 degrees in the picture of Kimi.", ""),
        ("こんにちは、私はKimiです。月之暗面のアシスタントです。", ""),
        ("", ""),
        ("Wow!!! Really?", ""),
        ("| a | b |\n|---|---|\n| 1 | 2 |", ""),
        ("我是月之暗面的人工智能助手。", ""),
        ("\n".join(f"{at}. item number {at * 7919}" for at in range(60)), ""),
    ],
)
def test_garbled_text(text, wanted):
    found = canary.fault(text)
    assert wanted in found and bool(wanted) == bool(found), found


# Kept results, progress, interruption ---------------------------------------------------


def test_a_resumed_run_asks_only_what_is_left(pair, tmp_path):
    whom, lines = target.of(pair), []
    first = verify(whom, folder=tmp_path, only=["api"])
    second = verify(whom, folder=tmp_path, only=["api", "errors"], resume=True, say=lines.append)
    assert second.ok and second.results[:2] == first.results[:2]
    assert sum("(known)" in line for line in lines) == len(first.results)
    assert len(lines) == len(second.results) and lines[0].startswith("REHEARSAL: 1 of ")
    kept = evidence.read(tmp_path, runner.FILE)
    assert len(kept) == len(second.results) and all(one["mark"] == MARK for one in kept)
    lines.clear()
    verify(
        target.at(pair.url, "other"), folder=tmp_path, only=["api"], resume=True, say=lines.append
    )
    assert not any("(known)" in line for line in lines), "another model's results"


@pytest.mark.parametrize(
    "damage", [{"name": []}, {"name": None}, {"got": 7}, {"status": "fail"}, {"status": {}}]
)
def test_a_kept_result_that_is_none_is_asked_again(pair, tmp_path, damage):
    whom = target.of(pair)
    verify(whom, folder=tmp_path, only=["api/models"])
    (line,) = evidence.read(tmp_path, runner.FILE)
    (tmp_path / runner.FILE).write_text(json.dumps(line | damage) + "\nnull\n")
    said = []
    assert verify(whom, folder=tmp_path, only=["api/models"], resume=True, say=said.append).ok
    assert len(said) == 1 and "(known)" not in said[0]


def test_what_failed_is_asked_again(tmp_path):
    with OddServer("500") as server:
        verify(odd(server), folder=tmp_path, only=["api"])
        server.manner = ""
        found = verify(odd(server), folder=tmp_path, only=["api"], resume=True)
        assert found.ok and set(reasons(found)) == {"api/prompt-tokens"}, found


def test_an_interrupted_run_keeps_what_it_has(tmp_path):
    """Ctrl-C in the middle of an answer that does not come."""
    with OddServer("hangs-later") as server:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kimi_nb",
                "verify",
                server.url,
                "--model",
                "kimi",
                "--run-dir",
                str(tmp_path),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        assert server.hung.wait(20)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130 and "Traceback" not in err, err
        assert time.monotonic() - begun < 5
        kept = [one["name"] for one in evidence.read(tmp_path, runner.FILE)]
        assert kept[0] == "api/models" and len(kept) >= 3, kept


# The command line -----------------------------------------------------------------------


def test_the_command_line(pair, capsys):
    assert main.main(["verify", pair.url, "--only", "api,streaming", "--json"]) == 0
    out = capsys.readouterr()
    told = json.loads(out.out)
    assert told["ok"] and told["model"] == pair.model and told["mark"] == MARK
    assert all(
        set(one) == {"name", "status", "sent", "got", "help", "cause"} for one in told["checks"]
    )
    assert "api/chat: pass" in out.err, "progress as text"
    assert main.main(["verify", pair.url, "--only", "api/models"]) == 0
    assert "REHEARSAL of" in capsys.readouterr().out


@pytest.mark.parametrize(
    "args, wanted",
    [
        (["nowhere"], "an address such as"),
        (["http://127.0.0.1:9", "--only", "apy"], "did you mean"),
        (["http://127.0.0.1:9", "--api-key-env", "sk-12-34"], "never the key itself"),
        (["http://127.0.0.1:9", "--api-key-env", "NOT_SET_HERE"], "is not set"),
        (["http://127.0.0.1:9", "--resume"], "--run-dir"),
        (["http://127.0.0.1:9", "--max-context", "3"], "128 tokens"),
        (["http://127.0.0.1:9", "--requests", "/no/such"], "cannot be read"),
    ],
)
def test_mistakes_in_what_is_asked(args, wanted, capsys):
    assert main.main(["verify", *args]) == 2
    assert wanted in capsys.readouterr().err


def test_a_url_where_nobody_is_fails_with_a_document(capsys):
    assert main.main(["verify", "http://127.0.0.1:9", "--json"]) == 1
    assert "takes no connections" in json.loads(capsys.readouterr().out)["checks"][0]["got"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://-x:1"])
def test_a_url_where_nobody_is_takes_one_screen(url, capsys):
    assert main.main(["verify", url]) == 1
    said = capsys.readouterr()
    assert len((said.out + said.err).splitlines()) < 25
    assert "gone, as said above" in said.out and "next" in said.out


def test_several_models_are_listed(capsys):
    with OddServer("two-models") as server:
        assert main.main(["verify", server.url]) == 2
        assert "serves kimi, other; name one" in capsys.readouterr().err


# The documents' curl --------------------------------------------------------------------


def test_the_documents_request(pair, tmp_path):
    found = curl.run(pair.plan, pair.url, pair.key)
    assert found.mark == MARK and str(found).startswith(f"{MARK}: client/chat.sh")
    assert found.status == contract.PASS and MARK in found.got, found
    whole = curl.script(pair.plan, "")
    assert found.script == whole.replace(pair.plan.url, pair.url) and pair.plan.url in whole
    assert curl.run(pair.plan, "http://127.0.0.1:9").status == contract.FAIL
    assert curl.run(pair.plan, "").status == contract.SKIP


def test_without_curl_it_says_so(pair, monkeypatch):
    monkeypatch.setattr(curl.shutil, "which", lambda name: None if name == "curl" else name)
    found = curl.run(pair.plan, pair.url)
    assert found.status == contract.SKIP and "no curl" in found.got


# The pieces of a stream -----------------------------------------------------------------


def test_a_stream_is_put_together():
    def event(**delta):
        return "data: " + json.dumps({"id": "x", "choices": [{"delta": delta}]}, ensure_ascii=False)

    text = "\r\n\r\n".join(
        [
            event(role="assistant", content=""),
            event(reasoning_content="hm "),
            event(content="a\u2028"),
            event(content="b"),
            event(
                tool_calls=[
                    {
                        "index": 0,
                        "id": "functions.f:0",
                        "type": "function",
                        "function": {"name": "f", "arguments": ""},
                    }
                ]
            ),
            event(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
            ": a comment",
            'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}',
            'data: {"choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}',
            "data: [DONE]",
            "",
        ]
    )
    found = answer_bodies.streamed(text)
    assert (found.content, found.thoughts) == ("a\u2028b", "hm ")
    assert found.calls == (received.ToolCall("functions.f:0", "f", "{}"),)
    assert found.finish_reason == "tool_calls" and found.usage["total_tokens"] == 5
    assert found.named == ("reasoning_content",)


# The vendor verifier's measures ---------------------------------------------------------


def requests_file(folder, *lines):
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def request(text, role="user", **more):
    return {
        "model": "official",
        "temperature": 0,
        "max_tokens": 200,
        "messages": [{"role": "_input", "content": "You help."}, {"role": role, "content": text}],
        "tools": [offered_tools.WEATHER],
        **more,
    }


def test_f1_is_the_verifiers():
    """TP 2, FP 1, FN 1, TN 1, by the formulas of its README."""
    pairs = [(True, True), (True, True), (True, False), (False, True), (False, False)]
    assert vendor_verifier.f1_of(pairs) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert vendor_verifier.f1_of([]) == (None, None, None)
    assert vendor_verifier.f1_of([(True, False)]) == (0.0, None, 0.0)


def test_measures_of_a_file_of_results(tmp_path):
    """Lines as the verifier's own results have them: its answers are what ours are compared to."""
    path = requests_file(
        tmp_path,
        {"request": request("Use get_weather"), "finish_reason": "tool_calls"},
        {"request": request("Hello there"), "finish_reason": "tool_calls"},
        {"request": request("Use get_weather", stream=True), "finish_reason": "stop"},
        {"request": request("Good day"), "finish_reason": "stop"},
    )
    with OddServer("") as server:
        found = vendor_verifier.score(odd(server), path, tmp_path / "kept")
        assert (found.success_count, found.failure_count) == (4, 0)
        assert (found.finish_tool_calls, found.finish_stop, found.finish_others) == (2, 2, 0)
        assert found.tool_call_f1 == found.tool_call_precision == 0.5
        assert found.schema_accuracy == 1.0 and "73 %" in str(found)
        kept = evidence.read(tmp_path / "kept", vendor_verifier.FILE)
        assert [one["data_index"] for one in kept] == [1, 2, 3, 4]
        assert kept[0]["request"]["messages"][0]["role"] == "system"
        assert kept[0]["request"]["model"] == "kimi" and kept[0]["status"] == "success"
        server.manner = "wrong-arguments"
        asked = server.count
        again = vendor_verifier.score(odd(server), path, tmp_path / "kept", resume=True)
        assert again == found and server.count == asked, "all of it was there"
        broken = vendor_verifier.score(odd(server), path)
        assert broken.schema_accuracy == 0.0 and broken.schema_validation_error_count == 2


def test_requests_that_fail_are_counted(tmp_path):
    path = requests_file(tmp_path, *[request("Use get_weather")] * 7)
    with OddServer("500") as server:
        found = vendor_verifier.score(odd(server), path)
    assert (found.success_count, found.failure_count) == (0, 7)
    assert found.schema_accuracy is None and found.tool_call_f1 is None
    assert "500" in str(found) and "nothing to compute" in str(found)
    gone = vendor_verifier.score(target.at("http://127.0.0.1:9", "kimi"), path)
    assert gone.failure_count == 7 and "line 7: not sent" in gone.failures


def test_the_measures_of_a_rehearsal_are_marked(pair, tmp_path, capsys):
    path = requests_file(tmp_path, request("Use get_weather for Paris"))
    assert (
        main.main(["verify", pair.url, "--only", "api/models", "--requests", str(path), "--json"])
        == 0
    )
    told = json.loads(capsys.readouterr().out)["vendor"]
    assert told["mark"] == MARK and told["schema_accuracy"] == 1.0


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("", "has no request"),
        ("{", ":1: no JSON"),
        ("[1]\n", ":1: a request with messages"),
        ('{"messages": []}\n{"x": 1}', ":2: a request with messages"),
    ],
)
def test_a_file_that_has_no_requests(text, wanted, tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text(text)
    with pytest.raises(ParameterError, match=re.escape(wanted)):
        vendor_verifier.read(path)


@pytest.mark.parametrize(
    "schema, value, wanted",
    [
        ({"type": "object", "required": ["a"]}, {}, "required"),
        ({"type": "no-such"}, {}, "none"),
        ({"$ref": "#/nowhere"}, {}, "cannot be used"),
        ({"type": "object"}, {}, ""),
    ],
)
def test_schemas(schema, value, wanted):
    assert schemas.fault({}, 1.5).startswith("the schema cannot be used")
    found = schemas.fault(value, schema)
    assert wanted in found and bool(wanted) == bool(found)


# As notebooks call it -------------------------------------------------------------------


def test_with_action_plan_nothing_is_asked(tmp_path):
    run = start(hw="a3", model="k2.5", action="plan", run_dir=str(tmp_path))
    service_ = run.serve(run.plan(run.choose("largest")))
    found = run.verify(service_)
    assert not found.ok and found.counts == {
        "pass": 0,
        "fail": 0,
        "not applicable": len(registry.all_checks()),
    }
    assert "action plan" in found.results[0].got and run.curl(service_).status == contract.SKIP


def test_a_service_that_was_there_already(pair, tmp_path, capsys):
    run = start(hw="a3", model="k2.6", action="plan", run_dir=str(tmp_path))
    plan = run.plan(
        run.choose("pd", scenario="throughput", features="reasoning-parser,tool-parser")
    )
    service_ = run.serve(plan, url=pair.url)
    assert not service_.endpoints and plan.url in str(service_), "the example's addresses"
    found = run.verify(service_, run.checks("api,tool-calls/auto"))
    assert found.ok and found.counts[contract.PASS] == 8, found
    assert "9 of 9  api/answered-model: pass" in capsys.readouterr().out
    assert run.curl(service_).ok
    line = next(one for one in evidence.read(tmp_path) if one["stage"] == "verify")
    assert line["ok"] and line["pass"] == 8 and line["mark"] == MARK
    assert len(evidence.read(tmp_path / plan.name, runner.FILE)) == 9


def test_each_rank_behind_a_url_is_asked_where_the_plan_knows_it(pair, plain, tmp_path):
    run = start(hw="a3", model="k2.6", action="plan", run_dir=str(tmp_path))
    service_ = run.serve(pair.serving, url=f"{pair.url}/v1")
    assert "4, each is asked by itself" in str(service_)
    found = run.verify(service_, run.checks("engines"))
    assert found.ok and "4 of 4 places" in found.results[0].got, found
    # Another front door, such as that of a tunnel, and engines that are where the plan has them.
    with OddServer("") as server:
        other = run.serve(pair.serving, url=server.url)
    assert "4, each is asked by itself" in str(other) and len(other.endpoints) == 4
    # One API for all ranks: the URL may be another one, such as that of a tunnel.
    one_port = run.serve(build.plan("k2.5", "a3", "single"), url=plain.url)
    found = run.verify(one_port, run.checks("engines"))
    assert found.ok and "4 of 4 places" in found.results[0].got, found


def test_a_garbled_rank_behind_a_url_is_found(tmp_path):
    plan = build.plan("k2.5", "a3", "single", chosen=PARSERS, pairs=["served-model-name=kimi"])
    run = start(hw="a3", model="k2.5", action="plan", run_dir=str(tmp_path))
    with OddServer("garbled@3") as server:
        (bad,) = run.verify(run.serve(plan, url=server.url), run.checks("canary/words")).failed
    assert bad.got.startswith("mixed0-rank3: ")


def test_the_mark_of_random_weights_is_told_before_anything_is_measured(tmp_path):
    run = start(hw="cpu", model="k2.5", action="plan", run_dir=str(tmp_path))
    with OddServer("") as server:
        text = str(run.serve(run.plan(run.choose("single")), url=server.url))
    assert "RANDOM WEIGHTS" in text and "none" not in text


def test_what_the_lack_of_a_parser_leaves_out_is_counted(plain):
    found = verify(target.of(plain), only=["api/chat", "tool-calls"])
    (why, names), *rest = found.left_out.items()
    assert not rest and len(names) == 12 and "--tool-call-parser (feature tool-parser)" in why
    assert "12 not applicable" in str(found) and found.as_dict()["left_out"] == {why: list(names)}


# As much of OpenAI's library as the client of the bundle uses; it is no dependency of ours.
OPENAI = """
import json, types, urllib.request

class OpenAI:
    def __init__(self, *, api_key, base_url, timeout):
        assert api_key == "EMPTY" and timeout == 3600
        self.url = base_url + "/chat/completions"
        self.chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=self.create))

    def create(self, **body):
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked) as answer:
            told = json.load(answer)
        message = types.SimpleNamespace(**told["choices"][0]["message"])
        return types.SimpleNamespace(choices=[types.SimpleNamespace(message=message)])
"""


def test_the_client_of_the_bundle_asks_about_a_picture(plain, tmp_path):
    for name, text in {
        "picture.py": scripts.files(plain.serving)[scripts.PICTURE],
        "openai.py": OPENAI,
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "red.png").write_bytes(base64.b64decode(content.picture().partition(",")[2]))
    done = subprocess.run(
        [sys.executable, "picture.py", "red.png", "Which colour is this?"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Response costs: " in done.stdout and f"Generated text: {MARK}" in done.stdout
