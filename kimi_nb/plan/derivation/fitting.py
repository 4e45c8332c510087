"""Choose the parallel sizes of a derived role so that its memory fits, and shorten what does not.

The memory is the account of `kimi_nb.plan.memory`, with the settings that the plan would have.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kimi_nb import catalog
from kimi_nb.params import load, schema
from kimi_nb.plan import memory, step_tokens
from kimi_nb.plan.derivation.adapting import Impossible, Subject, facts
from kimi_nb.plan.memory import device

_DIVIDED = ("heads", "intermediate_size", "moe_intermediate_size")  # by tensor parallel
_STEP = 1024  # a context is shortened to a multiple of it


@dataclass(frozen=True)
class Sizes:
    """The nodes of a group, and its ranks of ``tp`` devices."""

    nodes: int
    dp: int
    tp: int


@dataclass(frozen=True)
class Fitted:
    """The sizes of a role, what had to be lowered (value and sum), and the account."""

    sizes: Sizes
    account: memory.Fit
    limits: Mapping[str, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """The settings of a role as the memory account reads them of an engine."""

    role: str
    flags: Mapping[str, Any]
    env: Mapping[str, str]
    draft_parameters: int = 0
    tp: int = 1
    dp: int = 1
    pp: int = 1

    def number(self, flag: str) -> int | float | None:
        """Return the number that a flag holds, None without one."""
        found = self.flags.get(flag)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    def text(self, flag: str) -> str | None:
        """Return the text that a flag holds, None without one."""
        found = self.flags.get(flag)
        return found if isinstance(found, str) else None

    def table(self, flag: str) -> Mapping[str, Any]:
        """Return the object that a JSON flag holds, empty without one."""
        found = self.flags.get(flag)
        return found if isinstance(found, dict) else {}

    @property
    def draft(self) -> int:
        """The number of tokens that a draft proposes; 0 without a draft."""
        return int(self.table("speculative-config").get("num_speculative_tokens", 0) or 0)


def settings(
    subject: Subject, role: str, features: list[str], layers: list[schema.Settings]
) -> Settings:
    """Return what hardware, model, weights, features and ``layers`` come to for a role."""
    flags: dict[str, Any] = {}
    env: dict[str, Any] = {}
    draft_parameters = 0
    below = [subject.hardware.settings, subject.model.settings]
    below.append(subject.model.weights[subject.weights].settings)
    known = load.features()
    for name in features:
        feature = known[name]
        if role not in feature.roles:
            continue
        below.append(feature.on)
        if feature.draft:
            draft = subject.model.drafts[feature.draft]
            draft_parameters = (draft.parameters_million or 0) * 10**6
            table = {"method": draft.method, "num_speculative_tokens": draft.tokens}
            below.append(schema.Settings.model_construct(flags={"speculative-config": table}))
    for one in (*below, *layers):
        flags = load.merge(flags, _plain(one.flags))
        env = load.merge(env, _plain(one.env))
    return Settings(
        role,
        {name: value for name, value in flags.items() if value is not None},
        {name: str(value) for name, value in env.items() if value is not None},
        draft_parameters,
    )


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without their reasons."""
    out = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            reasoned = "value" in value and set(value) <= {"value", "reason"}
            value = value["value"] if reasoned else _plain(value)
        out[name] = value
    return out


def fitted(subject: Subject, spec: schema.RoleSpec, given: Settings, least_tp: int = 1) -> Fitted:
    """Return the first sizes that fit, else those that lose the least; raise Impossible with the sum.

    More tensor parallelism is tried before more nodes. ``least_tp`` is the smallest tp allowed.
    """
    _refuse_unknown_sizes(subject)
    best: Fitted | None = None
    nodes, experts = 0, subject.model.architecture["experts"]
    last: Sizes | None = None
    # A share of every byte, which is less than any device holds: no account is needed to say no.
    whole = memory.checkpoint_bytes(subject.model.architecture, subject.precision)
    there = subject.hardware.devices.count * device.usable(subject.hardware).high
    for sizes in _sizes(subject, spec, least_tp):
        if best is not None and sizes.nodes > nodes:
            break
        if given.flags.get("enable-expert-parallel") and experts % (sizes.dp * sizes.tp):
            continue  # whole experts: each rank has as many as the others
        nodes, last = sizes.nodes, sizes
        if whole >= sizes.nodes * there:
            continue
        needed = account(subject, given, sizes)
        found = None if needed.weights >= needed.budget else _limited(subject, given, sizes, needed)
        if found is not None and not found.limits:
            return found
        if found is not None and (best is None or _length(found) > _length(best)):
            best = found
    if best is None:
        if last is None:
            raise Impossible(
                f"no size of tensor parallelism divides the heads and matrices of "
                f"{subject.model.title} and the devices of {subject.hardware.name}"
            )
        raise Impossible(shortfall(subject, account(subject, given, last), nodes))
    return best


def _refuse_unknown_sizes(subject: Subject) -> None:
    """Raise Impossible for a model whose file lacks what the account needs, as the user's own may."""
    lacking = [name for name in memory.NEEDED if name not in subject.model.architecture]
    if lacking:
        raise Impossible(
            f"the architecture of {subject.model.title} has no {', '.join(lacking)}, so that its "
            "memory cannot be worked out"
        )
    if subject.precision not in memory.PRECISIONS:
        raise Impossible(
            f"what {subject.precision} weights take of a device is not known, so that its memory "
            "cannot be worked out"
        )


def _length(found: Fitted) -> int:
    return found.account.tokens


