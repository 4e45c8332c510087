"""Rules on engine settings that the configuration check refuses, or that do not fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kimi_nb import catalog
from kimi_nb.catalog import arguments, fill_ins
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.capacity import draft_of
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView
from kimi_nb.plan import context_parallel as context_parallels
from kimi_nb.plan import step_tokens


@rule(
    "engine/batched-tokens",
    ERROR,
    "A step holds at least one token for each sequence.",
    "Raise --max-num-batched-tokens to --max-num-seqs or more.",
    "vLLM SchedulerConfig: max_num_batched_tokens must be >= max_num_seqs",
)
def step_holds_sequences(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses it, after the arguments were parsed on every node."""
    for server, _ in d.profiles():
        tokens, seqs = server.number("max-num-batched-tokens"), server.number("max-num-seqs")
        if tokens is not None and seqs is not None and tokens < seqs:
            yield Problem(
                server.of("max-num-batched-tokens"),
                f"--max-num-batched-tokens {tokens} with --max-num-seqs {seqs}",
            )


@rule(
    "engine/whole-prompt",
    ERROR,
    "Without chunked prefill a step holds the longest prompt.",
    "Raise --max-num-batched-tokens to --max-model-len, or leave chunked prefill on.",
    "vLLM SchedulerConfig: max_num_batched_tokens is smaller than max_model_len",
)
def step_holds_prompt(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses a step that is smaller than a prompt it cannot cut."""
    for server, _ in d.profiles():
        tokens, length = server.number("max-num-batched-tokens"), server.number("max-model-len")
        if (
            server.flags.get("enable-chunked-prefill") is False
            and tokens is not None
            and length is not None
            and tokens < length
        ):
            yield Problem(
                server.of("max-num-batched-tokens"),
                f"--max-num-batched-tokens {tokens} with --max-model-len {length} and "
                "chunked prefill off",
                "",
                "" if d.engine_known else WARNING,
            )


@rule(
    "engine/draft-slots",
    ERROR,
    "A step holds more than the slots of its drafts.",
    "Raise --max-num-batched-tokens, or lower num_speculative_tokens or --max-num-seqs.",
    "vLLM VllmConfig: max_num_scheduled_tokens must be more than 0",
    needs=("version",),
)
def step_leaves_tokens(d: Deployment) -> Iterator[Problem]:
    """A draft that proposes all its tokens at once (DFlash) keeps slots of each step for them; the
    configuration check refuses a step that holds nothing else."""
    for server, _ in d.profiles():
        tokens, seqs = server.number("max-num-batched-tokens"), server.number("max-num-seqs")
        if tokens is None or seqs is None:
            continue
        taken, full = _draft_tokens(d, server, int(seqs))
        if taken and tokens <= taken:
            yield Problem(
                server.of("max-num-batched-tokens"),
                f"--max-num-batched-tokens {tokens} with {server.draft} draft tokens for each of "
                f"{seqs} sequences: the drafts take {taken}, and nothing is left to schedule",
                f"Raise --max-num-batched-tokens to {full}, or lower num_speculative_tokens or "
                "--max-num-seqs.",
            )


@rule(
    "engine/draft-step",
    WARNING,
    "A step holds a full batch with its drafts.",
    "Raise --max-num-batched-tokens to max-num-seqs x (draft + 1) and the draft's own slots.",
    "arithmetic: each sequence takes draft + 1 tokens of a decode step",
)
def step_holds_drafts(d: Deployment) -> Iterator[Problem]:
    """A smaller step keeps sequences waiting although they are admitted: decode never reaches
    max-num-seqs."""
    for server, _ in d.profiles():
        tokens, seqs = server.number("max-num-batched-tokens"), server.number("max-num-seqs")
        if tokens is None or seqs is None or server.draft < 1 or server.role == "prefill":
            continue
        taken, full = _draft_tokens(d, server, int(seqs))
        if max(int(seqs), taken + 1) <= tokens < full:
            working = f"{seqs} x ({server.draft} + 1)"
            if taken:
                working += f" + {taken} slots that the drafts take"
            yield Problem(
                server.of("max-num-batched-tokens"),
                f"--max-num-batched-tokens {tokens} holds "
                f"{(int(tokens) - taken) // (server.draft + 1)} "
                f"of {seqs} sequences with {server.draft} draft tokens each ({working} = {full})",
            )


def _draft_tokens(d: Deployment, server: EngineView, seqs: int) -> tuple[int, int]:
    """Return the tokens of a step that the drafts take, and those of a step that holds a batch."""
    method = server.table("speculative-config").get("method")
    return (
        step_tokens.slots(d.engine, method, server.draft, seqs),
        step_tokens.needed(d.engine, method, server.draft, seqs),
    )


@rule(
    "engine/capture-sizes",
    WARNING,
    "Graph sizes fit the batches that occur.",
    "List n x (draft + 1) for the batches you expect, up to max-num-seqs x (draft + 1).",
    "the documents' own rule: n x (draft + 1) up to max-num-seqs",
)
def capture_sizes(d: Deployment) -> Iterator[Problem]:
    """A batch past the largest size runs without a graph, which is what a full server does; a
    size that no batch has costs memory and start time for nothing."""
    for server, _ in d.profiles():
        own = server.flags.get("cudagraph-capture-sizes")
        sizes = server.table("compilation-config").get("cudagraph_capture_sizes") or own
        seqs = server.number("max-num-seqs")
        if (
            not isinstance(sizes, list)
            or not sizes
            or seqs is None
            or not all(isinstance(size, int) for size in sizes)
            or server.table("compilation-config").get("cudagraph_mode") == "NONE"
        ):
            continue
        step = server.draft + 1
        spot = server.of("cudagraph-capture-sizes" if sizes is own else "compilation-config")
        full = int(seqs) * step
        tokens = server.number("max-num-batched-tokens")
        rule_of = f"max-num-seqs {seqs} x ({server.draft} + 1) = {full}"
        if tokens is not None and seqs <= tokens < full:
            full = int(tokens)
            rule_of += f", of which a step holds {full}"
        if max(sizes) < full:
            yield Problem(
                spot,
                f"capture sizes end at {max(sizes)}, a full batch has {full} "
                f"tokens ({rule_of}): it runs without a graph",
            )
        elif min(sizes) > full:
            yield Problem(
                spot,
                f"the smallest capture size is {min(sizes)}, the largest batch has "
                f"{full} tokens ({rule_of})",
            )
        odd = [size for size in sizes if size % step]
        if server.draft and odd and len(odd) == len(sizes):
            yield Problem(spot, f"no capture size is a multiple of draft + 1 = {step}")


@rule(
    "engine/capture-twice",
    ERROR,
    "Graph sizes stand in one place.",
    "Keep one of them.",
    "vLLM create_engine_config: mutually exclusive",
)
def capture_sizes_once(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses sizes in a flag of their own and in --compilation-config."""
    for server, _ in d.profiles():
        for key in ("cudagraph_capture_sizes", "max_cudagraph_capture_size"):
            flag = key.replace("_", "-")
            inside = server.table("compilation-config").get(key)
            if flag in server.flags and inside is not None:
                yield Problem(server.of(flag), f"--{flag} and --compilation-config {key}")


@rule(
    "engine/draft-method",
    ERROR,
    "The draft method is known for the model at this version.",
    "Take a newer engine (--engine-version), or no draft.",
    "vLLM SpeculativeConfig: eagle3 is taken for listed model types",
    needs=("model", "version"),
)
def draft_known(d: Deployment) -> Iterator[Problem]:
    """vLLM 0.17.0 takes eagle3 for listed model types only, and kimi_k2 is not among them: the
    configuration check stops the start."""
    assert d.model is not None
    for server, _ in d.profiles():
        method = server.table("speculative-config").get("method")
        unread = server.flags.get("speculative-config")
        if isinstance(unread, arguments.Unread):  # broken JSON still says which method is meant
            named = re.search(r'"method"\s*:\s*"(\w+)"', unread.text)
            method = named[1] if named else None
        known = draft_of(d, server)
        drafts = [known] if known else list(d.model.drafts.values())
        drafts = [draft for draft in drafts if draft.method == method]
        if method is None or not drafts:
            continue
        if not any(catalog.satisfies(d.engine, draft.vllm) for draft in drafts):
            needs = " or ".join(sorted({draft.vllm for draft in drafts}))
            yield Problem(
                server.of("speculative-config"),
                f"{method} for {d.model.title} needs vLLM {needs}; {d.engine} is vLLM "
                f"{d.engine.vllm}",
            )


@rule(
    "engine/prefill-draft",
    WARNING,
    "Prefill drafts one token.",
    'Set "num_speculative_tokens": 1 on prefill.',
    "prefill-decode guide of vllm-ascend",
    needs=("ascend",),
)
def prefill_draft(d: Deployment) -> Iterator[Problem]:
    """Prefill emits one token; more drafts cost time and memory there and are thrown away."""
    for server, _ in d.profiles():
        if server.role == "prefill" and server.draft > 1:
            yield Problem(
                server.of("speculative-config"),
                f"num_speculative_tokens is {server.draft} on prefill",
            )


@rule(
    "engine/tool-parser",
    ERROR,
    "--enable-auto-tool-choice has its parser.",
    "Add --tool-call-parser (kimi_k2 for Kimi-K2, kimi_k3 for Kimi-K3).",
    "vLLM: --enable-auto-tool-choice requires --tool-call-parser",
)
def tool_parser(d: Deployment) -> Iterator[Problem]:
    """The server refuses to start with the one and without the other; with a parser alone the
    model is never allowed to call a tool."""
    for server, _ in d.profiles():
        parser = server.flags.get("tool-call-parser")
        automatic = server.flags.get("enable-auto-tool-choice")
        if automatic and not parser:
            yield Problem(
                server.of("enable-auto-tool-choice"),
                "--enable-auto-tool-choice without --tool-call-parser",
            )
        elif parser and not automatic:
            yield Problem(
                server.of("tool-call-parser"),
                "--tool-call-parser without "
                "--enable-auto-tool-choice: the model cannot choose a tool",
                "Add --enable-auto-tool-choice.",
                WARNING,
            )


@rule(
    "engine/eplb",
    ERROR,
    "Expert balancing runs under expert parallelism.",
    "Add --enable-expert-parallel, or leave --enable-eplb out.",
    "vLLM ParallelConfig: EPLB needs enable_expert_parallel and more than one rank",
)
def eplb_needs_ep(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses balancing where no expert is spread."""
    for server, _ in d.profiles():
        if server.flags.get("enable-eplb") and not server.flags.get("enable-expert-parallel"):
            yield Problem(
                server.of("enable-eplb"), "--enable-eplb without --enable-expert-parallel"
            )
        more = server.table("eplb-config").get("num_redundant_experts")
        if isinstance(more, int) and more > 0 and not server.flags.get("enable-eplb"):
            yield Problem(
                server.of("eplb-config"),
                f"num_redundant_experts is {more} without --enable-eplb",
                "Add --enable-eplb, or leave num_redundant_experts out.",
            )


@rule(
    "engine/heads",
    ERROR,
    "The tensor parallel size divides the attention heads.",
    "Choose a tensor parallel size that divides the heads.",
    "vLLM ModelConfig: attention heads must be divisible by tensor parallel size",
    needs=("model",),
)
def heads_divide(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses it once the model's config.json was read."""
    assert d.model is not None
    heads = d.model.architecture["heads"]
    for server, _ in d.profiles():
        if server.tp and heads % server.tp:
            yield Problem(
                server.of("tensor-parallel-size"),
                f"tp {server.tp} does not divide the {heads} heads of {d.model.title}",
            )


@rule(
    "engine/context-parallel",
    ERROR,
    "Decode context parallelism divides tp, or goes with prefill context parallelism.",
    "Choose a divisor of tp; beside prefill context parallelism its size, or tp times it.",
    "vLLM ParallelConfig",
)
def context_parallel(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses a size that does not divide tp; with prefill context
    parallelism (pcp) it takes 1, pcp and tp x pcp from 0.32.0 on."""
    for server, _ in d.profiles():
        dcp = server.number("decode-context-parallel-size") or 1
        pcp = server.pcp
        if dcp > 1 and server.tp and pcp is not None and pcp > 1:
            allowed = (pcp, server.tp * pcp)
            known = d.engine_known and not catalog.earlier(d.engine.vllm, "0.32.0")
            if dcp not in allowed and (known or server.tp % dcp):
                yield Problem(
                    server.of("decode-context-parallel-size"),
                    f"decode context parallel size {dcp} beside prefill context parallel size {pcp} "
                    f"and tp {server.tp}: 1, {allowed[0]} or {allowed[1]} is allowed",
                )
        elif dcp > 1 and server.tp and pcp is not None and server.tp % dcp:
            yield Problem(
                server.of("decode-context-parallel-size"),
                f"decode context parallel size {dcp} does not divide tp {server.tp}",
            )


@rule(
    "engine/context-parallel-ascend",
    ERROR,
    "On Ascend context parallelism goes with the draft and the data parallelism of the engine.",
    "Leave context parallelism out, or the draft; or take a version that has both.",
    "vllm-ascend's sources and guides by version (kimi_nb/data/catalog/versions.yaml)",
    needs=("ascend",),
)
def context_parallel_on_ascend(d: Deployment) -> Iterator[Problem]:
    """Which drafts and sizes go together changes from version to version: some end at the first
    request, later ones are refused by the plugin's own check."""
    for server, _ in d.profiles():
        draft = server.table("speculative-config")
        fault = context_parallels.fault(
            d.engine,
            server.role,
            dcp=int(server.number("decode-context-parallel-size") or 1),
            pcp=int(server.number("prefill-context-parallel-size") or 1),
            dp=server.dp or 1,
            method=str(draft.get("method", "")),
            draft=str(draft.get("model", "")),
        )
        if fault:
            flag = "decode-context-parallel-size"
            if (server.number("prefill-context-parallel-size") or 1) > 1:
                flag = "prefill-context-parallel-size"
            yield Problem(
                server.of(flag),
                f"--{flag} {server.number(flag)} in {d.engine}: {fault.says} ({fault.source})",
                "",
                ERROR if fault.certain and d.engine_known else WARNING,
            )


@rule(
    "engine/layer-sharding",
    ERROR,
    "Layers are sharded on prefill alone.",
    "Take layer_sharding out of --additional-config but on prefill (kv_producer).",
    "vllm-ascend platform.py: _validate_layer_sharding_config, from v0.18.0",
    needs=("ascend",),
)
def layer_sharding(d: Deployment) -> Iterator[Problem]:
    """The plugin's own check refuses it: 'layer_sharding is only supported on P nodes'."""
    old = not d.engine_known or catalog.earlier(d.engine.version, "0.18.0")
    for server, _ in d.profiles():
        if server.table("additional-config").get("layer_sharding") and server.role != "prefill":
            yield Problem(
                server.of("additional-config"),
                f"--additional-config layer_sharding on {server.role}",
                "",
                WARNING if old else "",
            )


@rule(
    "engine/logits-processor",
    ERROR,
    "A logits processor is named as module:class.",
    "Write a colon between the module and the class.",
    "vllm/v1/sample/logits_processor: FQCNs are split at the colon",
)
def logits_processor(d: Deployment) -> Iterator[Problem]:
    """'not enough values to unpack', when the engine loads the processor."""
    for server, _ in d.profiles():
        given = server.flags.get("logits-processors")
        for name in given if isinstance(given, list) else [given]:
            if (
                isinstance(name, str)
                and re.fullmatch(r"\w+(\.\w+)+", name)
                and not fill_ins.holds(name)
            ):
                yield Problem(
                    server.of("logits-processors"),
                    f"--logits-processors {name}: no colon stands before the class",
                    f"Write {':'.join(name.rsplit('.', 1))}.",
                )


@rule(
    "engine/context-length",
    ERROR,
    "The context is not longer than the model was trained for.",
    "Lower --max-model-len.",
    "vLLM ModelConfig: max_model_len against config.json",
    needs=("model",),
)
def context_length(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses a longer one."""
    assert d.model is not None
    for server, _ in d.profiles():
        length = server.number("max-model-len")
        if length is not None and length > d.model.context_length:
            yield Problem(
                server.of("max-model-len"),
                f"--max-model-len {length} is more than the "
                f"{d.model.context_length} tokens of {d.model.title}",
            )


@rule(
    "engine/quantization",
    ERROR,
    "Weights for Ascend name their quantisation.",
    "Add --quantization ascend.",
    "vllm-ascend: quantised weights of ModelSlim",
    needs=("ascend", "weights"),
)
def quantization_named(d: Deployment) -> Iterator[Problem]:
    """Without it the plugin loads W4A8 tensors as if they were plain, and stops at the first
    shape that does not fit."""
    assert d.weights is not None
    for server, _ in d.profiles():
        if (
            d.weights.settings.flags.get("quantization") == "ascend"
            and server.flags.get("quantization") != "ascend"
        ):
            yield Problem(
                server.spot,
                f"{d.weights.id} needs --quantization ascend, found "
                f"{server.flags.get('quantization') or 'none'}",
            )
