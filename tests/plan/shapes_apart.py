"""What the engines of a shape must be told, or why it cannot be served: arithmetic of its own.

It knows the parameter files and nothing of the planner, so that both can be wrong only apart:
the sizes of a role, the devices of a node, and what vLLM, Mooncake and NIXL do with their flags.

>>> ask = asked(Shape(("k2.5", "a3", "pd", "docker", "default"), "0.22.1rc1", 4, ("decode.tp=2",)))
>>> refusals(ask)
['decode: dp 32 tp 2 need more than 16 devices']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from kimi_nb.params import load

# What vLLM takes where a flag is not given, and what the router of this project does.
HTTP, RPC, MASTER, FRONT = 8000, 29550, 29501, 1999
HYBRID = "data-parallel-hybrid-lb"
# The first version of a flag that a recipe of the CPU gives and an older vLLM does not know.
LANGUAGE_MODEL_ONLY = ">=0.17.0"


@dataclass(frozen=True)
class Shape:
    """A request: a row of `kimi-nb list`, a version, the nodes of its site, and --set pairs."""

    row: tuple[str, str, str, str, str]
    version: str
    nodes: int
    pairs: tuple[str, ...]

    @property
    def site(self) -> str:
        """The example site that its nodes come from."""
        _, hardware, _, variant, _ = self.row
        return f"{hardware}-slurm" if variant == "slurm" else hardware


@dataclass(frozen=True)
class Role:
    """The size of a role, and the ports that its recipe and the user name.

    ``there`` are the devices of a node; with ``hybrid`` every node answers for its own ranks.
    """

    name: str
    groups: int
    nodes: int
    dp: int
    tp: int
    pp: int
    hybrid: bool
    there: int
    ports: dict[str, int]

    @property
    def wide(self) -> int:
        """The devices of one rank: its stages have tp each."""
        return self.tp * self.pp

    @property
    def spans(self) -> bool:
        """Whether one rank has its devices on several nodes."""
        return self.wide > self.there

    @property
    def doors(self) -> int:
        """How many APIs it has whose requests nobody hands on."""
        return self.groups * (self.nodes if self.hybrid else 1)


@dataclass(frozen=True)
class Asked:
    """A shape with its parameter files read."""

    shape: Shape
    recipe: Any
    roles: tuple[Role, ...]
    given: dict[str, set[str]]
    devices: int
    visible: str
    heads: int
    connector: str
    router: str | None
    front: int | None
    address: list[str]
    name: list[str]


@dataclass(frozen=True)
class Engine:
    """What one process of vLLM must be told; ``flags`` are those of its shape, all of them."""

    role: str
    group: int
    node: int
    rank: int
    ranks: int
    devices: tuple[int, ...]
    http: int | None
    flags: dict[str, str]
    env: dict[str, str] = field(default_factory=dict)
    transfer: dict[str, Any] | None = None
    listens: tuple[int, ...] = ()


# The request ------------------------------------------------------------------------------------


def recipe_of(row: tuple[str, str, str, str, str]) -> Any:
    model, hardware, layout, variant, _ = row
    like = load.hardware(hardware).recipes_of
    (found,) = [
        recipe
        for recipe in load.model(model).recipes
        if (recipe.hardware, recipe.layout, recipe.variant) == (like, layout, variant)
    ]
    return found


def connector_of(recipe: Any, role: str) -> str:
    for table in (recipe.roles[role].settings, recipe.settings):
        for name, value in table.flags.items():
            if name == "kv-transfer-config.kv_connector":
                return str(value.value)
            if name == "kv-transfer-config":
                return str(getattr(value, "value", value)["kv_connector"])
    return ""


def asked(shape: Shape) -> Asked:
    """Read the files of a shape: the recipe's sizes, under the scenario's, under the user's."""
    model, hardware, _, _, scenario = shape.row
    chip, recipe = load.hardware(hardware), recipe_of(shape.row)
    changes = recipe.scenarios[scenario] if scenario != "default" else None
    words = dict(pair.split("=", 1) for pair in shape.pairs)
    roles, given = [], {}
    for name, base in recipe.roles.items():
        size = {key: getattr(base, key) for key in ("groups", "nodes", "dp", "tp", "pp")}
        hybrid = base.settings.flags.get(HYBRID) is True
        ports = {key: value for key, value in base.ports.model_dump().items() if value}
        if changes and name in changes.roles:
            over = changes.roles[name]
            size |= {key: getattr(over, key) for key in size if getattr(over, key)}
        set_here = set()
        for pair, value in words.items():
            key = pair.removeprefix(f"{name}.") if len(recipe.roles) > 1 else pair
            if key == pair and len(recipe.roles) > 1:
                continue
            if key in size:
                size[key] = int(value)
            elif key == HYBRID:
                hybrid = value == "true"
            elif key in PORT_NAMES:
                ports[PORT_NAMES[key]] = int(value)
                set_here.add(PORT_NAMES[key])
        there = chip.devices.count
        roles.append(Role(name, **size, hybrid=hybrid, there=there, ports=ports))
        given[name] = set_here
    router = words.get("router") or recipe.router or (changes.router if changes else None)
    port = words.get("router.port") or recipe.router_port or FRONT
    first = roles[0].name
    return Asked(
        shape=shape,
        recipe=recipe,
        roles=tuple(roles),
        given=given,
        devices=chip.devices.count,
        visible=chip.devices.visible,
        heads=load.model(model).architecture["heads"],
        connector=connector_of(recipe, first),
        router=router,
        front=int(port) if router else None,
        address=[f"192.0.2.{number + 11}" for number in range(shape.nodes)],
        name=[f"node-{number}" for number in range(shape.nodes)],
    )


