"""Environment variables: read at this version, said once, in the role where they act."""

from __future__ import annotations

import difflib
import functools
from collections import defaultdict
from collections.abc import Iterator

from kimi_nb import catalog, params
from kimi_nb.deployment import LOOPBACK, Deployment, Server, Spot
from kimi_nb.findings import ERROR, NOTE, WARNING
from kimi_nb.rules import Problem, rule

_SOURCES = "the variables that vLLM and vllm-ascend read (kimi_nb/data/catalog-*.json)"
_TRUE = {"1": True, "0": False, "true": True, "false": False, "True": True, "False": False}


@functools.cache
def _known(row: str, tag: str) -> frozenset[str]:
    """The variables that an engine's version reads."""
    names = {name for name, runs in catalog.tables("vllm")["env"].items()
             if catalog.active(runs, row)}
    if tag:
        plugin = catalog.tables("vllm-ascend")
        for table in ("env", "env_read_elsewhere"):
            names |= {name for name, runs in plugin[table].items() if catalog.active(runs, tag)}
    return frozenset(names)


@functools.cache
def ever_read() -> dict[str, tuple[str, str]]:
    """Every variable that any listed version reads: the first and the last of them."""
    out: dict[str, tuple[str, str]] = {}
    plugin = catalog.tables("vllm-ascend")
    for table in (catalog.tables("vllm")["env"], plugin["env"], plugin["env_read_elsewhere"]):
        for name, runs in table.items():
            out.setdefault(name, (runs[0]["first"].removeprefix("v"),
                                  runs[-1]["last"].removeprefix("v")))
    return out


def known(d: Deployment) -> frozenset[str]:
    """The variables that the deployment's engine reads."""
    return _known(d.engine.known, d.engine.version if d.ascend else "")


def _vllm(name: str) -> bool:
    return name.startswith("VLLM_")


@rule("variables/unknown", WARNING, "Every variable of the engine exists in some version.",
      "Spell it as the engine does, or take it out.", _SOURCES)
def variable_exists(d: Deployment) -> Iterator[Problem]:
    """A variable that nothing reads changes nothing but the reader's belief."""
    ever = ever_read()
    others = params.data("versions")["others"]
    for server in d.environments():
        for name in server.env:
            if name in ever:
                continue
            if name in params.data("versions")["gone"]:
                yield Problem(server.env_at(name), f"{name} does nothing: "
                              f"{params.data('versions')['gone'][name]}")
            elif _vllm(name):
                near = difflib.get_close_matches(name, [*ever, *others], n=1, cutoff=0.82)
                yield Problem(server.env_at(name), f"no listed version reads {name}",
                              f"Did you mean {near[0]}?" if near else "")
            elif name not in others and name.startswith(("HCCL_", "NCCL_", "ASCEND_", "PYTORCH_",
                                                         "TASK_", "GLOO_")):
                near = difflib.get_close_matches(name, others, n=1, cutoff=0.88)
                if near:
                    yield Problem(server.env_at(name), f"{name} is not known, {near[0]} is",
                                  f"Did you mean {near[0]}?")


@rule("variables/removed", WARNING, "No variable is older than the engine.",
      "Take it out.", _SOURCES, needs=("version",))
def variable_not_removed(d: Deployment) -> Iterator[Problem]:
    """A variable that a newer version no longer reads is ignored, at most with a warning in the
    log; what it switched on is off."""
    here, ever = known(d), ever_read()
    for server in d.environments():
        for name in server.env:
            if name in here or name not in ever or name in params.data("versions")["never_read"]:
                continue
            last = ever[name][1]
            row = d.engine.version if name in catalog.tables("vllm-ascend")["env"] else \
                d.engine.known
            if catalog.earlier(last, row):
                yield Problem(server.env_at(name), f"{name} does nothing: {d.engine} does not read "
                              f"it, {last} was the last listed version that did")
            elif catalog.earlier(row, ever[name][0]) and _vllm(name):
                yield Problem(server.env_at(name), f"{name} does nothing: it is read from "
                              f"{ever[name][0]}, this is {d.engine}")


