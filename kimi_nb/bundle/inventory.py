"""Describe the nodes of a plan for pyinfra and ssh, so that users reach them as kimi-nb does.

The files of the bundle are ``deploy/inventory.py``, ``deploy/ssh_config`` and the pyinfra
operations that use them.
"""

from __future__ import annotations

import pprint
from collections.abc import Collection, Iterator, Mapping, Sequence

from kimi_nb.core import paths
from kimi_nb.params import schema
from kimi_nb.plan.spec import Plan

Hosts = list[tuple[str, dict[str, object]]]

# Files that are the same for every plan: name in the bundle, path in the package.
_STATIC = {
    "node_steps.py": "data/bundle/node_steps.py",
    "up.py": "data/bundle/up.py",
    "down.py": "data/bundle/down.py",
    "node_call.py": "deploy/node_call.py",
}


def files(plan: Plan) -> dict[str, str]:
    """Return the files for nodes that are reached over SSH, by path in the bundle.

    The result is empty for plans with another transport.
    """
    if plan.transport != "ssh":
        return {}
    return of_nodes(plan.request.site, hosts(plan))


def of_nodes(site: schema.Site, listed: Hosts) -> dict[str, str]:
    """Return the files for these nodes of a site, by path in the bundle."""
    static = {
        f"deploy/{name}": (paths.PACKAGE / path).read_text(encoding="utf-8")
        for name, path in _STATIC.items()
    }
    return {
        "deploy/inventory.py": _inventory(site.name, listed),
        "deploy/ssh_config": _ssh_config(site, [str(data["ssh_hostname"]) for _, data in listed]),
        **static,
    }


def hosts(plan: Plan) -> Hosts:
    """Return (name, data for pyinfra) of every node in use."""
    addresses = {engine.node: engine.address for engine in plan.engines}
    return hosts_of(plan.request.site, addresses, {*plan.secrets, *plan.secrets.values()})


def hosts_of(
    site: schema.Site, addresses: Mapping[str, str], secrets: Collection[str] = ()
) -> Hosts:
    """Return (name, data for pyinfra) of nodes, whose addresses are given by name."""
    ssh = site.ssh
    data: dict[str, object] = {
        "ssh_user": ssh.user,
        "ssh_port": ssh.port,
        # Set here because it takes precedence over ssh_config.
        "ssh_strict_host_key_checking": _checking(ssh),
    }
    if ssh.key_file:
        data["ssh_key"] = ssh.key_file  # read once for all nodes; ssh takes it from ssh_config
    if secrets:
        data["secrets"] = sorted(secrets)
    return [(name, {"ssh_hostname": address, **data}) for name, address in addresses.items()]


def _checking(ssh: schema.Ssh) -> str:
    return "yes" if ssh.host_keys == "known" else "accept-new"


def _inventory(site: str, listed: Hosts) -> str:
    nodes = pprint.pformat(listed, width=100, sort_dicts=False)
    return (
        f"# The nodes of site {site} for pyinfra: pyinfra inventory.py up.py\n"
        "from pathlib import Path\n\n"
        f"nodes = (\n{nodes},\n"
        '    {"ssh_config_file": str(Path(__file__).resolve().parent / "ssh_config")},\n)\n'
    )


def _ssh_config(site: schema.Site, listed: Sequence[str]) -> str:
    ssh = site.ssh
    # The jump host may be one of the nodes, and must not be reached through itself.
    addresses = " ".join(dict.fromkeys(one for one in listed if one != ssh.jump_host))

    def block(names: str, user: bool) -> Iterator[str]:
        yield f"Host {names}"
        if user:
            yield f"    User {ssh.user}"
            yield f"    Port {ssh.port}"
        yield f"    StrictHostKeyChecking {_checking(ssh)}"
        if ssh.key_file:
            yield f'    IdentityFile "{ssh.key_file}"'
        if ssh.known_hosts:
            yield f'    UserKnownHostsFile "{ssh.known_hosts}"'

    lines = [
        f"# How the nodes of site {site.name} are reached: ssh -F ssh_config ADDRESS",
        *block(addresses, user=True),
    ]
    if ssh.jump_host:
        lines += [
            f"    ProxyJump {ssh.user}@{ssh.jump_host}",
            "",
            *block(ssh.jump_host, user=False),
        ]
    return (
        "\n".join([*lines, "", "# And what stands in your own file.", "Include ~/.ssh/config"])
        + "\n"
    )
