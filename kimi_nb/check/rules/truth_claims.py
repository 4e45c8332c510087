"""Rules that compare the statements of a document with its commands and the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kimi_nb import catalog
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files
from kimi_nb.params import load, schema
from kimi_nb.plan import memory


def _claims(d: Deployment, kind: str) -> Iterator[tuple[Mapping[str, Any], Spot]]:
    for claim in d.claims:
        if claim["claim"] == kind:
            yield claim, Spot(f"{claim['document']} {claim['section']}")


@rule(
    "truth/claimed-version",
    ERROR,
    "A version that a document names was released.",
    "Take the nearest released one.",
    "the tags of the repositories",
    needs=("claims",),
)
def claimed_version(d: Deployment) -> Iterator[Problem]:
    """An image with that tag cannot be pulled, and figures 'from that version' were made with
    another."""
    for claim, spot in _claims(d, "version"):
        version = str(claim["version"]).removeprefix("v")
        if version not in catalog.versions(d.engine.package) and d.ascend:
            yield Problem(spot, f"{claim['version']} was never released as {d.engine.package}")


@rule(
    "truth/claimed-flag",
    ERROR,
    "A flag that a document recommends exists.",
    "Leave it out.",
    "the parsers of all listed versions",
    needs=("claims",),
)
def claimed_flag(d: Deployment) -> Iterator[Problem]:
    """Who follows the text adds a flag that the parser refuses."""
    for claim, spot in _claims(d, "flag"):
        if catalog.listed(claim["flag"]) is None:
            instead = data_files.facts("catalog/versions")["instead"].get(claim["flag"], "")
            yield Problem(
                spot,
                f"--{claim['flag']} is in no vLLM version",
                f"Use {instead}." if instead else "",
            )


@rule(
    "truth/claimed-shape",
    WARNING,
    "A document's table and its command have one shape.",
    "Choose one of them; a command carries all its settings.",
    "the two places of the document",
    needs=("claims",),
)
def claimed_shape(d: Deployment) -> Iterator[Problem]:
    """The figures of the table were not made with the command."""
    for claim, spot in _claims(d, "shape"):
        for group in d.groups():
            first = group[0]
            if first.role == claim["role"] and (first.dp, first.tp) != (claim["dp"], claim["tp"]):
                yield Problem(
                    spot,
                    f"the table says dp{claim['dp']} tp{claim['tp']}, the command "
                    f"has dp{first.dp} tp{first.tp}",
                )


@rule(
    "truth/claimed-nodes",
    NOTE,
    "xPyD counts the same thing everywhere.",
    "Say how many groups of each role there are, and on how many nodes.",
    "the launch commands of the document",
    needs=("claims",),
)
def claimed_nodes(d: Deployment) -> Iterator[Problem]:
    """Who counts nodes builds one decode group too many, or one too few."""
    said: dict[str, Spot] = {}
    for claim, spot in _claims(d, "nodes"):
        said.setdefault(claim["nodes"], spot)
    groups = [
        sum(1 for group in d.groups() if group[0].role == role) for role in ("prefill", "decode")
    ]
    nodes = [len({server.node for server in d.at_role(role)}) for role in ("prefill", "decode")]
    if not all(groups):
        return
    by_groups, by_nodes = (f"{first}P{second}D" for first, second in (groups, nodes))
    for text, spot in said.items():
        if len(said) > 1 or text not in (by_groups, by_nodes):
            other = next((name for name in said if name != text), "")
            yield Problem(
                spot,
                f"{text}{f', elsewhere {other}' if other else ''}: the commands "
                f"start {groups[0]} prefill and {groups[1]} decode groups on {nodes[0]} "
                f"and {nodes[1]} nodes",
            )


@rule(
    "truth/claimed-context",
    NOTE,
    "A context length is said once, or for what it is.",
    "Choose the length by the longest request, input and output together.",
    "the places of the document",
    needs=("claims",),
)
def claimed_context(d: Deployment) -> Iterator[Problem]:
    """16K in a table, 32768 in a command and 35000 for accuracy are three jobs."""
    for claim, spot in _claims(d, "context"):
        for length in sorted(
            {
                length
                for server in d.servers
                if (length := server.number("max-model-len")) is not None
            }
        ):
            if length != claim["tokens"] and (not claim.get("least") or length < claim["tokens"]):
                yield Problem(
                    spot,
                    f"{claim['says']} {claim['tokens']}, the command has --max-model-len {length}",
                )


@rule(
    "truth/claimed-weights",
    ERROR,
    "A size of weights follows from parameters and precision.",
    "Reckon with the published size.",
    "arithmetic: parameters x bytes (kimi_nb/plan/memory)",
    needs=("claims", "model"),
)
def claimed_weights(d: Deployment) -> Iterator[Problem]:
    """A node is bought or a quota asked for by this figure."""
    assert d.model is not None
    for claim, spot in _claims(d, "weights"):
        size = memory.checkpoint_bytes(d.model.architecture, claim["precision"]) / 1e9
        if not 0.9 < claim["gb"] / size < 1.1:
            published = [item for item in d.model.weights.values() if item.size_is == "published"]
            yield Problem(
                spot,
                f"{claim['precision']} weights of {claim['gb']} GB; "
                f"{d.model.parameters_billion} B parameters in {claim['precision']} are "
                f"{size:.0f} GB"
                + (
                    f" (published: {published[0].size_gb} GB in {published[0].precision})"
                    if published
                    else ""
                ),
            )


@rule(
    "truth/claimed-precision",
    WARNING,
    "A document's precision is that of the checkpoint.",
    "Reckon with the checkpoint's own precision.",
    "config.json of the checkpoint",
    needs=("claims", "model"),
)
def claimed_precision(d: Deployment) -> Iterator[Problem]:
    """Memory that was reckoned for one precision does not fit the other."""
    assert d.model is not None
    for claim, spot in _claims(d, "precision"):
        there = [d.weights] if d.weights else d.model.weights.values()
        real = sorted({item.precision for item in there})
        if claim["precision"] not in real:
            yield Problem(
                spot,
                f"says {claim['precision']}, the checkpoint is {', '.join(real)}"
                + (f" (the document edits its {claim['edits']})" if claim.get("edits") else ""),
            )


@rule(
    "truth/claimed-default",
    WARNING,
    "A default that a document names is the engine's.",
    "Give the value explicitly, if it matters.",
    "kimi_nb/data/catalog/versions.yaml: defaults",
    needs=("claims", "hardware"),
)
def claimed_default(d: Deployment) -> Iterator[Problem]:
    """Who relies on the default runs with another value."""
    assert d.hardware is not None
    for claim, spot in _claims(d, "default"):
        for entry in data_files.facts("catalog/versions")["defaults"]:
            if (
                entry["flag"] == claim["flag"]
                and d.hardware.devices.memory_gb >= entry["least_memory_gb"]
                and d.hardware.vendor in entry["vendors"]
                and entry["value"] != claim["value"]
            ):
                yield Problem(
                    spot,
                    f"--{claim['flag']} is said to default to {claim['value']}; "
                    f"on {d.hardware.title} it is {entry['value']}",
                )


@rule(
    "truth/claimed-draft",
    WARNING,
    "A document gives a draft one name.",
    "Take the draft that belongs to the model.",
    "the places of the document",
    needs=("claims", "model"),
)
def claimed_draft(d: Deployment) -> Iterator[Problem]:
    """The wrong draft loads, and no token is accepted."""
    assert d.model is not None
    for claim, spot in _claims(d, "draft"):
        used = [
            str(server.table("speculative-config").get("model"))
            for server, _ in d.profiles()
            if server.draft
        ]
        loaded = {name.rstrip("/").rpartition("/")[2].lower() for name in used}
        drafts = list(d.model.drafts.values())
        methods = {draft.method for draft in drafts if _called(draft) & loaded}
        # A model may have several drafts of a method; the one that the command loads is meant.
        names = [
            _called(one) for one in drafts if one.method not in methods or _called(one) & loaded
        ]
        if claim["draft"].rpartition("/")[2].lower() not in set().union(*names):
            yield Problem(
                spot,
                f"the draft is called {claim['draft']} here, and "
                f"{', '.join(dict.fromkeys(used)) or 'otherwise'} in the command",
            )


def _called(draft: schema.Draft) -> set[str]:
    """Return the names of a draft: the end of its hub id and its folder."""
    return {draft.id.rpartition("/")[2].lower(), draft.directory.lower()}


# Where the API has what a sample answer shows.
_ANSWER = {
    "finish_reason": "choices[0].finish_reason",
    "content": "choices[0].message.content",
    "usage": "usage",
    "reasoning": "choices[0].message.reasoning",
}


@rule(
    "truth/claimed-answer",
    WARNING,
    "A sample answer has the shape of the API.",
    "Read the field where the API has it.",
    "OpenAI chat completions API",
    needs=("claims",),
)
def claimed_answer(d: Deployment) -> Iterator[Problem]:
    """A script written after the sample reads nothing."""
    for claim, spot in _claims(d, "answer"):
        real = _ANSWER.get(claim["path"].rpartition(".")[2])
        if real is not None and real != claim["path"]:
            yield Problem(spot, f"the sample answer has {claim['path']}, the API {real}")
        front = [server for server in d.servers if server.role != "prefill"]
        if (
            claim["path"].endswith(".reasoning")
            and front
            and not any(server.flags.get("reasoning-parser") for server in front)
        ):
            yield Problem(
                spot, "the sample answer shows reasoning, the command has no --reasoning-parser"
            )


# Request fields that need a flag of the server.
_REQUEST = {"thinking_token_budget": "reasoning-config"}


@rule(
    "truth/claimed-request",
    WARNING,
    "A request field works with the server's flags.",
    'Add the flag, or use chat_template_kwargs {"thinking": false} to turn thinking off.',
    "vLLM: thinking_token_budget needs --reasoning-config",
    needs=("claims",),
)
def claimed_request(d: Deployment) -> Iterator[Problem]:
    """The field is accepted and nothing changes, or the request is refused."""
    for claim, spot in _claims(d, "request"):
        flag = _REQUEST.get(claim["field"])
        if flag and not any(server.flags.get(flag) for server in d.servers):
            yield Problem(spot, f"the request field {claim['field']} needs --{flag} on the server")


@rule(
    "truth/claimed-file",
    WARNING,
    "A tuned configuration has the name that is looked up.",
    "Tune with the server's shape on its device, and keep the name that the tuner writes.",
    "vLLM fused MoE: E=<experts of a device>, device_name=<normalised>",
    needs=("claims", "model"),
)
def claimed_file(d: Deployment) -> Iterator[Problem]:
    """A file under another name is not found: 'Using default MoE config'."""
    assert d.model is not None
    for claim, spot in _claims(d, "tuned-file"):
        parallel = [server for server in d.servers if server.flags.get("enable-expert-parallel")]
        experts = d.model.architecture["experts"]
        if parallel and claim["experts"] == experts:
            ranks = (parallel[0].tp or 1) * (parallel[0].dp or 1)
            yield Problem(
                spot,
                f"the file says E={claim['experts']}; under expert parallelism a "
                f"device of {ranks} holds {experts // ranks}",
            )
        # NVIDIA_H20 is the beginning of NVIDIA_H200 too.
        real = max(
            (name for name in _lookup_names() if claim["device"].startswith(name)),
            key=len,
            default="",
        )
        if real and real != claim["device"]:
            yield Problem(
                spot, f"the file says device_name={claim['device']}; it is looked up as {real}"
            )


def _lookup_names() -> set[str]:
    """Return the names of devices in the names of vLLM's tuned files."""
    chips = map(load.hardware, load.names("hardware"))
    return {chip.devices.model.replace(" ", "_") for chip in chips if chip.engine == "vllm"} - {""}


