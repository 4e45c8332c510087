"""Learn from an engine's own log what the estimate had wrong, and account with it.

Example::

    learnt = calibration.learn(fit, engine_report.read(lines, "run.log"), plan_facts)
    fitted = calibration.account(fit, architecture, learnt.layer)

The figures hold for one role of one model on one hardware at one version. What depends on the shape
stays a formula: weights and activations get a factor, and what is left beside them is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kimi_nb.core.errors import ParameterError
from kimi_nb.params import schema
from kimi_nb.plan.memory.account import Fit
from kimi_nb.plan.memory.account import account as _account
from kimi_nb.plan.memory.terms import GIB, Term

if TYPE_CHECKING:
    from kimi_nb.plan.memory.engine_report import Log

PEAK = ("activations", "sampler", "encoder cache")
BESIDE = ("buffers", "connector")
# How far a measured figure may be off at another shape: a share of it, and GiB of what is constant.
_SHARE = {"weights": 0.005, "peak": 0.1, "graphs": 0.25}
_CONSTANT_GIB = 0.15
# Figures are logged with two decimals; a sum of four may be off by this many GiB.
_ROUNDING = 0.03
# What a setting of the log is called in a shape, and as a flag.
_SETTINGS = {
    "tensor_parallel_size": ("tp", "tensor-parallel-size"),
    "data_parallel_size": ("dp", "data-parallel-size"),
    "pipeline_parallel_size": ("pp", "pipeline-parallel-size"),
    "decode_context_parallel_size": ("dcp", "decode-context-parallel-size"),
    "gpu_memory_utilization": ("utilization", "gpu-memory-utilization"),
    "max_num_seqs": ("seqs", "max-num-seqs"),
    "max_num_batched_tokens": ("batched_tokens", "max-num-batched-tokens"),
    "max_model_len": ("model_len", "max-model-len"),
    "enable_expert_parallel": ("expert_parallel", "enable-expert-parallel"),
}


@dataclass(frozen=True)
class Compared:
    """One term, as estimated and as logged, in GiB; None where one of them says nothing."""

    term: str
    ours: float | None
    logged: float | None


@dataclass(frozen=True)
class Learnt:
    """What a log taught: the layer to plan with, and each term beside the estimate."""

    layer: schema.Calibration
    terms: tuple[Compared, ...]


def account(fit: Fit, arch: Mapping[str, int], layer: schema.Calibration) -> Fit:
    """Return the account of a fit with what was measured in the place of estimates."""
    terms = [_measured(one, layer) for one in fit.terms]
    device = layer.device_gib if layer.device_gib is not None else fit.device / GIB
    return _account(fit.shape, arch, terms, device, layer.mark)


def _measured(one: Term, layer: schema.Calibration) -> Term:
    """Return a term with the layer's figure, or as it is where the layer has none."""
    if one.name == "graphs":
        return one if layer.graphs_gib is None else _set(one, layer, layer.graphs_gib * GIB)
    if one.name == "contexts":
        if layer.contexts_gib is None:
            return one
        size, room = layer.contexts_gib * GIB, _CONSTANT_GIB * GIB
        return replace(one, bytes=size, low=max(size - room, 0), high=size + room, mark=layer.mark)
    if one.name in PEAK:
        factor, share = layer.activations, "peak"
    elif one.name in BESIDE:
        # The formula stays: what it has wrong is in the contexts of the same log.
        return replace(one, low=one.bytes, high=one.bytes) if layer.contexts_gib else one
    else:
        factor, share = layer.weights, "weights"
    return one if factor is None else _set(one, layer, one.bytes * factor, share)


def _set(one: Term, layer: schema.Calibration, size: float, share: str = "graphs") -> Term:
    off = _SHARE[share] * size
    return replace(one, bytes=size, low=size - off, high=size + off, mark=layer.mark)