@rule("variables/never-read", WARNING, "No variable is one that no version acts on.",
      "Take it out.", "read in the sources of the versions searched")
def variable_acts(d: Deployment) -> Iterator[Problem]:
    """The name is declared and nothing reads it: who raises a time-out with it still waits as
    long as before."""
    never = params.data("versions")["never_read"]
    for server in d.environments():
        for name in server.env:
            if name in never:
                yield Problem(server.env_at(name), f"{name} does nothing: {never[name]}")


@rule("variables/ignored", WARNING, "No variable is ignored at this version.",
      "Use the key of --additional-config.",
      "vllm-ascend's sources: only the key is read there", needs=("ascend", "version"))
def variable_not_ignored(d: Deployment) -> Iterator[Problem]:
    """The scripts say that a feature is on, the engine never looks: the gain that was measured
    elsewhere does not come."""
    ignored = params.data("versions")["ignored"]
    for server in d.environments():
        for name in server.env:
            if name in ignored and _between(d.engine.version, *map(str, ignored[name])):
                key = catalog.moved(d.engine, name)
                yield Problem(server.env_at(name), f"{name} is ignored from {ignored[name][0]} to "
                              f"{ignored[name][1]}: only --additional-config {key} is read",
                              f'Write --additional-config \'{{"{key}": true}}\'.')


def _between(version: str, first: str, last: str) -> bool:
    return not catalog.earlier(version, first) and not catalog.earlier(last, version)


@rule("variables/moved", WARNING, "A setting stands where the version wants it.",
      "Write it as a key of --additional-config.",
      "vllm-ascend's configuration: key and variable", needs=("ascend", "version"))
def variable_moved(d: Deployment) -> Iterator[Problem]:
    """The variable still works and goes away with a later version; the key stays."""
    ignored = params.data("versions")["ignored"]
    for server in d.environments():
        for name in server.env:
            key = catalog.moved(d.engine, name)
            if key and not (name in ignored and _between(d.engine.version,
                                                         *map(str, ignored[name]))):
                yield Problem(server.env_at(name), f"{name} moved to --additional-config {key}")


@rule("variables/contradiction", ERROR, "A variable and its key say the same.",
      "Keep the key of --additional-config, take the variable out.",
      "vllm-ascend: the key wins over the variable", needs=("ascend", "version"))
def variable_agrees(d: Deployment) -> Iterator[Problem]:
    """The key wins, silently: the script that is read says one thing, the engine does another."""
    for server in d.environments():
        table = server.table("additional-config")
        for name, text in server.env.items():
            key = catalog.moved(d.engine, name)
            if key is None:
                continue
            value: object = table
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None and text in _TRUE and bool(value) != _TRUE[text]:
                yield Problem(server.env_at(name), f"{name}={text}, and --additional-config says "
                              f"{key} {str(value).lower()}")


@rule("variables/going", NOTE, "No variable goes away with a later version.",
      "Look at it before the next upgrade.", _SOURCES)
def variable_stays(d: Deployment) -> Iterator[Problem]:
    """What a script switches on by such a variable is off after an upgrade, without an error."""
    here, ever, going = known(d), ever_read(), params.data("versions")["going"]
    newest = {"vllm": catalog.versions("vllm")[-1], "vllm-ascend": catalog.versions(
        "vllm-ascend")[-1]}
    never = params.data("versions")["never_read"]
    for server in d.environments():
        for name in server.env:
            if name in going:
                yield Problem(server.env_at(name), f"{name}: {going[name]}")
            elif name in here and _vllm(name) and name not in never:
                package = "vllm" if name in catalog.tables("vllm")["env"] else "vllm-ascend"
                last = ever[name][1]
                if catalog.earlier(last, newest[package]):
                    yield Problem(server.env_at(name), f"{name}: the listed versions that read it "
                                  f"end with {last}; it is gone by {newest[package]}")