def _sizes(subject: Subject, spec: schema.RoleSpec, least_tp: int) -> Iterator[Sizes]:
    """Yield the sizes that a role may have, the nearest to those of the base first."""
    divided = [subject.model.architecture[key] for key in _DIVIDED]
    there, before = subject.hardware.devices.count, subject.base.hardware.devices.count
    used = spec.dp * spec.tp * spec.pp
    apart = spec.tp > before
    able = [n for n in range(least_tp, there + 1) if not any(one % n for one in (*divided, there))]
    same = subject.base.recipe.layout == subject.layout
    first = -(-used // there) if same else 1
    if subject.layout == "single":
        counts = [1]
    else:
        first = max(first, 2) if subject.layout == "dp" else max(first, 1)
        counts = list(range(first, facts()["most_nodes"] + 1))
    for nodes in counts:
        whole = subject.base.recipe.processes == "node" and not any(
            one % (nodes * there) for one in divided
        )
        if apart and nodes > 1 and same:
            if whole:
                yield Sizes(nodes, 1, nodes * there)
            continue
        if subject.layout == "pd" and spec.dp == 1 and nodes > 1 and whole:
            yield Sizes(nodes, 1, nodes * there)  # one rank stays one, over more nodes
        if not able:
            continue
        start = able[-1] if spec.dp == 1 or apart else spec.tp
        wide = [n for n in able if n >= start] or able[-1:]
        for tp in wide:
            yield Sizes(nodes, nodes * there // tp, tp)


def account(subject: Subject, given: Settings, sizes: Sizes) -> memory.Fit:
    """Return the memory account of a role in these sizes."""
    assert subject.engine is not None
    shape = memory.Shape.of(
        replace(given, tp=sizes.tp, dp=sizes.dp),
        subject.engine,
        subject.hardware.vendor,
        memory.defaults(subject.engine, subject.hardware),
    )
    assert shape is not None  # every size is given
    sizes_of_model = tuple(subject.model.architecture.items())
    usable = device.usable(subject.hardware)
    return _fit(shape, sizes_of_model, subject.precision, usable, given.draft_parameters)


@functools.cache
def _fit(
    shape: memory.Shape,
    architecture: tuple[tuple[str, int], ...],
    precision: str,
    usable: memory.Term,
    draft_parameters: int,
) -> memory.Fit:
    """Return an account; models of one architecture share it, and the table asks for hundreds."""
    return memory.fit(shape, dict(architecture), precision, usable, draft_parameters)


def _limited(subject: Subject, given: Settings, sizes: Sizes, found: memory.Fit) -> Fitted | None:
    """Return the role with a shorter context, and fewer requests if that is not enough."""
    length = found.shape.model_len or subject.model.context_length
    limits: dict[str, tuple[int, str]] = {}
    seqs = found.shape.seqs
    least = min(length, facts()["least_context"])
    while found.tokens < least:
        if seqs == 1:
            return None
        seqs = max(seqs // 2, 1)
        given = replace(given, flags={**given.flags, "max-num-seqs": seqs})
        found = account(subject, given, sizes)
        limits["max-num-seqs"] = (seqs, f"memory: with more requests {_cache(found)}")
    if found.tokens < length:
        limits["max-model-len"] = (
            found.tokens // _STEP * _STEP or found.tokens,
            f"memory: {_cache(found)}, {length} do not fit",
        )
    _step(subject, given, found, limits)
    return Fitted(sizes, found, limits)


def _cache(found: memory.Fit) -> str:
    left = found.headroom / memory.GIB
    return (
        f"{found.budget / memory.GIB:.1f} GiB - {found.used / memory.GIB:.1f} GiB leave "
        f"{left:.1f} GiB, {found.tokens} tokens at {found.per_token} B"
    )


def _step(
    subject: Subject, given: Settings, found: memory.Fit, limits: dict[str, tuple[int, str]]
) -> None:
    """Raise --max-num-batched-tokens where a step would not hold every request and its drafts."""
    assert isinstance(subject.engine, catalog.Engine)
    batched = given.number("max-num-batched-tokens")
    if batched is None or not given.draft or given.number("max-num-seqs") is None:
        return
    method = given.table("speculative-config").get("method")
    need = step_tokens.needed(subject.engine, method, given.draft, found.shape.seqs)
    if batched < need and given.role != "prefill":
        limits["max-num-batched-tokens"] = (
            need,
            f"{found.shape.seqs} requests with {given.draft} drafts each are {need} tokens of a step",
        )


def shortfall(subject: Subject, found: memory.Fit, nodes: int) -> str:
    """Return the sum by which a model does not fit on ``nodes`` nodes."""
    gib = memory.GIB
    item = subject.model.weights[subject.weights]
    size = memory.checkpoint_bytes(subject.model.architecture, subject.precision) / 1e9
    stated = f"{item.size_gb} GB" if item.size_gb else f"{size:.0f} GB (derived)"
    here = f"{'one node' if nodes == 1 else f'{nodes} nodes'} of {subject.hardware.name}"
    return (
        f"{subject.model.title} on {here}: {stated} of {item.precision} weights over "
        f"{found.shape.devices} devices are {found.weights / gib:.1f} GiB on the fullest, with "
        f"activations, buffers and contexts {found.used / gib:.1f} GiB; there are "
        f"{found.budget / gib:.1f} GiB ({found.device / gib:.2f} x {found.shape.utilization:g}), so "
        + (
            f"{(found.used - found.budget) / gib:.1f} GiB are missing"
            if found.headroom <= 0
            else f"{found.headroom / gib:.1f} GiB are left for the cache, {found.tokens} tokens"
        )
    )
