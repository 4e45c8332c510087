"""The command line of an engine: what its parser and its validation refuse, by version."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from kimi_nb import arguments, catalog, params
from kimi_nb.deployment import Deployment
from kimi_nb.findings import ERROR, NOTE, WARNING
from kimi_nb.rules import Problem, rule

_PARSER = "the argument parser of the version (kimi_nb/data/catalog-vllm.json)"


def listed(name: str) -> tuple[str, str] | None:
    """(first, last) listed vLLM version with a flag or one of its other names; None for none."""
    for long, runs in catalog.tables("vllm")["serve"].items():
        if long == f"--{name}" or any(f"--{name}" in run.get("aliases", ()) for run in runs):
            return runs[0]["first"], runs[-1]["last"]
    return None


def _instead(name: str) -> str:
    return params.data("versions")["instead"].get(name, "")


@rule("engine/flag-unknown", ERROR, "Every flag exists in some version of the engine.",
      "Take the flag out, or spell it as the engine does.", _PARSER)
def flag_exists(d: Deployment) -> Iterator[Problem]:
    """The parser refuses an unknown flag after the container has started and before anything
    loads; a whole multi-node start fails for one word."""
    known = [name[2:] for name in catalog.tables("vllm")["serve"]]
    for server, _ in d.profiles():
        for given in server.given:
            single = given.spelt.startswith("-") and not given.spelt.startswith("--")
            if given.fault != arguments.UNKNOWN or "$" in given.spelt or (
                    listed(given.name) and not single):
                continue
            word = given.name.replace("\N{EN DASH}", "-").replace("\N{EM DASH}", "-").strip("-")
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.75)
            if given.name in params.data("versions")["gone"]:
                yield Problem(server.at(given.index), f"{given.spelt} is gone: "
                              f"{params.data('versions')['gone'][given.name]}",
                              "", "" if d.engine_known else WARNING)
                continue
            instead = _instead(given.name)
            fix = f"Use {instead}." if instead else f"Did you mean --{near[0]}?" if near else ""
            how = (" (it begins with a typographic dash)" if not given.spelt.isascii() else
                   " (long flags begin with two dashes)" if not given.spelt.startswith("--")
                   and near else "")
            # Without a version an old script or a fork may know what no listed version does.
            yield Problem(server.at(given.index), f"no listed vLLM version has {given.spelt}{how}",
                          fix, "" if d.engine_known or near or instead else WARNING)


@rule("engine/flag-removed", ERROR, "No flag is older than the engine.",
      "Take the flag out.", _PARSER)
def flag_not_removed(d: Deployment) -> Iterator[Problem]:
    """A flag that a newer version dropped is refused like a misspelt one."""
    for server, _ in d.profiles():
        for given in server.given:
            span = _span(given)
            if span and catalog.older(span[1], d.engine):
                instead = _instead(given.name)
                yield Problem(server.at(given.index),
                              f"{given.spelt} is gone: vLLM {span[1]} was the last listed version "
                              f"with it, this is {_speaks(d)}",
                              f"Use {instead}." if instead else "",
                              "" if d.engine_known else WARNING)


@rule("engine/flag-newer", ERROR, "No flag is newer than the engine.",
      "Take the flag out, or a newer engine.", _PARSER)
def flag_not_newer(d: Deployment) -> Iterator[Problem]:
    """A flag of a later version is refused like a misspelt one."""
    for server, _ in d.profiles():
        for given in server.given:
            span = _span(given)
            if span and not catalog.older(span[1], d.engine):
                yield Problem(server.at(given.index),
                              f"{given.spelt} needs vLLM {span[0]} or newer, this is {_speaks(d)}",
                              "", "" if d.engine_known else WARNING)


def _span(given: arguments.Given) -> tuple[str, str] | None:
    """The versions that know a flag which this one does not."""
    if given.fault != arguments.UNKNOWN or not given.spelt.startswith("--"):
        return None
    return listed(given.name)


def _speaks(d: Deployment) -> str:
    """The engine, and that it is only assumed where nothing names it."""
    return str(d.engine) if d.engine_known else f"assumed to be {d.engine} (nothing names it)"


@rule("engine/flag-deprecated", WARNING, "No flag is deprecated.",
      "Use what replaces it; a later version refuses it.", _PARSER)
def flag_not_deprecated(d: Deployment) -> Iterator[Problem]:
    """A deprecated flag works today and is refused after the next upgrade."""
    for server, _ in d.profiles():
        for given in server.given:
            spec = catalog.flag(d.engine, given.name)
            if spec and spec.get("deprecated"):
                instead = _instead(given.name)
                yield Problem(server.at(given.index), f"{given.spelt} is deprecated in {d.engine}",
                              f"Use {instead}." if instead else "")


@rule("engine/flag-ambiguous", ERROR, "A shortened flag means one flag.",
      "Write the flag in full.", "argparse: unique prefixes only")
def flag_unique(d: Deployment) -> Iterator[Problem]:
    """The parser takes a unique beginning of a flag and refuses one of several."""
    for server, _ in d.profiles():
        for given in server.given:
            if given.fault == arguments.AMBIGUOUS:
                shown = ", ".join(given.candidates[:4])
                more = ", ..." if len(given.candidates) > 4 else ""
                yield Problem(server.at(given.index), f"{given.spelt} could be {shown}{more}")


@rule("engine/missing-value", ERROR, "A flag that takes a value has one.",
      "Write the value after the flag.", _PARSER)
def value_present(d: Deployment) -> Iterator[Problem]:
    """'expected one argument', and nothing starts. Often an empty shell variable."""
    for server, _ in d.profiles():
        for given in server.given:
            if given.fault == arguments.MISSING:
                yield Problem(server.at(given.index), f"{given.spelt} has no value")


@rule("engine/stray-value", ERROR, "A switch has no value, and no word stands alone.",
      "Take the word out; a switch is turned off with its --no- form.", _PARSER)
def no_stray(d: Deployment) -> Iterator[Problem]:
    """'unrecognized arguments: true', and nothing starts."""
    for server, _ in d.profiles():
        for given in server.given:
            if given.fault == arguments.STRAY:
                yield Problem(server.at(given.index), f"{given.spelt} is a switch and takes no "
                              f"value, found '{given.text}'")
        before = {given.index: given for given in server.given}
        for index, word in server.stray:
            switch = before.get(index - 1)
            if "$" in word:
                continue
            if switch is not None and switch.text is None:
                yield Problem(server.at(index), f"{switch.spelt} is a switch and takes no value, "
                              f"found '{word}'")
            else:
                yield Problem(server.at(index), f"'{word[:60]}' belongs to no flag")


@rule("engine/value", ERROR, "A value is of the kind that its flag takes.",
      "Write a value of the kind that is named.", _PARSER)
def value_kind(d: Deployment) -> Iterator[Problem]:
    """The parser refuses a value of the wrong kind before anything loads."""
    limits = params.data("versions")["limits"]
    for server, _ in d.profiles():
        for given in server.given:
            value = server.flags.get(given.name)
            if isinstance(value, arguments.Unread) and "known here" not in value.why \
                    and not value.why.startswith("not JSON") and given.text == value.text:
                yield Problem(server.at(given.index), f"{given.spelt} {value.text[:60]}: "
                              f"{value.why}")
            least, most = limits.get(given.name, (None, None))
            number = server.number(given.name)
            if least is not None and number is not None and not least <= number <= most \
                    and number != -1:
                yield Problem(server.at(given.index),
                              f"{given.spelt} {given.text}: {least} to {most} is allowed")


@rule("engine/choice", ERROR, "A value is one of the choices of its flag.",
      "Choose one of those named.", _PARSER)
def choice_exists(d: Deployment) -> Iterator[Problem]:
    """'invalid choice', and nothing starts. Choices change from version to version."""
    for server, _ in d.profiles():
        for given in server.given:
            spec = catalog.flag(d.engine, given.name)
            if not spec or not spec.get("choices") or given.text is None or given.path \
                    or "$" in given.text:
                continue
            choices = [str(one) for one in spec["choices"] if one is not None]
            if spec.get("type", "").endswith("<lambda>"):
                text = given.text.lower().replace("-", "_")
            else:
                text = given.text
            if text not in choices and text.replace("_", "-") not in choices:
                near = difflib.get_close_matches(text, choices, n=1)
                yield Problem(server.at(given.index),
                              f"{given.spelt} {given.text} is no choice in {_speaks(d)}: "
                              f"{', '.join(choices[:24])}",
                              f"Did you mean {near[0]}?" if near else "",
                              "" if d.engine_known else WARNING)


@rule("engine/flag-twice", WARNING, "A flag is given once.",
      "Keep one of them; the last one wins.", "argparse: the last one wins")
def flag_once(d: Deployment) -> Iterator[Problem]:
    """Of two values the last one wins, silently; who edits the first changes nothing."""
    for server, _ in d.profiles():
        seen: dict[str, arguments.Given] = {}
        for given in server.given:
            if given.path or given.fault in (arguments.UNKNOWN, arguments.AMBIGUOUS):
                continue
            spec = catalog.flag(d.engine, given.name) or {}
            if isinstance(spec.get("default"), list):
                continue  # a list that each use adds to, such as --middleware
            other = seen.setdefault(given.name, given)
            if other is not given:
                first, second = (one.text or ("off" if one.off else "on")
                                 for one in (other, given))
                values = f"{first} and {second}" if first != second else f"{first} both times"
                yield Problem(server.at(given.index), f"--{given.name} is given twice: {values}")


# What the configuration check refuses -------------------------------------------------------


@rule("engine/batched-tokens", ERROR,
      "A step holds at least one token for each sequence.",
      "Raise --max-num-batched-tokens to --max-num-seqs or more.",
      "vLLM SchedulerConfig: max_num_batched_tokens must be >= max_num_seqs")
def step_holds_sequences(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses it, after the arguments were parsed on every node."""
    for server, _ in d.profiles():
        tokens, seqs = server.number("max-num-batched-tokens"), server.number("max-num-seqs")
        if tokens is not None and seqs is not None and tokens < seqs:
            yield Problem(server.of("max-num-batched-tokens"),
                          f"--max-num-batched-tokens {tokens} with --max-num-seqs {seqs}")