def learn(fit: Fit, log: Log, facts: Mapping[str, Any]) -> Learnt:
    """Compare a log with the estimate for the same engine, and return what is to be learnt.

    ``facts`` are the keys of the layer that the log cannot say: engine, version, model, precision,
    hardware, role and measured; ``served`` (the names and folders of the model) and ``vllm`` (the
    version of vLLM itself).

    Raises ParameterError for a log of another version, model or shape, and for figures that
    contradict each other or the device.
    """
    _same_engine(log, facts)
    _same_shape(log, fit)
    cache, device = _cache(log, fit), log.device
    weights = fit.weights / GIB
    peak = _sum(fit, PEAK) if fit.shape.vendor != "cpu" else 0.0
    graphs = _sum(fit, ("graphs",)) if fit.shape.graphs_inside else 0.0
    share = 1.0 if fit.shape.fixed_cache is not None else fit.shape.utilization
    budget = log.budget or (device or fit.device / GIB) * share
    _possible(log, cache, budget, device or fit.device / GIB)
    known_weights = log.weights if log.weights is not None else weights
    activations = _no_less_than_0(log.activations)
    known_peak = activations if activations is not None else peak
    taken = log.graphs_estimated if log.graphs_estimated is not None else log.graphs
    known_graphs = graphs if taken is None or not fit.shape.graphs_inside else taken
    contexts: float | None = None
    if cache is not None and fit.shape.fixed_cache is None:
        rest = budget - cache - known_weights - known_peak - known_graphs - _sum(fit, BESIDE)
        if rest < -max(_ROUNDING, 0.3 * _sum(fit, BESIDE), 0.5 * (log.activations is None) * peak):
            raise ParameterError(
                f"{log.name}: the figures contradict each other: of {budget:.2f} GiB, weights "
                f"{known_weights:.2f}, activations {known_peak:.2f}, graphs {known_graphs:.2f} and "
                f"cache {cache:.2f} leave {rest:.2f} GiB for the rest. Is it the log of this plan?"
            )
        contexts = round(max(rest, 0.0), 3)
    layer = _layer(
        log,
        facts,
        device_gib=device,
        weights=round(log.weights / weights, 4) if log.weights is not None else None,
        activations=round(activations / peak, 3) if activations is not None and peak else None,
        graphs_gib=None if log.graphs is None else max(log.graphs, 0.0),
        contexts_gib=contexts,
    )
    if all(
        value is None
        for value in (layer.weights, layer.activations, layer.graphs_gib, layer.contexts_gib)
    ):
        raise ParameterError(
            f"{log.name}: nothing to learn: the cache was named by a setting "
            "(--kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE), so that the engine measured "
            "nothing. Give the log of a start without it."
        )
    return Learnt(layer, compare(fit, log, contexts))


def _no_less_than_0(figure: float | None) -> float | None:
    """Return a figure that only rounding took below 0 as 0."""
    return figure if figure is None or figure < -_ROUNDING else max(figure, 0.0)


def _layer(log: Log, facts: Mapping[str, Any], **figures: float | None) -> schema.Calibration:
    """Return the layer; refuse figures that none can have."""
    known = {key: it for key, it in {**facts, **figures}.items() if key not in ("served", "vllm")}
    try:
        return schema.Calibration(kind="memory-calibration", **known)
    except ValidationError as error:
        wrong = "; ".join(f"{fault['loc'][0]} {fault['input']}" for fault in error.errors())
        raise ParameterError(
            f"{log.name}: no engine of this plan has these figures, of which weights and activations "
            f"are factors of the estimate and the others GiB: {wrong}. Is it the log of this plan, "
            "whole and unchanged?"
        ) from None


def compare(fit: Fit, log: Log, contexts: float | None = None) -> tuple[Compared, ...]:
    """Return each term as estimated and as logged.

    ``contexts`` is what the log's figures leave for contexts and the rest, in GiB.
    """
    peak = _sum(fit, PEAK) if fit.shape.vendor != "cpu" else 0.0
    return (
        Compared("device", fit.device / GIB, log.device),
        Compared("weights", fit.weights / GIB, log.weights),
        Compared("activations", peak or None, log.activations),
        Compared("graphs", _sum(fit, ("graphs",)), log.graphs),
        Compared("contexts and the rest", _sum(fit, ("contexts",)), contexts),
        Compared("cache", fit.headroom / GIB, _cache(log, fit)),
    )


def _sum(fit: Fit, names: tuple[str, ...]) -> float:
    return sum(one.bytes for one in fit.terms if one.name in names) / GIB


