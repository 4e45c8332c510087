"""Parse ``--set key=value``, the topmost layer of settings.

The keys are those of the plan and of the engine::

    max-num-seqs=32                      a flag, for every role
    decode.max-num-seqs=32               the same for one role
    speculative-config.num_speculative_tokens=1
                                         a key of a JSON flag
    env.HCCL_BUFFSIZE=1200               an environment variable
    prefill.groups=3  decode.dp=64       the layout: groups, nodes, dp, tp, pp
    port=8000  prefill.kv-port=37000     ports: port, rpc-port, kv-port, side-channel-port,
                                         master-port
    router=vllm-router  router.port=1998

>>> parse(["decode.dp=64"], ("prefill", "decode")).shape
{'decode': {'dp': 64}}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.params import fields
from kimi_nb.params.settings import flag_name, flattened

# Far more than any key of an engine has; more could be neither shown nor written as JSON.
_LONGEST, _DEEPEST = 300, 20
_SHAPE = {
    "groups": "groups",
    "nodes": "nodes",
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "data-parallel-size": "dp",
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
}
_PORTS = {
    "port": "http",
    "vllm-start-port": "http",
    "rpc-port": "rpc",
    "data-parallel-rpc-port": "rpc",
    "kv-port": "kv",
    "side-channel-port": "side_channel",
    "master-port": "master",
}
# Flags that the plan derives itself: setting them by hand would contradict the rest.
DERIVED = {
    **dict.fromkeys(
        ("tensor-parallel-size", "data-parallel-size", "pipeline-parallel-size"), "dp=, tp= and pp="
    ),
    **dict.fromkeys(
        (
            "data-parallel-size-local",
            "data-parallel-start-rank",
            "data-parallel-rank",
            "data-parallel-address",
            "headless",
            "nnodes",
            "node-rank",
            "master-addr",
        ),
        "nodes=, dp=, tp= or the site file",
    ),
    **dict.fromkeys(
        ("port", "data-parallel-rpc-port", "master-port"), "port=, rpc-port= or master-port="
    ),
    "host": "the node's address in the site file",
    **dict.fromkeys(
        (
            "kv-transfer-config.kv_port",
            "kv-transfer-config.engine_id",
            "kv-transfer-config.kv_role",
            "kv-transfer-config.kv_connector_extra_config.prefill",
            "kv-transfer-config.kv_connector_extra_config.decode",
        ),
        "kv-port=, dp= and tp=",
    ),
}
# Ways to lay out engines that the planner does not support; its device counts would be wrong.
_UNPLACED = (
    "data-parallel-external-lb",
    "data-parallel-backend",
    "api-server-count",
    "distributed-executor-backend",
)
_OTHER = {
    "model": "the recipe names the weights",
    "help": "it would end the engine",
    "config": "a file of flags would bypass the plan",
    "api-key": "secrets are never written down; name one with api_key_env in the site file",
}


# Variables that the plan sets for each rank or node; a common value would be wrong or ignored.
_PLACED = (
    "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HCCL_IF_IP",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_HOST_IP",
)


def is_derived(name: str) -> bool:
    """Return whether the plan works out a flag (or a key of one) by itself."""
    return any(name == derived or name.startswith(f"{derived}.") for derived in DERIVED)


def refuse_derived(name: str, where: str) -> None:
    """Raise ParameterError for a flag that the plan derives itself or that it must not have."""
    top = name.partition(".")[0]
    for derived, instead in DERIVED.items():
        if name == derived or name.startswith(f"{derived}."):
            raise ParameterError(f"{where}: the plan works out --{derived}; change {instead}.")
    if top in _UNPLACED:
        raise ParameterError(
            f"{where}: --{top} is not planned here: devices and ports are "
            "counted for one process on each node, or for each rank."
        )
    if top in _OTHER:
        raise ParameterError(f"{where}: --{top} is not set by hand: {_OTHER[top]}.")


@dataclass
class Overrides:
    """The user's overrides, sorted by kind.

    Attributes:
        shape: Groups, nodes, dp, tp and pp by role.
        ports: First ports by role.
        settings: In the order given: (role or "" for all, the pair as given, flags and
            variables).
    """

    shape: dict[str, dict[str, int]] = field(default_factory=dict)
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    settings: list[tuple[str, str, dict[str, dict[str, Any]]]] = field(default_factory=list)
    router: str | None = None
    router_port: int | None = None

    def of(self, role: str) -> list[tuple[str, dict[str, dict[str, Any]]]]:
        """Return (pair as given, its setting) for one role: those for all roles, then its own."""
        return [
            (where, given)
            for wanted in ("", role)
            for owner, where, given in self.settings
            if owner == wanted
        ]


def parse(pairs: tuple[str, ...] | list[str], roles: tuple[str, ...]) -> Overrides:
    """Parse ``key=value`` pairs, of which later ones win.

    Raises ParameterError naming the pair.
    """
    out = Overrides()
    for pair in pairs:
        key, sign, text = pair.partition("=")
        key, where = key.strip(), f"--set {pair[:80]}"
        if not sign or not key:
            raise ParameterError(f"{where}: key=value is wanted, such as max-num-seqs=32.")
        if len(key) > _LONGEST or key.count(".") > _DEEPEST:
            raise ParameterError(
                f"{where}: a key of at most {_LONGEST} characters and {_DEEPEST} dots is wanted, "
                f"found {len(key):,} and {key.count('.'):,}."
            )
        head, dot, rest = key.partition(".")
        role = head if head in fields.ROLES and dot else ""
        name = rest if role else key
        if role and role not in roles:
            raise ParameterError(f"{where}: " + choice("role of this layout", role, roles))
        _set(out, role, name, text, where, roles)
    return out


def _set(
    out: Overrides, role: str, name: str, text: str, where: str, roles: tuple[str, ...]
) -> None:
    plain = flag_name(name)
    if name in ("router", "router.kind"):
        if text not in ("upstream", "vllm-router"):
            raise ParameterError(f"{where}: " + choice("router", text, ["upstream", "vllm-router"]))
        out.router = text
    elif name == "router.port":
        out.router_port = _port(text, where)
    elif plain in _SHAPE or plain in _PORTS:
        if not role and len(roles) > 1:
            raise ParameterError(
                f"{where}: this layout has the roles {' and '.join(roles)}; say "
                f"which one, such as {roles[0]}.{name}={text[:40]}."
            )
        table, key = (out.shape, _SHAPE[plain]) if plain in _SHAPE else (out.ports, _PORTS[plain])
        value = _count(text, where) if plain in _SHAPE else _port(text, where)
        table.setdefault(role or roles[0], {})[key] = value
    elif name.startswith("env.") and name[4:] in _PLACED:
        raise ParameterError(
            f"{where}: the plan sets {name[4:]} for each rank; change the site file, dp= or tp=."
        )
    elif name.startswith("env."):
        if not text:
            raise ParameterError(f"{where}: a value is wanted after '='.")
        out.settings.append((role, where, {"env": {name[4:]: text}}))
    else:
        refuse_derived(plain, where)
        value = _value(text, where)
        for leaf in flattened(plain, value):
            refuse_derived(leaf, where)  # a whole table may contain a flag that the plan derives
        out.settings.append((role, where, {"flags": {plain: value}}))


def _count(text: str, where: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise ParameterError(
            f"{where}: a whole number of 1 or more is wanted, found {text[:40]!r}."
        )
    return int(text)


def _port(text: str, where: str) -> int:
    value = _count(text, where)
    if value > 65535:
        raise ParameterError(f"{where}: a port is 1 to 65535, found {value}.")
    return value


def _value(text: str, where: str) -> Any:
    """Return true, false, null, a number or JSON as a value, and any other text as it is.

    YAML is not used, because it would convert 0123, 12:30 or yes.
    """
    if not text.strip():
        raise ParameterError(f"{where}: a value is wanted after '='; null takes the flag away.")
    plain = {"true": True, "false": False, "null": None}
    if text in plain:
        return plain[text]
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,18})", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,18}\.[0-9]{1,18}", text):
        return float(text)
    if text[0] in "{[":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ParameterError(f"{where}: not JSON: {str(error)[:120]}.") from None
    return text
