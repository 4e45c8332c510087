"""Stand in for programs that change settings of a node or describe it.

They answer for the simulated node. Settings of this machine are never changed; the simulated ones
are shown in their place.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from kimi_nb.core.marks import MARK
from kimi_nb.params import load
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.host_programs import accelerators
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

_DISK = 8 * 10**12  # free bytes on a simulated node
_WEIGHTS = ("config.json", "model.safetensors.index.json")


def _instead(call: Call) -> Replace:
    """Return the replacement of this stand-in by the real program.

    Raises:
        Refused: The real program is not installed.
    """
    real = call.real()
    if real is None:
        raise Refused(f"bash: line 1: {call.tool}: command not found", 127)
    return Replace((real, *call.words), call.env)


# Settings -----------------------------------------------------------------------------------


@functools.cache
def _tuned() -> frozenset[str]:
    """Return the settings that our hardware files change."""
    return frozenset(
        key for name in load.names("hardware") for key in load.hardware(name).host_tuning.sysctl
    )


def sysctl(call: Call) -> int:
    """Run ``sysctl`` on settings that are kept in the state of the rehearsal."""
    call.say("the settings of this machine stay as they are")
    options = [word for word in call.words if word.startswith("-")]
    known = {"-w", "--write", "-n", "--values", "-q", "--quiet", "-e", "--ignore"}
    strange = [word for word in options if word not in known]
    if strange or len(options) == len(call.words):
        raise Refused(
            f"{MARK}: sysctl {' '.join(strange) or 'without a name'} is not part of a rehearsal", 1
        )
    faults = []
    for word in call.words:
        if word not in options:
            try:
                shown = _setting(call, word, {"-n", "--values"} & set(options))
                if not ({"-q", "--quiet"} & set(options) and "=" in word):
                    print(shown)
            except Refused as fault:
                faults.append(str(fault))
    if faults:
        raise Refused("\n".join(faults), 255)
    return 0


def _setting(call: Call, word: str, bare: object) -> str:
    name, equals, value = word.partition("=")
    name = name.strip().replace("/", ".")
    path = Path("/proc/sys", *name.split("."))
    kept = call.state("sysctl")
    table = json.loads(kept.read_text()) if kept.exists() else {}
    if ".." in name or not (name in _tuned() or path.is_file()):
        raise Refused(
            f"sysctl: cannot stat /proc/sys/{name.replace('.', '/')}: No such file or directory"
        )
    if equals:
        if call.site.fault(FaultName.HOST_TUNING_REFUSED, call.node):
            raise Refused(f'sysctl: permission denied on key "{name}"')
        kept.write_text(json.dumps(table | {name: value.strip()}, indent=1) + "\n")
        table[name] = value.strip()
    elif name not in table:
        try:
            table[name] = path.read_text().strip() if path.is_file() else "0"
        except OSError:
            raise Refused(f'sysctl: permission denied on key "{name}"') from None
    return table[name] if bare else f"{name} = {table[name]}"


def tee(call: Call) -> int:
    """Run ``tee``; writes to settings of the kernel are kept in the state of the rehearsal."""
    files = [word for word in call.words if not word.startswith("-")]
    places = [os.path.realpath(call.folder / file) for file in files]
    kernel = [place for place in places if place.startswith(("/sys/", "/proc/"))]
    if not kernel:
        raise _instead(call)
    if len(kernel) < len(places) or call.site.fault(FaultName.HOST_TUNING_REFUSED, call.node):
        # The real program would also write to settings that must not change.
        sys.stdout.write(sys.stdin.read())
        raise Refused("\n".join(f"tee: {place}: Permission denied" for place in kernel), 1)
    text = sys.stdin.read()
    for place in kernel:
        call.state("sys", place.strip("/").replace("/", "_")).write_text(text)
    sys.stdout.write(text)
    call.say(
        f"{len(kernel)} settings of the kernel stay as they are; "
        f"it would have written {text.strip()!r}"
    )
    return 0


# Ordinary programs that answer differently on the simulated node ------------------------------


def hostname(call: Call) -> int:
    """Run ``hostname`` for the simulated node."""
    if not call.node:
        raise _instead(call)
    answers = {
        "": call.node,
        "-s": call.node,
        "--short": call.node,
        "-f": call.node,
        "--fqdn": call.node,
        "-i": call.address,
        "-I": f"{call.address} ",
        "--ip-address": call.address,
        "--all-ip-addresses": f"{call.address} ",
    }
    asked = " ".join(call.words)
    if asked not in answers:
        raise Refused(
            "hostname: you must be root to change the host name"
            if call.words and not asked.startswith("-")
            else f"{MARK}: hostname {asked} is not part of a rehearsal",
            1,
        )
    call.say("a pretended node")
    print(answers[asked])
    return 0


def df(call: Call) -> int:
    """Run ``df``: simulated for ``--output=avail -B1``, else the real program."""
    if not {"--output=avail", "-B1"} <= set(call.words):
        raise _instead(call)
    call.say("a pretended disk")
    print(f"{'Avail':>14}\n{0 if call.site.fault(FaultName.DISK_FULL, call.node) else _DISK:>14}")
    return 0


def ls(call: Call) -> int:
    """Run ``ls``: simulated for the files of a checkpoint, else the real program."""
    files = [Path(word) for word in call.words if not word.startswith("-")]
    if not files or any(
        path.name not in _WEIGHTS or path.exists() or (call.folder / path).is_relative_to(call.root)
        for path in files
    ):
        raise _instead(call)
    call.say("a pretended checkpoint")
    missing = [path for path in files if not _complete(call, str(path.parent))]
    for path in files:
        if path not in missing:
            print(path)
    if missing:
        raise Refused(
            "\n".join(f"ls: cannot access '{path}': No such file or directory" for path in missing),
            2,
        )
    return 0


def _complete(call: Call, folder: str) -> bool:
    """Return whether the checkpoint in a folder is on the node.

    Any other folder is taken for a cache, which must have all checkpoints.
    """
    weights = call.site.weights
    return all(
        call.site.has(one, call.node) for one in ([folder] if folder in weights else weights)
    )


def ping(call: Call) -> int:
    """Run ``ping``: simulated for the nodes of the site, else the real program."""
    words = list(call.words)
    where = words[-1] if words else ""
    address = call.site.nodes.get(where, where)
    # Any node of the site answers, even one on which the plan starts nothing.
    network = call.address.rsplit(".", 2)[0]
    if address not in call.site.nodes.values() and not address.startswith(f"{network}."):
        raise _instead(call)
    told = dict(itertools.pairwise(words)).get("-c", "4")
    count = int(told) if told.isdecimal() else 4
    print(f"PING {where} ({address}) 56(84) bytes of data. ({MARK})")
    for number in range(1, count + 1):
        print(f"64 bytes from {address}: icmp_seq={number} ttl=64 time=0.050 ms")
    print(
        f"\n--- {where} ping statistics ---\n{count} packets transmitted, {count} received, "
        f"0% packet loss, time {(count - 1) * 1000}ms"
    )
    return 0


TOOLS: dict[str, Callable[[Call], int]] = {
    **accelerators.TOOLS,
    "sysctl": sysctl,
    "tee": tee,
    "hostname": hostname,
    "df": df,
    "ls": ls,
    "ping": ping,
}