@rule("engine/whole-prompt", ERROR,
      "Without chunked prefill a step holds the longest prompt.",
      "Raise --max-num-batched-tokens to --max-model-len, or leave chunked prefill on.",
      "vLLM SchedulerConfig: max_num_batched_tokens is smaller than max_model_len")
def step_holds_prompt(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses a step that is smaller than a prompt it cannot cut."""
    for server, _ in d.profiles():
        tokens, length = server.number("max-num-batched-tokens"), server.number("max-model-len")
        if server.flags.get("enable-chunked-prefill") is False and tokens is not None \
                and length is not None and tokens < length:
            yield Problem(server.of("max-num-batched-tokens"),
                          f"--max-num-batched-tokens {tokens} with --max-model-len {length} and "
                          "chunked prefill off")


@rule("engine/draft-step", WARNING, "A step holds a full batch with its drafts.",
      "Raise --max-num-batched-tokens to max-num-seqs x (draft + 1).",
      "arithmetic: each sequence takes draft + 1 tokens of a decode step")
def step_holds_drafts(d: Deployment) -> Iterator[Problem]:
    """A smaller step keeps sequences waiting although they are admitted: decode never reaches
    max-num-seqs."""
    for server, _ in d.profiles():
        tokens, seqs = server.number("max-num-batched-tokens"), server.number("max-num-seqs")
        if tokens is not None and seqs is not None and server.draft and server.role != "prefill" \
                and seqs <= tokens < seqs * (server.draft + 1):
            yield Problem(server.of("max-num-batched-tokens"),
                          f"--max-num-batched-tokens {tokens} holds {tokens // (server.draft + 1)} "
                          f"of {seqs} sequences with {server.draft} draft tokens each "
                          f"({seqs} x ({server.draft} + 1) = {seqs * (server.draft + 1)})")


@rule("engine/capture-sizes", WARNING, "Graph sizes fit the batches that occur.",
      "List n x (draft + 1) for the batches you expect, up to max-num-seqs x (draft + 1).",
      "the documents' own rule: n x (draft + 1) up to max-num-seqs")
def capture_sizes(d: Deployment) -> Iterator[Problem]:
    """A batch past the largest size runs without a graph, which is what a full server does; a
    size that no batch has costs memory and start time for nothing."""
    for server, _ in d.profiles():
        own = server.flags.get("cudagraph-capture-sizes")
        sizes = server.table("compilation-config").get("cudagraph_capture_sizes") or own
        seqs = server.number("max-num-seqs")
        if not isinstance(sizes, list) or not sizes or seqs is None \
                or not all(isinstance(size, int) for size in sizes) \
                or server.table("compilation-config").get("cudagraph_mode") == "NONE":
            continue
        step = server.draft + 1
        spot = server.of("cudagraph-capture-sizes" if sizes is own else "compilation-config")
        full = int(seqs) * step
        tokens = server.number("max-num-batched-tokens")
        full = min(full, int(tokens)) if tokens is not None and tokens >= seqs else full
        rule_of = f"max-num-seqs {seqs} x ({server.draft} + 1) = {full}"
        if max(sizes) < full:
            yield Problem(spot, f"capture sizes end at {max(sizes)}, a full batch has {full} "
                          f"tokens ({rule_of}): it runs without a graph")
        elif min(sizes) > full:
            yield Problem(spot, f"the smallest capture size is {min(sizes)}, the largest batch has "
                          f"{full} tokens ({rule_of})")
        odd = [size for size in sizes if size % step]
        if server.draft and odd and len(odd) == len(sizes):
            yield Problem(spot, f"no capture size is a multiple of draft + 1 = {step}")


@rule("engine/draft-method", ERROR, "The draft method is known for the model at this version.",
      "Take a newer engine (--engine-version), or no draft.",
      "vLLM SpeculativeConfig: eagle3 is taken for listed model types",
      needs=("model", "version"))
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
        drafts = [draft for draft in d.model.drafts.values() if draft.method == method]
        if method is None or not drafts:
            continue
        if not any(catalog.satisfies(d.engine, draft.vllm) for draft in drafts):
            needs = " or ".join(sorted({draft.vllm for draft in drafts}))
            yield Problem(server.of("speculative-config"),
                          f"{method} for {d.model.title} needs vLLM {needs}; {d.engine} is vLLM "
                          f"{d.engine.vllm}")


@rule("engine/prefill-draft", WARNING, "Prefill drafts one token.",
      'Set "num_speculative_tokens": 1 on prefill.',
      "prefill-decode guide of vllm-ascend", needs=("ascend",))
def prefill_draft(d: Deployment) -> Iterator[Problem]:
    """Prefill emits one token; more drafts cost time and memory there and are thrown away."""
    for server, _ in d.profiles():
        if server.role == "prefill" and server.draft > 1:
            yield Problem(server.of("speculative-config"),
                          f"num_speculative_tokens is {server.draft} on prefill")


@rule("engine/tool-parser", ERROR, "--enable-auto-tool-choice has its parser.",
      "Add --tool-call-parser (kimi_k2 for Kimi).",
      "vLLM: --enable-auto-tool-choice requires --tool-call-parser")
def tool_parser(d: Deployment) -> Iterator[Problem]:
    """The server refuses to start with the one and without the other; with a parser alone the
    model is never allowed to call a tool."""
    for server, _ in d.profiles():
        parser = server.flags.get("tool-call-parser")
        automatic = server.flags.get("enable-auto-tool-choice")
        if automatic and not parser:
            yield Problem(server.of("enable-auto-tool-choice"),
                          "--enable-auto-tool-choice without --tool-call-parser")
        elif parser and not automatic:
            yield Problem(server.of("tool-call-parser"), "--tool-call-parser without "
                          "--enable-auto-tool-choice: the model cannot choose a tool",
                          "Add --enable-auto-tool-choice.", WARNING)


@rule("engine/model-parsers", NOTE, "A thinking model that calls tools has its parsers.",
      "Add --reasoning-parser kimi_k2, --tool-call-parser kimi_k2 and --enable-auto-tool-choice.",
      "vLLM issues 36207, 30238", needs=("model",))
def model_parsers(d: Deployment) -> Iterator[Problem]:
    """Without the reasoning parser </think> arrives inside the content; without the tool parser
    calls arrive as text."""
    for server, _ in d.profiles():
        if server.role == "prefill" or server.headless:
            continue
        missing = [f"--{name}" for name in ("reasoning-parser", "tool-call-parser")
                   if not server.flags.get(name)]
        if missing:
            yield Problem(server.spot, f"no {' and no '.join(missing)}: thinking and tool calls "
                          "arrive as plain text")


@rule("engine/eplb", ERROR, "Expert balancing runs under expert parallelism.",
      "Add --enable-expert-parallel, or leave --enable-eplb out.",
      "vLLM ParallelConfig: EPLB needs enable_expert_parallel and more than one rank")
def eplb_needs_ep(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses balancing where no expert is spread."""
    for server, _ in d.profiles():
        if server.flags.get("enable-eplb") and not server.flags.get("enable-expert-parallel"):
            yield Problem(server.of("enable-eplb"), "--enable-eplb without "
                          "--enable-expert-parallel")


@rule("engine/heads", ERROR, "The tensor parallel size divides the attention heads.",
      "Choose a tensor parallel size that divides the heads.",
      "vLLM ModelConfig: attention heads must be divisible by tensor parallel size",
      needs=("model",))
def heads_divide(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses it once the model's config.json was read."""
    assert d.model is not None
    heads = d.model.architecture["heads"]
    for server, _ in d.profiles():
        if server.tp and heads % server.tp:
            yield Problem(server.of("tensor-parallel-size"),
                          f"tp {server.tp} does not divide the {heads} heads of {d.model.title}")


@rule("engine/context-parallel", ERROR,
      "Decode context parallelism divides tp, and on Ascend goes without Eagle3.",
      "Choose a divisor of tp; leave the draft out on Ascend.",
      "vLLM ParallelConfig; vllm-ascend issue 8297")
def context_parallel(d: Deployment) -> Iterator[Problem]:
    """A size that does not divide tp is refused; on Ascend Eagle3 with it fails at the first
    request ('AscendMetadata' object has no attribute 'decode')."""
    for server, _ in d.profiles():
        dcp = server.number("decode-context-parallel-size") or 1
        if dcp > 1 and server.tp and server.tp % dcp:
            yield Problem(server.of("decode-context-parallel-size"),
                          f"decode context parallel size {dcp} does not divide tp {server.tp}")
        if dcp > 1 and d.ascend and server.table("speculative-config").get("method") == "eagle3":
            yield Problem(server.of("decode-context-parallel-size"),
                          "decode context parallelism with Eagle3 on Ascend")


@rule("engine/context-length", ERROR, "The context is not longer than the model was trained for.",
      "Lower --max-model-len.", "vLLM ModelConfig: max_model_len against config.json",
      needs=("model",))
def context_length(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses a longer one."""
    assert d.model is not None
    for server, _ in d.profiles():
        length = server.number("max-model-len")
        if length is not None and length > d.model.context_length:
            yield Problem(server.of("max-model-len"), f"--max-model-len {length} is more than the "
                          f"{d.model.context_length} tokens of {d.model.title}")


@rule("engine/quantization", ERROR, "Weights for Ascend name their quantisation.",
      "Add --quantization ascend.", "vllm-ascend: quantised weights of ModelSlim",
      needs=("ascend", "weights"))
def quantization_named(d: Deployment) -> Iterator[Problem]:
    """Without it the plugin loads W4A8 tensors as if they were plain, and stops at the first
    shape that does not fit."""
    assert d.weights is not None
    for server, _ in d.profiles():
        if d.weights.settings.flags.get("quantization") == "ascend" \
                and server.flags.get("quantization") != "ascend":
            yield Problem(server.spot, f"{d.weights.id} needs --quantization ascend, found "
                          f"{server.flags.get('quantization') or 'none'}")