PORT_NAMES = {
    "port": "http",
    "rpc-port": "rpc",
    "kv-port": "kv",
    "side-channel-port": "side_channel",
    "master-port": "master",
}


# What cannot be ---------------------------------------------------------------------------------


def refusals(ask: Asked) -> list[str]:
    """Return every reason why the shape cannot be served; none for one that can."""
    found = too_old(ask.shape.row, ask.shape.version)
    for role in ask.roles:
        found += _misfits(ask, role)
        found += _idle(ask, role)
    nodes = sum(role.groups * role.nodes for role in ask.roles)
    if nodes > ask.shape.nodes:
        found.append(f"{nodes} nodes of {ask.shape.nodes}")
    found += _wrong_router(ask)
    sizes = {role.name: role.tp for role in ask.roles}
    if ask.connector.startswith("Mooncake") and sizes["prefill"] < sizes["decode"]:
        found.append("Mooncake: decode has more tensor parallel ranks than prefill")
    if ask.recipe.jobs and ask.roles[0].groups > 1 and ask.roles[0].nodes > 1:
        found.append("one job has one group, or groups of one node")
    return found or _collisions(ask)


def too_old(row: tuple[str, str, str, str, str], version: str) -> list[str]:
    """Return what the vLLM of a version does not have: features, drafts, a flag."""
    model, _, _, _, scenario = row
    recipe, drafts, features = recipe_of(row), load.model(model).drafts, load.features()
    names = {*recipe.features, *(n for role in recipe.roles.values() for n in role.features)}
    if recipe.jobs and scenario == "default":
        names |= set(recipe.scenarios["optimised"].features)  # a job of its own serves it
    if scenario != "default":
        names |= set(recipe.scenarios[scenario].features)
        names -= set(recipe.scenarios[scenario].without)
    needs = {name: features[name].vllm for name in names}
    needs |= {name: drafts[name].vllm for name in names & set(drafts)}
    if model == "tiny-k2.5":
        needs["--language-model-only"] = LANGUAGE_MODEL_ONLY
    own = Version(Version(version).base_version)
    return [
        f"{name} needs vLLM {text}" for name, text in needs.items() if own not in SpecifierSet(text)
    ]


def _misfits(ask: Asked, role: Role) -> list[str]:
    found = []
    if ask.heads % role.tp:
        found.append(f"{role.name}: tp {role.tp} does not divide {ask.heads} heads")
    by_rank = ask.recipe.processes == "rank"
    if role.pp > 1 and by_rank:
        found.append(f"{role.name}: the launcher knows no stages")
    if role.pp > 1 and role.name == "decode" and ask.connector.startswith("Nixl"):
        found.append("decode: NIXL brings no cache to stages")
    if role.hybrid and (by_rank or role.nodes == 1 or role.spans):
        found.append(f"{role.name}: nodes that cannot answer for their own ranks")
    if role.spans:
        if by_rank:
            found.append(f"{role.name}: a rank of {role.wide} devices on a node of {ask.devices}")
        elif role.wide % ask.devices or role.nodes * ask.devices != role.dp * role.wide:
            found.append(f"{role.name}: {role.dp} x {role.wide} is not all of {role.nodes} nodes")
    elif role.dp % role.nodes:
        found.append(f"{role.name}: dp {role.dp} over {role.nodes} nodes")
    elif role.dp // role.nodes * role.wide > ask.devices:
        found.append(f"{role.name}: dp {role.dp} tp {role.tp} need more than {ask.devices} devices")
    return found