@rule("variables/default", NOTE, "A variable changes something.",
      "It may go.", _SOURCES, needs=("ascend", "version"))
def variable_not_default(d: Deployment) -> Iterator[Problem]:
    """It says what is so anyway."""
    table = catalog.tables("vllm-ascend")["env"]
    for server in d.environments():
        for name, text in server.env.items():
            found = catalog.active(table.get(name, []), d.engine.version)
            if found and found.get("default") is not None and text == str(found["default"]):
                yield Problem(server.env_at(name), f"{name}={text} is the default of {d.engine}")


# In the role where it belongs ---------------------------------------------------------------


def _told_at(server: Server, by: str) -> Spot:
    """Where a feature was switched on."""
    return server.of("additional-config") if by.startswith("--") else server.env_at(by)


def _switched(d: Deployment, server: Server, variable: str, key: str) -> str:
    """By what a feature is on: the key, the variable, or "" where it is off."""
    table = server.table("additional-config")
    under = table.get("scheduler_config")
    for where in (table, under if isinstance(under, dict) else {}):
        if key in where:
            return f"--additional-config {key}" if where[key] is True else ""
    return variable if variable and server.env.get(variable) == "1" else ""


@rule("variables/role-flashcomm", WARNING, "FlashComm runs on prefill, not on decode.",
      "Switch it off on decode.", "the documents; vllm-ascend issue 9679", needs=("ascend",))
def flashcomm_role(d: Deployment) -> Iterator[Problem]:
    """It trims the all-reduce of long prefills; on decode steps it adds work, and garbled output
    was reported."""
    for server in d.environments():
        by = _switched(d, server, "VLLM_ASCEND_ENABLE_FLASHCOMM1", "enable_flashcomm1")
        if by and server.role == "decode":
            yield Problem(_told_at(server, by), f"{by} on decode")


@rule("variables/role-mlapo", NOTE, "MLAPO is switched on where it acts: on decode.",
      "Leave it to the decode engines.",
      "vllm-ascend's sources: on A2 and A3 it acts for kv_consumer only", needs=("ascend",))
def mlapo_role(d: Deployment) -> Iterator[Problem]:
    """On prefill it takes memory for the fused weights; on engines that do both it does
    nothing on A2 and A3."""
    for server in d.environments():
        by = _switched(d, server, "VLLM_ASCEND_ENABLE_MLAPO", "enable_mlapo")
        if by and server.role != "decode":
            yield Problem(_told_at(server, by), f"{by} on {server.role}: it acts for decode "
                          "(kv_consumer) only",
                          "", WARNING if server.role == "prefill" else "")


@rule("variables/role-balance", WARNING,
      "Balance scheduling is off where prefill and decode are apart.",
      "Leave it out under prefill-decode disaggregation.", "the documents", needs=("ascend",))
def balance_role(d: Deployment) -> Iterator[Problem]:
    """It weighs prefill against decode of one engine, of which there is only one kind here."""
    for server in d.environments():
        by = _switched(d, server, "VLLM_ASCEND_BALANCE_SCHEDULING", "enable_balance_scheduling")
        if by and server.role != "mixed":
            yield Problem(_told_at(server, by), f"{by} on {server.role}")


@rule("variables/role-recompute", NOTE, "The recompute scheduler runs on decode.",
      "From 0.23.0 leave it out on prefill.", "vllm-ascend's sources", needs=("ascend",))
def recompute_role(d: Deployment) -> Iterator[Problem]:
    """From 0.23.0 prefill nodes ignore it with a warning; on engines that do both it has nobody
    to send a request back to."""
    for server in d.environments():
        by = _switched(d, server, "", "recompute_scheduler_enable")
        if by and server.role == "prefill":
            late = d.engine_known and not catalog.earlier(d.engine.vllm, "0.23.0")
            yield Problem(server.of("additional-config"),
                          "recompute_scheduler_enable on prefill "
                          + ("does nothing since 0.23.0" if late else
                             f"is ignored from 0.23.0 (this is {d.engine})"), "",
                          WARNING if late else "")
        elif by and server.role == "mixed":
            yield Problem(server.of("additional-config"), "recompute_scheduler_enable without "
                          "prefill-decode disaggregation", "Leave it out.")


