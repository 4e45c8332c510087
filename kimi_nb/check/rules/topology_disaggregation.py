"""Rules on prefill against decode, and on the proxy in front of both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import LOOPBACK, EngineView, Spot
from kimi_nb.core import data_files
from kimi_nb.show import spans


@rule(
    "topology/pd-sizes",
    ERROR,
    "The sizes in kv_connector_extra_config are those of the real groups.",
    "Write the dp and tp of the real prefill and decode groups on both sides.",
    "vllm-ascend: MooncakeConnector reads prefill and decode sizes from there",
)
def declared_sizes(d: Deployment) -> Iterator[Problem]:
    """Decode works out from the tensor parallel sizes from which port to fetch; wrong ones end in
    'Failed to connect', or in the cache of another rank. The connectors ask for dp_size, and use it
    nowhere: a wrong one is told as a warning."""
    real: dict[str, set[tuple[int | None, ...]]] = {}
    for group in d.groups():
        real.setdefault(group[0].role, set()).add((group[0].dp, group[0].tp, group[0].pp))
    for server in (group[0] for group in d.groups()):
        extra = server.table("kv-transfer-config").get("kv_connector_extra_config")
        if not isinstance(extra, dict):
            continue
        for role in ("prefill", "decode"):
            said = extra.get(role)
            sizes = real.get(role, set())
            if not isinstance(said, dict) or len(sizes) != 1 or None in next(iter(sizes)):
                continue
            dp, tp, pp = next(iter(sizes))
            for key, value in (("dp_size", dp), ("tp_size", tp), ("pp_size", pp)):
                if isinstance(said.get(key), int) and said[key] != value:
                    yield Problem(
                        server.of("kv-transfer-config"),
                        f"{role}.{key} is {said[key]}, the real {role} groups have {value}",
                        "",
                        WARNING if key == "dp_size" else "",
                    )
            if pp != 1 and "tp_size" in said and "pp_size" not in said:
                yield Problem(
                    server.of("kv-transfer-config"),
                    f"{role}.pp_size is not given, which means 1; the real {role} groups have {pp}",
                )


@rule(
    "topology/nixl-sizes",
    ERROR,
    "NIXL brings the cache to engines of one stage, whole or split over all devices.",
    "Give decode one pipeline stage; let decode context parallelism have the size of tp, or be off.",
    "vLLM 0.32.0: NixlBaseConnectorWorker, VllmConfig",
)
def nixl_takes_the_sizes(d: Deployment) -> Iterator[Problem]:
    """The decode worker refuses pipeline stages when it makes its connector, after the weights were
    loaded; the configuration check refuses a cache that is split over a part of the devices."""
    # What older versions say was not looked at.
    severity = "" if d.engine_known and not catalog.earlier(d.engine.vllm, "0.32.0") else WARNING
    for server, _ in d.profiles():
        if not any(str(one.get("kv_connector")).startswith("Nixl") for one in server.transfers):
            continue
        if server.role == "decode" and server.pp is not None and server.pp > 1:
            yield Problem(
                server.of("pipeline-parallel-size"),
                f"decode has {server.pp} pipeline stages: an engine that takes the cache over NIXL "
                "has one",
                "",
                severity,
            )
        dcp = server.number("decode-context-parallel-size") or 1
        whole = max(server.tp or 1, server.pcp or 1)
        if server.tp is not None and server.pcp is not None and dcp not in (1, whole):
            yield Problem(
                server.of("decode-context-parallel-size"),
                f"decode context parallel size {dcp:g} with NIXL: 1 or {whole} is allowed",
                "",
                severity,
            )


@rule(
    "topology/pd-tp",
    ERROR,
    "The tensor parallel size of prefill is a multiple of decode's.",
    "Choose tp for prefill at least as large as for decode, and divisible by it.",
    "vllm-ascend: MooncakeConnector, prefill tp >= decode tp",
)
def prefill_not_smaller(d: Deployment) -> Iterator[Problem]:
    """A decode rank fetches its part from one prefill rank after another; with a smaller prefill
    size there is none to fetch from."""
    mooncake = [
        server
        for server in d.servers
        if str(server.table("kv-transfer-config").get("kv_connector", "")).startswith("Mooncake")
    ]
    prefill = {server.tp: server for server in mooncake if server.role == "prefill"}
    decode = {server.tp: server for server in mooncake if server.role == "decode"}
    if not d.complete and (len(prefill) > 1 or len(decode) > 1):
        return  # alternatives of a document: which belong together is not known
    for tp, server in prefill.items():
        for other in decode:
            if tp and other and (tp < other or tp % other):
                yield Problem(
                    server.of("tensor-parallel-size"), f"prefill has tp {tp}, decode tp {other}"
                )


@rule(
    "topology/engine-id",
    ERROR,
    "Each group that moves cache has an engine_id of its own.",
    "Number the groups: prefill 0, 1, ..., then decode.",
    "vLLM KVTransferConfig.engine_id",
)
def own_engine_id(d: Deployment) -> Iterator[Problem]:
    """Two groups of one id are one and the same to the connector: decode fetches the cache of
    another request."""
    owner: dict[str, tuple[Any, EngineView]] = {}
    launched = {one.node for one in d.launchers}
    for group in d.groups():
        server = group[0]
        found = server.table("kv-transfer-config").get("engine_id")
        others = {
            str(name)
            for one in group
            if (name := one.table("kv-transfer-config").get("engine_id")) is not None
        }
        if len(others) > 1:
            yield Problem(
                server.of("kv-transfer-config"),
                f"one group has the engine_ids {', '.join(sorted(others))}",
                "Give every node of a group the same engine_id.",
                WARNING,
            )
        if found is None or not (server.certain or server.node in launched):
            continue
        key = server.group if server.group is not None else id(server)
        other = owner.setdefault(str(found), (key, server))
        if other[0] != key:
            yield Problem(
                server.of("kv-transfer-config"),
                f"engine_id {found} is also that of {other[1].spot.name}, another group",
            )


@rule(
    "topology/pd-roles",
    ERROR,
    "Where one role is split off, the other exists.",
    "Start both kv_producer and kv_consumer engines, or leave --kv-transfer-config out.",
    "vLLM: KV transfer roles",
)
def both_roles(d: Deployment) -> Iterator[Problem]:
    """Decode engines without prefill have nothing to fetch; prefill engines without decode answer
    one token."""
    have = {server.role for server in d.servers}
    for proxy in d.proxies:
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            listed = [worker for worker in proxy.workers if worker[0] == role]
            if (
                listed
                and role not in have
                and other in have
                and len(d.at_role(other)) > sum(worker[0] == other for worker in proxy.workers)
            ):
                yield Problem(
                    proxy.spot,
                    f"lists {len(listed)} {role} engines, and all engines "
                    f"here are {other} (kv_role)",
                )
    if d.complete and len(have & {"prefill", "decode"}) == 1:
        only = next(iter(have & {"prefill", "decode"}))
        server = d.at_role(only)[0]
        yield Problem(
            server.of("kv-transfer-config"),
            f"all engines are {only}, none is {'decode' if only == 'prefill' else 'prefill'}",
        )


# Connectors between two engines: what one makes, the other takes.
_PAIRED = re.compile(r"Mooncake(Hybrid|Layerwise)?Connector(V1)?|P2pNcclConnector|NixlConnector")


@rule(
    "topology/one-sided",
    WARNING,
    "Where several lists of options transfer the KV cache, one side makes it and one takes it.",
    "Write kv_consumer for the decode engines.",
    "vLLM: KV transfer roles; the connector's table names prefill and decode",
)
def one_sided(d: Deployment) -> Iterator[Problem]:
    """Prefill engines alone answer one token, and their blocks are never fetched."""
    roles: dict[str, list[tuple[str, EngineView]]] = {}
    for view in d.fragments:
        kv = view.table("kv-transfer-config")
        extra = kv.get("kv_connector_extra_config")
        both = isinstance(extra, dict) and {"prefill", "decode"} <= {*extra}
        if both and _PAIRED.fullmatch(str(kv.get("kv_connector") or "")):
            roles.setdefault(view.spot.file, []).append((str(kv.get("kv_role") or ""), view))
    for found in roles.values():
        names = {role for role, _ in found}
        if len(found) > 1 and len(names) == 1 and names <= {"kv_producer", "kv_consumer"}:
            role, view = found[0]
            yield Problem(view.of("kv-transfer-config"), f"all {len(found)} lists are {role}")


# The front door -------------------------------------------------------------------------


@rule(
    "topology/proxy-lists",
    ERROR,
    "A front door has as many ports as hosts.",
    "Write one host and one port for each rank, in the same order.",
    "load_balance_proxy_server_example.py",
)
def lists_match(d: Deployment) -> Iterator[Problem]:
    """The proxy pairs the two lists and stops when they differ in length."""
    for proxy in d.proxies:
        for stem in ("prefiller", "decoder", "encoder", "pd", "dp"):
            hosts = proxy.lists.get(f"{stem}-hosts", ())
            ports = proxy.lists.get(f"{stem}-ports", ())
            if (
                hosts
                and len(hosts) != len(ports)
                and not any(_several(word) for word in (*hosts, *ports))
            ):
                yield Problem(
                    proxy.spot, f"{len(hosts)} --{stem}-hosts and {len(ports)} --{stem}-ports"
                )


@rule(
    "topology/proxy-connector",
    ERROR,
    "A layer-wise connector has the layer-wise proxy, and no other has it.",
    "Run load_balance_proxy_layerwise_server_example.py for MooncakeLayerwiseConnector, and "
    "load_balance_proxy_server_example.py for the others.",
    "vllm-ascend: examples/disaggregated_prefill_v1; the layer-wise one serves /v1/metaserver",
    needs=("ascend",),
)
def proxy_fits_connector(d: Deployment) -> Iterator[Problem]:
    """Layer-wise prefill asks the proxy's metaserver where to send each layer; the other proxy has
    none, and every request waits until it times out."""
    known = data_files.facts("catalog/versions")["connectors"]
    layerwise = {
        known.get(str(kv.get("kv_connector")), {}).get("family") == "layerwise"
        for server in d.servers
        if server.role in ("prefill", "decode")
        for kv in server.transfers
        if known.get(str(kv.get("kv_connector")), {}).get("family") in (None, "layerwise")
        and not str(kv.get("kv_connector")).endswith("MultiConnector")
    }
    if len(layerwise) != 1:
        return
    wanted = layerwise.pop()
    for proxy in d.proxies:
        if proxy.kind == "upstream" and proxy.workers and proxy.layerwise != wanted:
            said = "a layer-wise connector" if wanted else "no layer-wise connector"
            yield Problem(
                proxy.spot,
                f"the engines have {said}, and this is the "
                f"{'layer-wise' if proxy.layerwise else 'other'} proxy",
            )


@rule(
    "topology/store-role",
    WARNING,
    "A store of cache that serves one kind of engine is read and written by it.",
    'Write "kv_role": "kv_both" where prefill and decode are one engine.',
    "vllm-ascend: AscendStoreConnector; a kv_producer only saves, a kv_consumer only loads",
)
def store_role(d: Deployment) -> Iterator[Problem]:
    """What is saved is never loaded again: every prompt is computed anew, and nobody says so."""
    known = data_files.facts("catalog/versions")["connectors"]
    roles = {server.role for server in d.servers}
    for server, _ in d.profiles():
        kv = server.table("kv-transfer-config")
        name = str(kv.get("kv_connector") or "")
        if (
            known.get(name, {}).get("family") == "store"
            and server.role in ("prefill", "decode")
            and not {"prefill", "decode"} <= roles
        ):
            yield Problem(
                server.of("kv-transfer-config"),
                f"{name} has kv_role {kv.get('kv_role')}, and no engine here has the other role",
            )


@rule(
    "topology/pd-names",
    WARNING,
    "Prefill and decode behind one proxy serve one name.",
    "Give both the same --served-model-name.",
    "load_balance_proxy_server_example.py hands the request on as it is",
)
def one_name(d: Deployment) -> Iterator[Problem]:
    """The proxy asks both sides for the name of the request: the one that does not serve it answers
    404."""
    names = {
        role: {name for server in d.at_role(role) if not server.headless for name in server.names}
        for role in ("prefill", "decode")
    }
    if any(fill_ins.holds(name) for found in names.values() for name in found):
        return
    if all(names.values()) and not names["prefill"] & names["decode"]:
        server = d.at_role("decode")[0]
        yield Problem(
            server.of("served-model-name"),
            f"decode serves {', '.join(sorted(names['decode']))}, "
            f"prefill {', '.join(sorted(names['prefill']))}",
        )


@rule(
    "topology/connector-variable",
    WARNING,
    "A variable of a KV connector goes with that connector.",
    "Take it out, or use the variable of the connector that runs.",
    "the connectors' sources by tag (kimi_nb/data/catalog/versions.yaml)",
    needs=("ascend", "version"),
)
def connector_variables(d: Deployment) -> Iterator[Problem]:
    """The time-out that it sets is the other connector's: the default holds, and cache of dead
    requests stays for minutes."""
    known = data_files.facts("catalog/versions")["connector_variables"]
    for server in d.environments():
        names = [str(kv.get("kv_connector") or "") for kv in server.transfers]
        for name in server.env:
            entry = known.get(name)
            if not entry or not names or any(one.startswith(entry["of"]) for one in names):
                continue
            if any(one.startswith(entry["also"]) for one in names) and not catalog.earlier(
                str(entry["last"]), d.engine.version
            ):
                continue
            yield Problem(
                server.env_at(name),
                f"{name} is of another connector than {', '.join(names)}",
                f"Use {entry['use']}." if names[0].startswith(entry["also"]) else "",
            )


def _several(word: str) -> bool:
    """Return whether a word may stand for several: an array, what a command prints, $HOSTS."""
    return bool(
        re.search(r"[@*\]]|\$\(|`|UNKNOWN", word)
        or re.search(r"(?i)\$\{?\w*(s|list|args|all|opts|options)\b", word)
    )


@rule(
    "topology/proxy",
    ERROR,
    "The front door lists every engine with an API, and no other.",
    "List each rank's host and port once.",
    "the launch commands of the same deployment",
)
def proxy_is_ranks(d: Deployment) -> Iterator[Problem]:
    """A rank that is not listed idles; one that does not exist takes requests and drops them."""
    given = {server.address for server in d.servers}
    for proxy in d.proxies:
        for role in ("prefill", "decode", "mixed"):
            listed = [(host, port) for kind, host, port in proxy.workers if kind == role]
            # kv_both engines are what the proxy makes of them.
            servers = [
                server
                for server in d.at_role(role) or d.at_role("mixed")
                if server.http_port is not None
            ]
            if (
                not listed
                or not servers
                or not d.at_role(role)
                or any(
                    not _numeric(server.address) or server.everywhere or not server.certain
                    for server in servers
                )
                or any(port is None or not _numeric(host) for host, port in listed)
            ):
                yield from _counts(proxy.spot, role, listed, servers, d)
                continue
            real = {(server.address, server.http_port) for server in servers}
            for missing in sorted(real - set(listed), key=str):
                yield Problem(proxy.spot, f"{role} engine {missing[0]}:{missing[1]} is not listed")
            elsewhere: dict[str, list[int]] = {}
            for host, port in dict.fromkeys(pair for pair in listed if pair not in real):
                if d.complete or host in given:
                    yield Problem(
                        proxy.spot, f"lists {role} {host}:{port}, where no engine listens"
                    )
                elif port is not None:
                    elsewhere.setdefault(host, []).append(port)
            for host, ports in elsewhere.items():
                yield Problem(
                    proxy.spot,
                    f"lists {role} {host}:{spans(sorted(ports))}, where no "
                    "engine listens in these files: they start none on that host",
                    "Check the folder of the whole bundle, or name the files of that host too.",
                    NOTE,
                )
            for pair in (pair for pair, count in Counter(listed).items() if count > 1):
                yield Problem(proxy.spot, f"lists {role} {pair[0]}:{pair[1]} twice", "", WARNING)


def _numeric(host: str) -> bool:
    """Return whether a host is an address that another node would write in the same way."""
    return bool(re.fullmatch(r"[0-9.]+|\[?[0-9a-fA-F:]+\]?", host)) and host not in LOOPBACK


def _counts(
    spot: Spot, role: str, listed: list[Any], servers: list[EngineView], d: Deployment
) -> Iterator[Problem]:
    """Report differences of ports and numbers of ranks, where addresses are not known."""
    if (
        not listed
        or not servers
        or any(port is None for _, port in listed)
        or any(server.http_port is None for server in servers)
    ):
        return
    ports = {server.http_port for server in servers}
    mine = {port for _, port in listed}
    for port in sorted(mine - ports):
        yield Problem(spot, f"lists {role} port {port}, at which no engine of these files listens")
    launched = {one.node for one in d.launchers}
    if len(d.proxies) == 1 and all(server.node in launched for server in servers):
        left = sorted(port for port in ports - mine if port is not None)
        if left:
            several = "s" * (len(left) > 1)
            yield Problem(
                spot, f"does not list {role} port{several} {spans(left)}, where engines listen"
            )
    if len(d.proxies) > 1 or not all(server.certain for server in servers):
        return
    if len({server.node for server in servers}) > 1 and len(servers) != len(listed):
        yield Problem(spot, f"lists {len(listed)} {role} engines, these files start {len(servers)}")
