"""The words and variables of a rendered command of vllm-project/recipes.

For example::

    shape = Shape(page, rendering, profile, known)
    words(shape, "")  # of a mixed engine; "prefill" and "decode" of a pool
    environment(shape, "")

The order of the layers is the generator's: what is always given, the weights, the strategy, the
page's changes of it, the hardware, the features, the KV store. Of a flag given twice the last wins.
"""

from __future__ import annotations

from kimi_nb.upstream.recipe_choices import by_hardware
from kimi_nb.upstream.recipe_pages import Feature, Scalar
from kimi_nb.upstream.recipe_shape import Shape

# Only for nodes whose NVLink reaches other nodes.
_NVLINK_ONLY = (
    "VLLM_USE_NCCL_SYMM_MEM",
    "NCCL_CUMEM_ENABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NVLS_ENABLE",
    "UCX_NET_DEVICES",
)
_NVLINK_NODES = ("gb200", "gb300")
_TP = "--tensor-parallel-size"
_DP, _DP_LOCAL = "--data-parallel-size", "--data-parallel-size-local"


def words(shape: Shape, role: str, rank: int = 0) -> list[Scalar]:
    """Return the words after ``vllm serve MODEL`` of a pool, or of a node of an engine.

    ``role`` is "" for an engine that does both, ``rank`` the index of its node.
    """
    out: list[Scalar] = [*shape.page.model.base_args]
    for one in shape.of_weights():
        out += one.extra_args
    if shape.strategy.deploy_type != "pd_cluster":
        out += shape.strategy.vllm_args
    elif role:
        out += shape.pool(role)[1].vllm_args
    out += _parallel(shape, role, rank)
    change = shape.pool(role)[0] if role else shape.change
    out += [*change.extra_args, *change.vllm_args]
    for one in (*shape.by_generation(), *shape.by_hardware(role)):
        out += one.extra_args
    for name in _features(shape):
        out += _feature(shape, name)
    if shape.store:
        out += shape.store.vllm.vllm_args
    return _last_wins([word for word in out if word])


def _last_wins(given: list[Scalar]) -> list[Scalar]:
    """Keep of each flag the last occurrence with its value."""
    units: list[list[Scalar]] = []
    for word in given:
        begins = isinstance(word, str) and word.startswith("-")
        opened = bool(units) and len(units[-1]) == 1 and _is_flag(units[-1][0])
        if begins or not opened:
            units.append([word])
        else:
            units[-1].append(word)
    last = {unit[0]: at for at, unit in enumerate(units) if _is_flag(unit[0])}
    return [
        word
        for at, unit in enumerate(units)
        if not _is_flag(unit[0]) or last[unit[0]] == at
        for word in unit
    ]


def _is_flag(word: Scalar) -> bool:
    return isinstance(word, str) and word.startswith("-")


def _parallel(shape: Shape, role: str, rank: int) -> list[Scalar]:
    """Return the words that lay an engine out."""
    strategy = shape.strategy
    if strategy.deploy_type == "pd_cluster":
        return _pool(shape, role) if role else []
    flag = strategy.parallel_flag or _TP
    if not shape.spans:
        return [flag, str(_on_one_node(shape))]
    nodes, devices = shape.rendering.nodes, shape.devices
    several = shape.store is not None and shape.instances > 1
    head = "$VLLM_INSTANCE_1" if several else "$HEAD_IP"
    if flag == _DP:
        out = [_DP, str(devices * nodes), _DP_LOCAL, str(devices), "--data-parallel-address", head]
        start = rank * _local_ranks(shape)
        return [*out, *(("--data-parallel-start-rank", str(start)) if rank else ())]
    if strategy.parallelism == "tp_dp":
        out = [_TP, str(devices), _DP, str(nodes), _DP_LOCAL, "1", "--data-parallel-address", head]
        return [*out, *(("--data-parallel-start-rank", str(rank)) if rank else ())]
    if strategy.parallelism == "tp_pp":
        sizes = [_TP, str(devices), "--pipeline-parallel-size", str(nodes)]
    else:
        sizes = [_TP, str(devices * nodes)]
    return [*sizes, *_nodes(nodes, rank, head)]


def _nodes(nodes: int, rank: int, head: str) -> list[str]:
    out = ["--nnodes", str(nodes), "--node-rank", str(rank), "--master-addr", head]
    return [*out, "--headless"] if rank else out


def _local_ranks(shape: Shape) -> int:
    """Return the data parallel ranks of a node, which a page may change."""
    change = shape.change
    given = [*change.vllm_args, *change.extra_args]
    layers = (
        shape.generation(change.hardware_overrides),
        change.hardware_overrides.get(shape.rendering.hardware),
    )
    for one in layers:
        given += one.extra_args if one else []
    for word, value in zip(reversed(given[:-1]), reversed(given[1:]), strict=True):
        if word == _DP_LOCAL and str(value).isdecimal():
            return int(str(value)[:6])
    return shape.devices


