"""Tell for which CUDA or ROCm the wheels of an installation are built, and whether they fit.

>>> engine = catalog.engine("vllm", "0.19.1")
>>> builds({"vllm", "torch"}, engine, {"--torch-backend": "auto"}, "3.12")
{'vllm': '+cu129', 'torch': '+cu130'}
>>> unfit("+cu129", "+cu130", "nvidia")
'ImportError: libcudart.so.12: cannot open shared object file: No such file or directory'

The rows are in data/rehearse/packages.yaml, the driver of a node in data/rehearse/nodes.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from kimi_nb import catalog
from kimi_nb.core import data_files
from kimi_nb.params.vendor import Vendor


def driver(vendor: Vendor) -> Mapping[str, str]:
    """Return the driver of a simulated node: its version, and the CUDA that it knows."""
    found: Mapping[str, str] = data_files.facts("rehearse/nodes")["driver"].get(vendor, {})
    return found


def builds(
    packages: Collection[str], engine: catalog.Engine, options: Mapping[str, str], python: str
) -> dict[str, str]:
    """Return the local version of each wheel that has one, of those that an installer brings.

    ``options`` are the installer's, ``python`` the version that the environment was made for.
    """
    if "vllm" not in packages:
        return {}
    table = data_files.facts("rehearse/packages")
    rocm = table["rocm"]
    if any(rocm["index"] in text for text in options.values()) and python == rocm["python"]:
        return {"vllm": "+rocm", "torch": "+rocm"}
    row = next(one for one in table["wheels"] if catalog.satisfies(engine, one["vllm"]))
    asked = options.get("--torch-backend", "")
    if asked == "auto":
        asked = "cu" + driver("nvidia")["cuda"].replace(".", "")
    return {"vllm": f"+{row['build']}", "torch": f"+{asked or row['torch']}"}


def unfit(vllm: str, torch: str, vendor: Vendor, cuda: str = "") -> str:
    """Return what the engine says where these wheels do not fit the node or each other; "" if so.

    ``vllm`` and ``torch`` are versions with their local part, ``cuda`` what the driver knows.
    """
    ours, theirs = _major(vllm), _major(torch)
    if vendor == "amd" and ours:
        return "RuntimeError: Failed to infer device type"
    if vendor != "nvidia" or not ours:
        return ""
    if theirs and ours != theirs:
        return (
            f"ImportError: libcudart.so.{ours}: cannot open shared object file: No such file or "
            "directory"
        )
    known = cuda or driver("nvidia")["cuda"]
    if int(known.partition(".")[0]) < ours:
        major, _, minor = known.partition(".")
        return (
            "RuntimeError: The NVIDIA driver on your system is too old (found version "
            f"{int(major) * 1000 + int(minor) * 10}). Please update your GPU driver by downloading "
            "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
        )
    return ""


def _major(version: str) -> int:
    """Return the major version of CUDA in a local version, or 0."""
    found = re.search(r"\+cu([0-9]{2})", version)
    return int(found[1]) if found else 0
