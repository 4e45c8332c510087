"""``--set key=value``: the last layer, in the words of the plan and of the engine.

    max-num-seqs=32                      a flag, for every role
    decode.max-num-seqs=32               the same for one role
    speculative-config.num_speculative_tokens=1
    env.HCCL_BUFFSIZE=1200               a variable
    prefill.groups=3  decode.dp=64       the shape: groups, nodes, dp, tp
    port=8000  prefill.kv-port=37000     ports: port, rpc-port, kv-port, side-channel-port,
                                         master-port
    router=vllm-router  router.port=1998
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import yaml

from kimi_nb import fields
from kimi_nb.errors import ParameterError, choice
from kimi_nb.settings import flag_name

_SHAPE = {"groups": "groups", "nodes": "nodes", "dp": "dp", "tp": "tp",
          "data-parallel-size": "dp", "tensor-parallel-size": "tp"}
_PORTS = {"port": "http", "vllm-start-port": "http", "rpc-port": "rpc",
          "data-parallel-rpc-port": "rpc", "kv-port": "kv", "side-channel-port": "side_channel",
          "master-port": "master"}
# What the plan works out itself: setting it by hand would contradict the rest.
_DERIVED = ("data-parallel-size-local", "data-parallel-start-rank", "data-parallel-rank",
            "data-parallel-address", "headless", "nnodes", "node-rank", "master-addr", "host")


@dataclass
class Overrides:
    """What the person set, sorted by what it is. ``shape`` and ``ports``: by role; ``settings``:
    by role, "" for all."""

    shape: dict[str, dict[str, int]] = field(default_factory=dict)
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    settings: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    router: str | None = None
    router_port: int | None = None

    def of(self, role: str) -> list[dict[str, dict[str, Any]]]:
        """The settings for one role: those for all roles, then its own."""
        return [self.settings[key] for key in ("", role) if key in self.settings]


def parse(pairs: tuple[str, ...] | list[str], roles: tuple[str, ...]) -> Overrides:
    """``key=value`` texts, later ones win. Raises ParameterError naming the pair."""
    out = Overrides()
    for pair in pairs:
        key, sign, text = pair.partition("=")
        key, where = key.strip(), f"--set {pair}"
        if not sign or not key:
            raise ParameterError(f"{where}: key=value is wanted, such as max-num-seqs=32.")
        head, dot, rest = key.partition(".")
        role = head if head in fields.ROLES and dot else ""
        name = rest if role else key
        if role and role not in roles:
            raise ParameterError(f"{where}: " + choice("role of this layout", role, roles))
        _set(out, role, name, text, where, roles)
    return out


def _set(out: Overrides, role: str, name: str, text: str, where: str,
         roles: tuple[str, ...]) -> None:
    plain = flag_name(name)
    if name in ("router", "router.kind"):
        if text not in ("upstream", "vllm-router"):
            raise ParameterError(f"{where}: " + choice("router", text, ["upstream", "vllm-router"]))
        out.router = text
    elif name == "router.port":
        out.router_port = _port(text, where)
    elif plain in _SHAPE or plain in _PORTS:
        if not role and len(roles) > 1:
            raise ParameterError(f"{where}: this layout has the roles {' and '.join(roles)}; say "
                                 f"which one, such as {roles[0]}.{name}={text}.")
        table, key = (out.shape, _SHAPE[plain]) if plain in _SHAPE else (out.ports, _PORTS[plain])
        value = _count(text, where) if plain in _SHAPE else _port(text, where)
        table.setdefault(role or roles[0], {})[key] = value
    elif name.startswith("env."):
        _settings(out, role)["env"][name[4:]] = text
    elif plain.partition(".")[0] in _DERIVED:
        raise ParameterError(f"{where}: the plan works out --{plain} from the nodes, dp and tp; "
                             "change those (nodes=, dp=, tp=) or the site file.")
    else:
        _settings(out, role)["flags"][plain] = _value(text, where)


def _settings(out: Overrides, role: str) -> dict[str, dict[str, Any]]:
    return out.settings.setdefault(role, {"flags": {}, "env": {}})


def _count(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ParameterError(f"{where}: a whole number of 1 or more is wanted, found {text!r}.")
    return int(text)


def _port(text: str, where: str) -> int:
    value = _count(text, where)
    if value > 65535:
        raise ParameterError(f"{where}: a port is 1 to 65535, found {value}.")
    return value


def _value(text: str, where: str) -> Any:
    """A value as YAML would read it, except that JSON is JSON."""
    if text[:1] in "{[" and text:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ParameterError(f"{where}: not JSON: {error.msg} at character {error.pos + 1}."
                                 ) from None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, str | int | float | bool) or value is None else text
