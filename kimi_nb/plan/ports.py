"""Which port each listener of an engine has: the one place where ports are computed.

Plans, bundles, rules, pictures and stand-ins ask here; tests/plan/test_golden.py holds the result
against the documents' own commands.

>>> kv(36000, rank=2, world=4)
range(36008, 36012)
>>> kv(36000, rank=0, world=1, ranks=16)
range(36000, 36016)
>>> side_channel(5600, rank=3)
range(5603, 5604)
>>> ascend_random(16)
range(20000, 36000)
"""

from __future__ import annotations

HTTP = 8000  # vLLM's own default
MASTER = 29501  # vLLM's own default
RPC = 29550  # vLLM's own default
SIDE_CHANNEL = 5600  # vLLM's own default
STORE_MASTER = 50051  # Mooncake's own default, as the next two: its master's calls
STORE_METRICS = 9003  # its master's metrics
STORE_SERVICE = 8080  # its store service
LAST = 65535
_STORE = "MooncakeStoreConnector"
_KV_STEP, _KV_GROUPS = 100, 64
_RANDOM_FIRST, _RANDOM_EACH = 20000, 1000


def kv_base(first: int, group: int) -> int:
    """Return the kv_port of a group, counted over all roles.

    Each group has nodes of its own, so equal ports would not collide; different ones make logs
    readable. They repeat after 64 groups to stay below 65536.
    """
    return first + _KV_STEP * (group % _KV_GROUPS)


def kv(base: int, rank: int, world: int, ranks: int = 1) -> range:
    """Return where the KV cache connector of a process listens.

    Mooncake listens at kv_port + data parallel rank x ``world``, one port for each device (tp x pp)
    of each of the ``ranks`` that the process runs.
    """
    first = base + rank * world
    return range(first, first + ranks * world)


def side_channel(base: int, rank: int, ranks: int = 1) -> range:
    """Return where NIXL shakes hands: vLLM adds the data parallel rank to the base port."""
    return range(base + rank, base + rank + ranks)


def ascend_random(devices: int) -> range:
    """Return the range from which the Ascend transport takes random ports, by NPUs of a node.

    Source: vllm-ascend issues 6455 and 4725.
    """
    return range(_RANDOM_FIRST, _RANDOM_FIRST + devices * _RANDOM_EACH)


def idle(
    kind: str, connector: str | None, per_rank: bool, nodes: int, spans: bool, single: bool = True
) -> str:
    """Return why nothing of a role listens at a port that the user sets, "" if something does.

    ``kind`` is kv, side_channel, rpc or master; ``connector`` that of the KV cache, ``nodes`` those
    of a group, ``spans`` whether one rank needs several nodes, and ``single`` whether it is the
    only one.
    """
    alone = (
        "a rank over several nodes meets at master-port"
        if spans
        else "this is one process of one node (nodes=2 would make two)"
    )
    takes = {
        "kv": (
            bool(connector) and not str(connector).startswith("Nixl"),
            _no_connector("Mooncake", connector, "side-channel-port"),
        ),
        "side_channel": (
            str(connector).startswith(("Nixl", "Multi")),
            _no_connector("NIXL", connector, "kv-port"),
        ),
        "rpc": (
            (per_rank or nodes > 1) and not (spans and single),
            f"the processes of one data parallel group meet there: {alone}",
        ),
        "master": (
            spans,
            "one engine over several nodes meets there: here each rank has room on one node",
        ),
    }
    if kind == "kv" and connector == _STORE:
        return "clients of a store listen at ports that they choose themselves"
    used, why = takes.get(kind, (True, ""))
    return "" if used else why


def _no_connector(wanted: str, connector: str | None, other: str) -> str:
    if not connector:
        return (
            f"only a connector such as {wanted} listens there, and none is set: layout pd, or "
            "kv-transfer-config.kv_connector, brings one"
        )
    return f"{wanted} listens there, this is {connector}; its port is {other}"