def _idle(ask: Asked, role: Role) -> list[str]:
    """Return the ports that the user set and at which nothing of this shape would listen."""
    meet = role.dp > 1 and (ask.recipe.processes == "rank" or role.nodes > 1)
    used = {
        "http": True,
        "rpc": meet,
        "master": role.spans,
        "kv": ask.connector.startswith("Mooncake"),
        "side_channel": ask.connector.startswith("Nixl"),
    }
    return [
        f"{role.name}: nothing listens at a {kind} port"
        for kind in sorted(ask.given[role.name])
        if not used[kind]
    ]


def _wrong_router(ask: Asked) -> list[str]:
    if len(ask.roles) > 1:
        return []
    set_port = any(pair.startswith("router.port=") for pair in ask.shape.pairs)
    if ask.router is None:
        return ["a port of no router"] if set_port else []
    if ask.router == "upstream":
        return ["the upstream proxy tells prefill from decode"]
    return ["a router before one API"] if ask.roles[0].doors == 1 else []


def _collisions(ask: Asked) -> list[str]:
    """Return the ports that two listeners of a node would take, and those that do not exist."""
    taken: dict[int, Counter[int]] = {}
    for engine in engines(ask):
        taken.setdefault(engine.node, Counter()).update(engine.listens)
    if ask.front is not None:
        taken[0][ask.front] += 1
    return [
        f"port {port} of {ask.name[node]}"
        for node, ports in taken.items()
        for port, times in ports.items()
        if times > 1 or port > 65535
    ]


# What is --------------------------------------------------------------------------------------


def engines(ask: Asked) -> list[Engine]:
    """Return every engine in order: roles, groups, nodes, ranks."""
    made: list[Engine] = []
    first = count = 0  # the first node of the next group; the groups so far, over all roles
    for role in ask.roles:
        for group in range(role.groups):
            for turn in range(role.nodes):
                made += _of_node(ask, role, group, count, first, turn)
            first += role.nodes
            count += 1
    return made


def _of_node(
    ask: Asked, role: Role, group: int, count: int, leader: int, turn: int
) -> Iterator[Engine]:
    """Yield the engines of one node, the ``turn``-th of its group."""
    node, here = leader + turn, role.dp // role.nodes
    if role.spans:
        yield _spanning(ask, role, group, count, leader, turn)
    elif ask.recipe.processes == "rank":
        for local in range(here):
            yield _one_rank(ask, role, group, count, leader, node, turn * here + local, local)
    else:
        yield _one_node(ask, role, group, count, leader, turn)


def _spanning(ask: Asked, role: Role, group: int, count: int, leader: int, turn: int) -> Engine:
    """Return one node's part of a rank that has devices on several: the first of all has the API.

    The ranks of a group lie one after the other, each on as many nodes.
    """
    node, head = leader + turn, turn == 0
    rank = turn * ask.devices // role.wide
    flags = _common(ask, role, node) | {
        "--nnodes": str(role.nodes),
        "--node-rank": str(turn),
        "--master-addr": ask.address[leader],
    }
    if "master" in role.ports:
        flags["--master-port"] = str(role.ports["master"])
    http = role.ports.get("http", HTTP)
    listens = (http, role.ports.get("master", MASTER)) if head else ()
    if role.dp > 1:
        rpc = role.ports.get("rpc", RPC)
        flags |= {
            "--data-parallel-size": str(role.dp),
            "--data-parallel-address": ask.address[leader],
            "--data-parallel-rpc-port": str(rpc),
        }
        listens += (rpc,) if head else ()
    return Engine(
        role=role.name,
        group=group,
        node=node,
        rank=rank,
        ranks=1,
        devices=tuple(range(ask.devices)),
        http=http if head else None,
        flags=flags if head else flags | {"--headless": ""},
        **_cache(ask, role, count, node, rank, 1, listens, turn * ask.devices),
    )


def _one_node(ask: Asked, role: Role, group: int, count: int, leader: int, turn: int) -> Engine:
    """Return the process that runs all ranks of one node; the followers of a group have no API.

    They have one where every node answers for its own ranks.
    """
    node, here, head = leader + turn, role.dp // role.nodes, turn == 0
    answers = head or role.hybrid
    flags = _common(ask, role, node)
    http = role.ports.get("http", HTTP)
    listens = [http] if answers else []
    if role.dp > 1:
        flags["--data-parallel-size"] = str(role.dp)
    if role.nodes > 1:
        rpc = role.ports.get("rpc", RPC)
        flags |= {
            "--data-parallel-size-local": str(here),
            "--data-parallel-address": ask.address[leader],
            "--data-parallel-rpc-port": str(rpc),
        }
        listens += [rpc] if head else []
    if not head:
        flags["--data-parallel-start-rank"] = str(turn * here)
    if not answers:
        flags["--headless"] = ""
    return Engine(
        role=role.name,
        group=group,
        node=node,
        rank=turn * here,
        ranks=here,
        devices=tuple(range(here * role.wide)),
        http=http if answers else None,
        flags=flags,
        **_cache(ask, role, count, node, turn * here, here, tuple(listens)),
    )