def _same_engine(log: Log, facts: Mapping[str, Any]) -> None:
    """Refuse a log of another version or model."""
    if not log.version:
        raise ParameterError(
            f"{log.name}: the line 'Initializing a V1 LLM engine (v...)' is missing: version and "
            "model cannot be told. Give the log from the engine's start on."
        )
    wanted = facts["version"] if facts["engine"] == "vllm" else facts["vllm"]
    if log.version.split("+")[0] != wanted:
        raise ParameterError(
            f"{log.name}: the log is of vLLM {log.version}, the plan is for {wanted}. "
            "Plan with --engine-version, or give a log of this version."
        )
    names = facts["served"]
    if log.model not in names and log.model.rstrip("/").rpartition("/")[2] not in {
        name.rpartition("/")[2] for name in names
    }:
        raise ParameterError(
            f"{log.name}: the log is of {log.model}, the plan serves {names[0]}. Name the model of "
            "the log with --model."
        )


def _same_shape(log: Log, fit: Fit) -> None:
    """Refuse a log of an engine with other settings than the plan's."""
    wrong = []
    for name, (attribute, flag) in _SETTINGS.items():
        ours, said = getattr(fit.shape, attribute), log.settings.get(name)
        if said is not None and ours is not None and abs(float(said) - float(ours)) > 1e-6:
            wrong.append(f"--{flag} {said:.10g} there, {ours:.10g} here")
    if wrong:
        raise ParameterError(
            f"{log.name}: the log is of an engine with other settings: {'; '.join(wrong)}. Give the "
            "plan the same with --set; what is learnt holds for other shapes as well."
        )


def _cache(log: Log, fit: Fit) -> float | None:
    """Return the GiB of cache, from its size or from its tokens; refuse if they disagree.

    The pages of a model with states of its own are not those of tokens alone: only the size counts.
    """
    if log.tokens is None or fit.per_sequence:
        return log.cache
    said = log.tokens * fit.per_token / fit.shape.dcp / GIB
    if log.cache is None:
        return said
    if abs(said - log.cache) > 0.04 * log.cache + _ROUNDING:
        raise ParameterError(
            f"{log.name}: {log.tokens} tokens of cache in {log.cache:g} GiB are "
            f"{log.cache * GIB * fit.shape.dcp / log.tokens:.0f} B a token, this plan's model has "
            f"{fit.per_token}: it is the log of another model, cache format or context parallelism."
        )
    return log.cache


def _possible(log: Log, cache: float | None, budget: float, device: float) -> None:
    """Refuse figures that no device can have."""
    held = (cache or 0.0) + (log.weights or 0.0)
    for what, most in (("the engine's share", budget), ("the device", device)):
        if held > most + _ROUNDING:
            raise ParameterError(
                f"{log.name}: {cache or 0:.2f} GiB of cache and {log.weights or 0:.2f} GiB of weights "
                f"are more than {what} has ({most:.2f} GiB). Is it the log of this plan, whole and "
                "unchanged?"
            )


def refuse_other(layer: schema.Calibration, facts: Mapping[str, str], where: str) -> None:
    """Raise ParameterError if a layer was measured with something else than the plan's.

    ``facts`` are engine, version, model, precision and hardware of the plan.
    """
    wrong = [
        f"{key} {getattr(layer, key)} there, {value} here"
        for key, value in facts.items()
        if getattr(layer, key) != value
    ]
    if wrong:
        raise ParameterError(
            f"{where}: measured with something else: {'; '.join(wrong)}. Calibrate again: "
            "kimi-nb calibrate LOG, with a log of this engine."
        )


def refuse_impossible(layer: schema.Calibration, hardware: schema.Hardware, where: str) -> None:
    """Raise ParameterError if a layer's device is larger than one of the hardware can be.

    A host's memory, which is what a CPU serves from, may be of any size.
    """
    nominal, seen = hardware.devices.memory_gb, layer.device_gib
    if hardware.vendor != "cpu" and seen is not None and seen > nominal:
        raise ParameterError(
            f"{where}: device_gib: {seen:g} GiB, more than a device of {layer.hardware} has "
            f"({nominal} GB): it was measured on other hardware, or changed. Calibrate again: "
            "kimi-nb calibrate LOG."
        )