@rule(
    "truth/claimed-side-channel",
    WARNING,
    "A document adds the rank to a port once.",
    "Export the same base on every rank.",
    "vLLM NixlConnector: the data parallel index is added to the port",
    needs=("claims",),
)
def claimed_side_channel(d: Deployment) -> Iterator[Problem]:
    """Counted up by hand the port is offset twice."""
    for claim, spot in _claims(d, "side-channel"):
        if "rank" in claim["pattern"]:
            yield Problem(
                spot,
                f"the side-channel port is said to be {claim['pattern']}: vLLM "
                "already adds the data parallel rank to it",
            )


@rule(
    "truth/claimed-log",
    NOTE,
    "A sample log is one of the version that the document names.",
    "Look for the words, not for the whole line.",
    "vLLM: lines of the API server begin with (APIServer pid=...) since 0.11",
    needs=("claims",),
)
def claimed_log(d: Deployment) -> Iterator[Problem]:
    """Who waits for exactly this line waits for ever; log and figures are not of one run."""
    for claim, spot in _claims(d, "log"):
        if not claim["line"].startswith("(APIServer") and not catalog.earlier(
            d.engine.vllm, "0.11.0"
        ):
            yield Problem(
                spot,
                f"the sample log '{claim['line']}' is not of vLLM {d.engine.vllm}, "
                "whose lines begin with (APIServer pid=...)",
            )
