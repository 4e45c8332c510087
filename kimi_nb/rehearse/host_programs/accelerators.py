"""Stand in for the programs that show the accelerators of a node and their network.

They answer for the simulated node; inside a container, for the devices that it sees.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from kimi_nb.core.marks import MARK
from kimi_nb.params.vendor import Vendor
from kimi_nb.rehearse import wheels
from kimi_nb.rehearse.host_programs.docker_run import visible_here
from kimi_nb.rehearse.stand_in_call import Call, Refused


def _driver(vendor: Vendor) -> str:
    """Return the version of the driver of a simulated node."""
    return wheels.driver(vendor)["version"]


def _there(call: Call, vendor: Vendor) -> tuple[int, ...]:
    """Return the devices that are visible here.

    Raises:
        Refused: The node has other accelerators, and therefore not this program.
    """
    if call.site.vendor != vendor:
        raise Refused(f"bash: line 1: {call.tool}: command not found", 127)
    call.say("these devices are pretended")
    return visible_here(call.env, call.site)


# Ascend -------------------------------------------------------------------------------------


def npu_smi(call: Call) -> int:
    """Run ``npu-smi info``, with its lists of NPUs and chips and its details of one board."""
    devices = _there(call, "ascend")
    words = list(call.words)
    if words[:1] != ["info"]:
        raise Refused("Error parameter. Use npu-smi -h to see how it is called.", 1)
    if words[1:2] == ["-l"]:
        print(f"\tTotal Count                    : {len(devices)} ({MARK})\n")
        for device in devices:
            print(
                f"\tNPU ID                         : {_npu(call, device)[0]}\n"
                f"\tChip Count                     : {call.site.per_card}\n"
            )
    elif words[1:2] == ["-m"]:
        print(f"\tNPU ID   Chip ID   Chip Logic ID   Chip Name ({MARK})")
        for device in devices:
            npu, chip = _npu(call, device)
            print(f"\t{npu:<9}{chip:<10}{device:<16}{call.site.device}")
    elif "-t" in words:
        _board(call, devices, words)
    else:
        _npu_table(call, devices)
    return 0


def _npu(call: Call, device: int) -> tuple[int, int]:
    """Return the NPU of a device, and its chip."""
    return divmod(device, call.site.per_card)


def _board(call: Call, devices: Sequence[int], words: Sequence[str]) -> None:
    told = dict(itertools.pairwise(words))
    asked = told.get("-i", "")
    if asked not in {str(_npu(call, device)[0]) for device in devices}:
        raise Refused(f"Error: the NPU ID {asked or '(none)'} does not exist.", 1)
    print(
        f"\tNPU ID                         : {asked} ({MARK})\n"
        f"\tProduct Name                   : {call.site.accelerator}\n"
        f"\tSoftware Version               : {_driver('ascend')}\n"
        f"\tCompatibility                  : OK\n"
        f"\tChip Count                     : {call.site.per_card}"
    )


def _npu_table(call: Call, devices: Sequence[int]) -> None:
    physical = call.site.per_card > 1
    line, wide = f"+{'-' * 27}+{'-' * 15}+{'-' * 52}+", f"+{'=' * 27}+{'=' * 15}+{'=' * 52}+"
    title = f"npu-smi {_driver('ascend')} ({MARK})"
    print(f"+{'-' * 96}+\n| {title:<32} {'Version: ' + _driver('ascend'):<61} |\n{line}")
    _row("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)")
    _row(
        "Chip  Phy-ID" if physical else "Chip",
        "Bus-Id",
        "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)",
    )
    print(wide)
    for device in devices:
        npu, chip = _npu(call, device)
        _row(f"{npu:<6}{call.site.device}", "OK", f"{'160.0':<12}{'40':<18}{'0    / 0'}")
        _row(
            f"{chip:<6}{device if physical else ''}",
            f"0000:{0x81 + device:02X}:00.0",
            f"{'0':<12}{'0    / 0':<18}{3100:<5}/ {call.site.memory_mib}",
        )
        print(wide)


def _row(*texts: str) -> None:
    print(
        "|"
        + "|".join(f" {text:<{width}}" for text, width in zip(texts, (26, 14, 51), strict=True))
        + "|"
    )


def hccn_tool(call: Call) -> int:
    """Run ``hccn_tool -i N -X -g``, which shows the network of one NPU."""
    devices = _there(call, "ascend")
    words = list(call.words)
    told = dict(itertools.pairwise(words))
    device = told.get("-i", "")
    if not device.isdecimal() or int(device) not in devices:
        raise Refused(
            f"device id {device or '(none)'} is invalid, or not in this container.\n"
            "Cmd execute failed!",
            1,
        )
    if "-g" not in words:
        raise Refused(f"{MARK}: hccn_tool only reads in a rehearsal (-g).", 1)
    address = _npu_address(call, call.node, int(device))
    answers = {
        "-ip": f"ipaddr:{address}\nnetmask:255.255.0.0",
        "-link": "link status: UP",
        "-vnic": f"vnic link status: UP\nvnic ipaddr:{address}\nvnic netmask:255.255.0.0",
        "-net_health": "net health status: Success",
        "-tls": f"dev_id:{device}, tls switch[0](0:disable, 1:enable), tls preconfigured"
        "[1](0:non-preset, 1:preset), tls alarm time threshold[60]days",
    }
    for name, answer in answers.items():
        if name in words:
            print(answer)
            return 0
    if {"-ping", "-hccs_ping"} & set(words):
        return _npu_ping(call, int(device), told.get("address", ""))
    raise Refused(f"{MARK}: hccn_tool {' '.join(words)} is not part of a rehearsal.", 1)


def _npu_address(call: Call, node: str, device: int) -> str:
    """Return the simulated address of an NPU, in a network of the NPUs' own."""
    place = list(call.site.nodes).index(node) if node in call.site.nodes else 0
    return f"10.{77 + place // 250}.{place % 250}.{device + 1}"