def _one_rank(
    ask: Asked, role: Role, group: int, count: int, leader: int, node: int, rank: int, local: int
) -> Engine:
    """Return the process of one rank: devices and HTTP port by its place on the node."""
    http = role.ports.get("http", HTTP) + local
    flags = _common(ask, role, node) | {"--port": str(http)}
    listens = [http]
    if role.dp > 1:
        rpc = role.ports.get("rpc", RPC)
        flags |= {
            "--data-parallel-size": str(role.dp),
            "--data-parallel-rank": str(rank),
            "--data-parallel-address": ask.address[leader],
            "--data-parallel-rpc-port": str(rpc),
        }
        listens += [rpc] if rank == 0 else []
    devices = tuple(range(local * role.tp, (local + 1) * role.tp))
    made = _cache(ask, role, count, node, rank, 1, tuple(listens))
    made["env"][ask.visible] = ",".join(map(str, devices))
    return Engine(
        role=role.name,
        group=group,
        node=node,
        rank=rank,
        ranks=1,
        devices=devices,
        http=http,
        flags=flags,
        **made,
    )


def _common(ask: Asked, role: Role, node: int) -> dict[str, str]:
    """Return the flags that do not depend on the rank: size, address and port of the server.

    Where a container publishes the port, the server inside listens everywhere at vLLM's own.
    """
    flags = {"--tensor-parallel-size": str(role.tp)}
    if role.pp > 1:
        flags["--pipeline-parallel-size"] = str(role.pp)
    if role.hybrid:
        flags[f"--{HYBRID}"] = ""
    alone = role.nodes == 1
    published = ask.recipe.bind == "all" and not ask.recipe.jobs and alone
    if ask.recipe.bind == "address" or (not alone and not ask.recipe.jobs):
        flags["--host"] = ask.address[node]
    if "http" in role.ports and not published:
        flags["--port"] = str(role.ports["http"])
    return flags


def _cache(
    ask: Asked,
    role: Role,
    count: int,
    node: int,
    rank: int,
    ranks: int,
    listens: tuple[int, ...],
    before: int | None = None,
) -> dict[str, Any]:
    """Return what belongs to the transfer of the KV cache, and all ports of the engine.

    Mooncake listens at kv_port + rank x tp, at one port for each device of a rank; the groups have
    steps of 100, as in the documents. NIXL listens at its port + rank. ``before`` are the devices of
    the group on nodes before this one, where a rank spans several.
    """
    out: dict[str, Any] = {"env": {}, "transfer": None, "listens": listens}
    kv_role = {"prefill": "kv_producer", "decode": "kv_consumer"}.get(role.name)
    if ask.connector.startswith("Mooncake"):
        base = role.ports["kv"] + 100 * count
        sizes = {one.name: {"dp_size": one.dp, "tp_size": one.tp} for one in ask.roles}
        out["transfer"] = {
            "kv_connector": ask.connector,
            "kv_role": kv_role,
            "kv_port": base,
            "engine_id": str(count),
            "kv_connector_extra_config": sizes,
        }
        first = base + (rank * role.wide if before is None else before)
        many = ranks * role.wide if before is None else ask.devices
        out["listens"] += tuple(range(first, first + many))
    elif ask.connector.startswith("Nixl"):
        port = role.ports["side_channel"]
        out["transfer"] = {"kv_connector": ask.connector, "kv_role": kv_role}
        out["env"] = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": ask.address[node],
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
        }
        out["listens"] += tuple(range(port + rank, port + rank + ranks))
    return out


def published(ask: Asked) -> bool:
    """Whether the engines are in containers with networks of their own."""
    alone = all(role.nodes == 1 for role in ask.roles)
    return ask.recipe.install == "docker" and ask.recipe.bind == "all" and alone


def workers(ask: Asked) -> list[tuple[str, str]]:
    """Return (role, host:port) of every engine with an API, in the router's order."""
    return [
        (engine.role, f"{ask.address[engine.node]}:{engine.http}")
        for engine in engines(ask)
        if engine.http is not None
    ]