def _on_one_node(shape: Shape) -> int:
    """Return the size of the parallel group of an engine on one node."""
    devices = shape.devices
    if shape.rendering.serving != "single_node_tp":
        return devices
    for given in (shape.variant.tp, shape.change.tp):
        if isinstance(given, dict):
            given = by_hardware(given, shape.profile, shape.rendering.hardware)
        if given:
            return given if shape.profile.generation == "cpu" else min(given, devices)
    held = shape.profile.vram_gb / devices if devices else 0
    wanted = shape.variant.vram_minimum_gb
    return 1 if wanted and 0 < wanted <= held else devices


def _pool(shape: Shape, role: str) -> list[Scalar]:
    """Return the words that lay out the first node of a pool."""
    own, usual = shape.pool(role)
    nodes, devices, upper = shape.pool_nodes(role), shape.devices, role.upper()
    head = f"${upper}_NODE_1"
    mode = shape.offered_parallelism(role)
    if mode == "dep":
        tp = own.tp or usual.tp
        local = max(1, devices // (tp or 1))
        sizes = [_TP, str(tp)] if tp else []
        sizes += [_DP, str(max(1, nodes) * local), _DP_LOCAL, str(local)]
        sizes += ["--data-parallel-start-rank", "0", "--data-parallel-address", head]
        sizes += ["--data-parallel-rpc-port", f"${upper}_DP_RPC_PORT"]
        balance = ["--data-parallel-hybrid-lb"] if nodes > 1 else []
        return [*sizes, *balance, "--enable-expert-parallel"]
    flag = own.parallel_flag or usual.parallel_flag or shape.strategy.parallel_flag or _TP
    size = nodes * devices if nodes else devices // 2
    expert = ["--enable-expert-parallel"] if mode == "tep" else []
    return [flag, str(max(1, size)), *expert, *(_nodes(nodes, 0, head) if nodes > 1 else ())]


def _features(shape: Shape) -> list[str]:
    """Return the features that are on without a choice of the reader."""
    page = shape.page
    off = {
        *page.opt_in_features,
        *page.hardware_opt_in_features.get(shape.rendering.hardware, ()),
    } - set(shape.variant.default_modes)
    return [name for name in page.features if name not in off]


def _feature(shape: Shape, name: str) -> list[Scalar]:
    """Return the words of a feature, none where it does not apply."""
    feature = shape.page.features[name]
    if feature.strategies and shape.rendering.serving not in feature.strategies:
        return []
    if shape.store and feature.companion.get("command"):
        return []
    if feature.modes is not None:
        return _mode(shape, name, feature)
    changed = shape.generation(feature.hardware_overrides)
    if changed is not None and changed.args is not None:
        return changed.args
    return feature.args or []


def _mode(shape: Shape, name: str, feature: Feature) -> list[Scalar]:
    """Return the words of the mode that holds for these weights and this hardware."""
    modes, hardware = feature.modes or {}, shape.rendering.hardware
    allowed = [
        key
        for key, mode in modes.items()
        if (not mode.variants or shape.rendering.variant in mode.variants)
        and "unsupported"
        not in (mode.hardware.get(shape.profile.own_generation), mode.hardware.get(hardware))
    ]
    if not allowed:
        return []
    wanted = (shape.variant.default_modes.get(name), feature.default_mode)
    mode = modes[next((key for key in wanted if key in allowed), allowed[0])]
    changed = by_hardware(mode.hardware_overrides, shape.profile, hardware)
    if changed is not None and changed.args is not None:
        return changed.args
    return mode.args or []


def environment(shape: Shape, role: str) -> dict[str, Scalar]:
    """Return the variables of a pool, or of an engine if ``role`` is ""."""
    out: dict[str, Scalar] = {**shape.page.model.base_env}
    for one in shape.of_weights():
        out |= one.extra_env
    if shape.strategy.deploy_type != "pd_cluster":
        out |= shape.strategy.env
    elif role:
        out |= shape.pool(role)[1].env
    if shape.store:
        out |= shape.store.vllm.env
    if role:
        out |= _visible(shape, role)
    out |= shape.change.env
    out |= shape.pool(role)[0].env if role else shape.change.extra_env
    for one in (*shape.by_generation(), *shape.by_hardware(role)):
        out |= one.extra_env
    if shape.strategy.deploy_type == "pd_cluster" and shape.rendering.hardware not in _NVLINK_NODES:
        out = {name: value for name, value in out.items() if name not in _NVLINK_ONLY}
    return out


def _visible(shape: Shape, role: str) -> dict[str, Scalar]:
    """Return the devices of a pool's node, and its interfaces if it spans nodes."""
    nodes, devices = shape.pool_nodes(role), shape.devices
    first, last = 0, devices
    if not nodes:
        half = devices // 2
        if not half:
            return {}
        first, last = (0, half) if role == "prefill" else (half, devices)
    out: dict[str, Scalar] = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(first, last)))}
    if nodes >= 2:
        out |= {"GLOO_SOCKET_IFNAME": "$IFACE_NAME", "NCCL_SOCKET_IFNAME": "$IFACE_NAME"}
    return out