def _npu_ping(call: Call, device: int, address: str) -> int:
    print(f"device {device} PING {address}")
    known = {
        _npu_address(call, node, number)
        for node in call.site.nodes
        for number in range(call.site.devices)
    }
    if address not in known:
        print("\n".join(f"recv time out seq={number}" for number in range(3)))
        print("3 packets transmitted, 0 received, 100.00% packet loss")
        return 1
    print("\n".join(f"recv seq={number},time=0.060000ms" for number in range(3)))
    print("3 packets transmitted, 3 received, 0.00% packet loss")
    return 0


# NVIDIA and AMD -----------------------------------------------------------------------------


def nvidia_smi(call: Call) -> int:
    """Run ``nvidia-smi``: the table, -L, --query-gpu, or topo -m."""
    devices = _there(call, "nvidia")
    words = list(call.words)
    told = dict(word.partition("=")[::2] for word in words)
    if told.keys() <= {"--query-gpu", "--format"} and told.get("--query-gpu"):
        return _query(
            call, devices, told["--query-gpu"].split(","), told.get("--format", "").split(",")
        )
    if words == ["topo", "-m"]:
        print("\t".join([MARK, *(f"GPU{one}" for one in devices)]))
        for one in devices:
            print(
                "\t".join([f"GPU{one}", *(" X " if one == other else "NV18" for other in devices)])
            )
    elif words == ["-L"]:
        for one in devices:
            print(f"GPU {one}: {call.site.device} (UUID: {_uuid(one)})")
    elif words:
        raise Refused(
            "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.", 2
        )
    else:
        _gpu_table(call, devices)
    return 0


def _uuid(device: int) -> str:
    return f"GPU-00000000-{MARK}-{device:04d}"


def _query(call: Call, devices: Sequence[int], fields: Sequence[str], form: Sequence[str]) -> int:
    if "csv" not in form:
        raise Refused("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.", 1)
    memory = call.site.memory_mib
    units = {
        "memory.total": "MiB",
        "memory.used": "MiB",
        "memory.free": "MiB",
        "utilization.gpu": "%",
    }
    rows = []
    for device in devices:
        known = {
            "index": device,
            "name": call.site.device,
            "gpu_name": call.site.device,
            "uuid": _uuid(device),
            "memory.total": memory,
            "memory.used": 4,
            "memory.free": memory - 4,
            "utilization.gpu": 0,
            "count": len(devices),
            "driver_version": _driver("nvidia"),
        }
        for field in map(str.strip, fields):
            if field not in known:
                raise Refused(f'Field "{field}" is not a valid field to query.', 2)
        rows.append(
            ", ".join(
                f"{known[field]} {units[field]}"
                if field in units and "nounits" not in form
                else str(known[field])
                for field in map(str.strip, fields)
            )
        )
    if "noheader" not in form:
        print(
            ", ".join(
                f"{field} [{units[field]}]" if field in units else field
                for field in map(str.strip, fields)
            )
        )
    print("\n".join(rows))
    return 0


def _gpu_table(call: Call, devices: Sequence[int]) -> None:
    line, memory = f"+{'-' * 77}+", call.site.memory_mib
    head = f"NVIDIA-SMI {_driver('nvidia')}   Driver Version: {_driver('nvidia')}   {MARK}"
    print(f"{line}\n| {head:<75} |\n{line}")
    for device in devices:
        print(
            f"| {device:>3}  {call.site.device:<30} {f'4MiB / {memory}MiB':>22}  0%  Default{'':>6} |"
        )
    print(f"{line}\n| {'No running processes found':<75} |\n{line}")


def rocm_smi(call: Call) -> int:
    """Run ``rocm-smi``, which shows the names of the GPUs, their memory and their firmware."""
    devices = _there(call, "amd")
    asked = set(call.words)
    firmware = wheels.driver("amd")["firmware"]
    rows = []
    for device in devices:
        if not asked or "--showproductname" in asked:
            rows += [
                f"GPU[{device}]\t\t: Card Series: \t\t{call.site.device}",
                f"GPU[{device}]\t\t: GFX Version: \t\t{call.site.target}",
            ]
        if "--showfw" in asked:
            rows += [
                f"GPU[{device}]\t\t: {part} firmware version: \t{firmware}"
                for part in ("MEC", "MEC2")
            ]
        if not asked or "--showmeminfo" in asked:
            rows.append(f"GPU[{device}]\t\t: VRAM Total Memory (B): {call.site.memory_mib * 2**20}")
    print(f"{' ROCm System Management Interface ':=^90}\n{f' {MARK} ':=^90}")
    print("\n".join(rows))
    print(f"{' End of ROCm SMI Log ':=^90}")
    return 0


TOOLS: dict[str, Callable[[Call], int]] = {
    "npu-smi": npu_smi,
    "hccn_tool": hccn_tool,
    "nvidia-smi": nvidia_smi,
    "rocm-smi": rocm_smi,
}
