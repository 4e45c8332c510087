"""The image that the recipes project names for a page on some hardware.

>>> image(Page(), Variant(), Profile(brand="AMD"), "mi300x")
'vllm/vllm-openai-rocm:latest'
"""

from __future__ import annotations

from typing import Any

from kimi_nb.upstream.recipe_pages import Page, Profile, Variant

_USUAL = {
    "nvidia": "vllm/vllm-openai:latest",
    "amd": "vllm/vllm-openai-rocm:latest",
    "tpu": "vllm/vllm-tpu:latest",
    "intel": "vllm/vllm-openai-cpu:latest-x86_64",
}
_XPU = "vllm/vllm-openai-xpu:latest"
_CUDA = ("cu130", "cu129")  # the newer one is the default


def image(page: Page, variant: Variant, profile: Profile, hardware: str) -> str:
    """Return the image; "" if the project has none for this hardware."""
    brand = _brand(profile)
    exact = variant.hardware_overrides.get(hardware)
    if exact and isinstance(exact.docker_image, str):
        return exact.docker_image
    for given in (variant.docker_image, page.model.docker_image):
        if found := _of(given, brand):
            return found
    if profile.generation == "xpu":
        return _XPU
    if page.model.nightly_required and brand != "intel":
        return _USUAL[brand].replace(":latest", ":nightly")
    return "" if page.model.nightly_required else _USUAL[brand]


def _brand(profile: Profile) -> str:
    if profile.generation == "tpu":
        return "tpu"
    if profile.generation in ("cpu", "xpu") or profile.brand == "Intel":
        return "intel"
    return "amd" if profile.brand == "AMD" else "nvidia"


def _of(given: Any, brand: str) -> str:
    """Return the image that a page names for a brand: one, one by brand, or by CUDA."""
    if isinstance(given, dict):
        by_brand = any(key in given for key in _USUAL)
        given = given.get(brand) if by_brand else given
        if isinstance(given, dict):
            tags = [given[key] for key in _CUDA if isinstance(given.get(key), str)]
            return tags[0] if tags and brand == "nvidia" else ""
        return given if isinstance(given, str) else ""
    return given if isinstance(given, str) and brand == "nvidia" else ""
