"""Verification against a service with a fault: each is named by the check whose business it is."""

from __future__ import annotations

import json

import pytest
from faulty_service import FAULTS, GOOD, MODEL, RANKS, Fault, FaultyService, awkward

from kimi_nb.core.errors import ParameterError
from kimi_nb.prove.verify import (
    contract,
    offered_tools,
    received,
    registry,
    target,
    vendor_verifier,
    verify,
)
from kimi_nb.service import probe


@pytest.fixture(scope="module")
def service():
    with FaultyService() as found:
        yield found


def asked(service, **more):
    return target.at(service.url, MODEL, seconds=5.0, pauses=(0.0,), **more)


def ranks(service):
    return tuple(
        probe.Endpoint("mixed0-node0", "mixed", "a3-0", rank, service.url, rank, True, True)
        for rank in range(RANKS)
    )


def test_without_a_fault_nothing_fails(service):
    """What each fault is measured against: the front door alone, and with its ranks."""
    service.fault = GOOD
    for endpoints in ((), ranks(service)):
        found = verify(asked(service, endpoints=endpoints))
        assert found.ok and not found.failed, found
        skipped = {one.name for one in found.results if one.status == contract.SKIP}
        assert skipped <= {
            "engines/completion",
            "errors/wrong-key",
            "disaggregation/moves",
            "disaggregation/equal",
        }


def test_there_are_faults_for_nearly_every_check():
    assert len(FAULTS) >= 80
    named = {name for fault in FAULTS.values() for name in fault.checks}
    assert named <= set(registry.all_checks())
    # These need a key, or prefill and decode apart; rehearsals have them.
    rest = {"errors/wrong-key", "disaggregation/moves", "disaggregation/equal"}
    assert set(registry.all_checks()) - named == rest


def test_special_tokens_of_random_weights_are_no_fault(service):
    service.fault = FAULTS["im-end-in-thoughts"]
    found = verify(asked(service, sense=False), only=["api/chat", "content/characters"])
    assert found.ok and [one.status for one in found.results] == [contract.PASS, contract.SKIP]


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_by_its_check(name, service):
    fault = service.fault = FAULTS[name]
    only = [*fault.checks]
    if fault.checks[0].startswith("tool-calls"):
        only = ["tool-calls"]  # the checks of a family may build on one another
    elif fault.checks[0] == "content/characters":
        only += ["api/chat", "content/json-schema"]  # whose answers are searched
    elif fault.rank is not None or fault.checks == ("api/chat",):
        only += ["engines/completion"]
    endpoints = ranks(service) if fault.rank is not None else ()
    found = verify(asked(service, endpoints=endpoints), only=only)
    told = {one.name: one.got for one in found.failed}
    assert not found.ok and set(fault.checks) & set(told), (told, str(found))
    assert all(one.help for one in found.failed)
    if fault.rank is not None:
        assert f"mixed0-rank{fault.rank}: " in told[fault.checks[0]]
        assert not any(f"rank{rank}: " in str(told) for rank in range(RANKS) if rank != fault.rank)


# The figures of the K2 Vendor Verifier -------------------------------------------------

# Of each fault how the verifier counts an answer that has it: finish_reason, and whether the calls
# are valid. Measured: tool_calls_eval.py at 0bc5061 against this service.
AWKWARD = {
    "": ("tool_calls", True),
    "tool-calls-without-calls": ("tool_calls", False),
    "arguments-as-object": ("tool_calls", True),
    "arguments-are-null": ("tool_calls", False),
    "arguments-of-no-enum": ("tool_calls", False),
    "arguments-cut-off": ("tool_calls", False),
    "arguments-encoded-twice": ("tool_calls", False),
    "stop-beside-calls": ("stop", False),
    "finish-reason-eos": ("eos", False),
    "usage-as-text": ("tool_calls", True),
    "id-of-a-call-is-missing": ("tool_calls", True),
}


def requests_of(names, folder):
    path = folder / "samples.jsonl"
    lines = [
        {
            "messages": [{"role": "user", "content": f"Use get_weather {name}"}],
            "tools": [offered_tools.WEATHER],
            "max_tokens": 200,
        }
        for name in names
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


@pytest.mark.parametrize("name", AWKWARD)
def test_an_answer_counts_as_it_does_with_the_vendor(name, service, tmp_path):
    service.fault = Fault((), awkward)
    end, valid = AWKWARD[name]
    found = vendor_verifier.score(asked(service), requests_of([name], tmp_path))
    assert found.success_count == 1
    assert found.finish_tool_calls == (end == "tool_calls"), found
    assert found.finish_stop == (end == "stop") and found.finish_others == (end == "eos")
    assert found.successful_tool_call_count == valid, found


def test_an_awkward_endpoint_has_the_vendors_accuracy(service, tmp_path):
    """1 of 7, where finish_reason tool_calls without calls once counted as valid: 2 of 7."""
    names = ["", "tool-calls-without-calls", *["arguments-of-no-enum"] * 5]
    service.fault = Fault((), awkward)
    found = vendor_verifier.score(asked(service), requests_of(names, tmp_path))
    assert found.schema_accuracy == pytest.approx(1 / 7)
    assert found.schema_validation_error_count == 6


@pytest.mark.parametrize("name", ["no-done", "no-end-in-a-stream", "stream-of-nothing"])
def test_a_stream_that_ends_early_is_a_success_with_the_vendor(name, service, tmp_path):
    service.fault = FAULTS[name]
    path = tmp_path / "samples.jsonl"
    messages = [{"role": "user", "content": "Good day"}]
    path.write_text(json.dumps({"messages": messages, "stream": True, "max_tokens": 20}))
    found = vendor_verifier.score(asked(service), path)
    assert (found.success_count, found.finish_stop) == (1, 1), found


def test_a_request_too_deep_to_read_is_named(tmp_path):
    (tmp_path / "requests.jsonl").write_text('{"a":' * 9000)
    with pytest.raises(ParameterError, match=r"requests\.jsonl:1: no JSON"):
        vendor_verifier.read(tmp_path / "requests.jsonl")


@pytest.mark.parametrize("tools", [None, [], 1.5, [{"function": {"name": "g"}}], ["f"]])
def test_a_call_of_a_function_without_a_schema_does_not_fit(tools):
    call = received.ToolCall("functions.f:0", "f", "{}")
    assert vendor_verifier.fits(call, tools) is False