# Networks -----------------------------------------------------------------------------------


@rule("variables/side-channel", ERROR, "The side channel's base port is one for all ranks.",
      "Export the same VLLM_NIXL_SIDE_CHANNEL_PORT on every rank of the group.",
      "vLLM NixlConnector: the data parallel index is added to the port")
def side_channel_base(d: Deployment) -> Iterator[Problem]:
    """vLLM adds the data parallel rank itself: a port that was counted up by hand is offset
    twice, and decode asks at a port where nobody is."""
    for group in d.groups():
        bases: dict[int, str] = {}
        for server in group:
            text = server.env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "")
            if server.single and server.rank is not None and text.isdecimal():
                bases[server.rank] = text
        first = group[0]
        if len(set(bases.values())) > 1:
            shown = ", ".join(f"rank {rank}: {port}" for rank, port in list(bases.items())[:3])
            yield Problem(first.env_at("VLLM_NIXL_SIDE_CHANNEL_PORT"),
                          f"VLLM_NIXL_SIDE_CHANNEL_PORT differs by rank ({shown}): vLLM adds the "
                          "rank to it again")


@rule("variables/side-channel-host", WARNING,
      "Engines that send cache to other nodes say at which address.",
      "Export VLLM_NIXL_SIDE_CHANNEL_HOST with the node's own address.",
      "vLLM NixlConnector; nixl issue 1614")
def side_channel_host(d: Deployment) -> Iterator[Problem]:
    """Its default is localhost: the other node asks itself, and gets NIXL_ERR_BACKEND."""
    addresses = {server.address for server in d.servers if server.role != "mixed"
                 and server.address and not server.everywhere}
    if len(addresses - set(LOOPBACK)) < 2:
        return
    for server in d.environments():
        kv = server.table("kv-transfer-config")
        if kv.get("kv_connector") == "NixlConnector" \
                and not server.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST"):
            yield Problem(server.spot, "NixlConnector over several nodes without "
                          "VLLM_NIXL_SIDE_CHANNEL_HOST")


@rule("variables/allocator", WARNING, "The allocator's segments stay in place under NIXL.",
      "Take expandable_segments out.", "nixl issue 1614")
def allocator(d: Deployment) -> Iterator[Problem]:
    """NIXL registers memory by address; expandable segments move it, and transfers end with
    NIXL_ERR_BACKEND."""
    for server in d.environments():
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            if "expandable_segments:True" in server.env.get(name, "") and \
                    server.table("kv-transfer-config").get("kv_connector") == "NixlConnector":
                yield Problem(server.env_at(name), f"{name} has expandable_segments with "
                              "NixlConnector")


@rule("variables/interface", WARNING, "Several nodes say over which interface they talk.",
      "Export HCCL_IF_IP, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and HCCL_SOCKET_IFNAME.",
      "vllm-ascend's multi-node documents; issues 486, 9447", needs=("ascend",))
def interface_named(d: Deployment) -> Iterator[Problem]:
    """Without them each library takes the first interface it finds, and the nodes wait for each
    other until 'Getting socket times out'."""
    by_group: dict[str, set[str]] = defaultdict(set)
    for server in d.servers:
        by_group[str(server.group)].add(server.node)
    for server in d.environments():
        several = len(by_group[str(server.group)]) > 1 or (server.dp or 1) > (server.ranks or 1)
        if server.group is not None and several:
            missing = [name for name in ("HCCL_IF_IP", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
                                         "HCCL_SOCKET_IFNAME") if name not in server.env]
            if missing:
                yield Problem(server.spot, f"a group over several nodes without "
                              f"{', '.join(missing)}")
