"""Look up what belongs to an engine version: the CUDA of its builds, and packages beside it.

>>> from kimi_nb import catalog
>>> torch_build(catalog.engine("vllm", "0.19.1")), torch_build(catalog.engine("vllm", "0.22.1"))
('cu129', 'cu130')
>>> cuda_of("0.19.1"), cuda_of("0.32.0")
(12, 13)
>>> nixl(catalog.engine("vllm", "0.19.1"))
'0.9.0'

The rows are in ``data/catalog/versions.yaml``, each from the version at which it begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from kimi_nb.catalog.engine_catalog import Engine
from kimi_nb.core import data_files


def _facts(name: str) -> Any:
    return data_files.facts("catalog/versions")[name]


def _row(name: str, vllm: str) -> dict[str, Any]:
    """Return the last row of a table that begins at or before a version of vLLM, or the first."""
    rows = _facts(name)
    fits = [row for row in rows if Version(str(row["first"])) <= Version(vllm)]
    return (fits or rows)[-1 if fits else 0]


def torch_build(engine: Engine) -> str:
    """Return the CUDA build of torch that belongs to vLLM's wheel, as ``uv --torch-backend``."""
    return str(_row("cuda", engine.vllm)["torch"])


def cuda_of(vllm: str) -> int:
    """Return the major version of the CUDA of vLLM's wheel and of its image without a suffix."""
    return int(str(_row("cuda", vllm)["torch"])[2:4])


def cuda_major(engine: Engine, image: bool) -> int:
    """Return the major version of the CUDA of the image that a plan takes, or of the wheel."""
    tag = cuda_tag(engine) if image else ""
    return int(tag[3:5]) if tag else cuda_of(engine.vllm)


def driver(cuda: int | None = None) -> int:
    """Return the least version of NVIDIA's driver for a major version of CUDA, or for any."""
    rows: dict[int, int] = _facts("drivers")
    return rows.get(cuda or 0, min(rows.values()))


def cuda_tag(engine: Engine) -> str:
    """Return what follows the version in the tag of vLLM's image for CUDA 13, where it has one."""
    return str(_row("cuda", engine.vllm)["tag"])


def cuda_tags(vllm: str) -> tuple[str, ...]:
    """Return what may follow the version in a tag of vLLM's CUDA image; () if that is not known."""
    return tuple(_row("cuda", vllm).get("tags", ()))


def nixl(engine: Engine) -> str:
    """Return the version of NIXL that belongs to an engine."""
    return str(_row("nixl", engine.vllm)["version"])


def router() -> str:
    """Return the version of vllm-router that was tried."""
    return str(_facts("vllm_router")["version"])


def mooncake_store() -> Mapping[str, Any]:
    """Return the facts of Mooncake's shared KV store: range of vLLM, wheels, options."""
    facts: Mapping[str, Any] = _facts("mooncake_store")
    return facts


def mooncake(engine: Engine, vendor: str) -> str:
    """Return the requirement for the wheel of Mooncake that fits an engine's own build.

    >>> from kimi_nb import catalog
    >>> mooncake(catalog.engine("vllm", "0.19.1"), "nvidia").partition("==")[0]
    'mooncake-transfer-engine'
    """
    facts = mooncake_store()
    build = "amd" if vendor == "amd" else torch_build(engine)[:4]
    return f"{facts['packages'][build]}=={facts['version']}"


def mooncake_libraries(engine: Engine) -> str:
    """Return the folder that a script has to add to LD_LIBRARY_PATH for Mooncake, or ""."""
    fact = _facts("mooncake_libraries")
    if engine.package != "vllm-ascend":
        return ""
    inside = Version(fact["first"]) <= Version(engine.version) <= Version(fact["last"])
    return str(fact["folder"]) if inside else ""
