"""What belongs to an engine version: CUDA, drivers, NIXL, Mooncake; row by row."""

from __future__ import annotations

import pytest

from kimi_nb import catalog
from kimi_nb.catalog import companions


def vllm(version: str) -> catalog.Engine:
    return catalog.engine("vllm", version)


def ascend(version: str) -> catalog.Engine:
    return catalog.engine("vllm-ascend", version)


@pytest.mark.parametrize(
    ("version", "build", "major", "tag", "tags"),
    [
        ("0.11.2", "cu129", 12, "", ("",)),
        ("0.12.0", "cu129", 12, "", ()),
        ("0.16.0", "cu129", 12, "", ()),
        ("0.17.0", "cu129", 12, "-cu130", ("", "-cu130")),
        ("0.19.1", "cu129", 12, "-cu130", ("", "-cu130")),
        ("0.20.0", "cu130", 13, "", ("", "-cu129", "-cu130")),
        ("0.20.1", "cu130", 13, "", ("", "-cu129")),
        ("0.33.0", "cu130", 13, "", ("", "-cu129")),
    ],
)
def test_the_cuda_of_a_version(version, build, major, tag, tags):
    engine = vllm(version)
    assert companions.torch_build(engine) == build
    assert companions.cuda_of(version) == major
    assert (companions.cuda_tag(engine), companions.cuda_tags(version)) == (tag, tags)
    assert companions.cuda_major(engine, image=False) == major
    assert companions.cuda_major(engine, image=True) == (13 if tag else major)


def test_before_the_first_row_the_first_one_holds():
    assert companions.cuda_of("0.10.1") == 12
    assert companions.cuda_tags("0.10.1") == ("",)


@pytest.mark.parametrize(
    ("cuda", "driver"), [(12, 535), (13, 580), (11, 535), (None, 535), (0, 535)]
)
def test_the_least_driver(cuda, driver):
    assert companions.driver(cuda) == driver
    assert companions.driver() == 535


@pytest.mark.parametrize(
    ("version", "nixl"),
    [("0.11.2", "0.6.0"), ("0.16.0", "0.6.0"), ("0.17.0", "0.9.0"), ("0.22.1", "1.1.0"),
     ("0.24.0", "1.1.0"), ("0.25.1", "1.3.0"), ("0.33.0", "1.5.0")],
)  # fmt: skip
def test_nixl(version, nixl):
    assert companions.nixl(vllm(version)) == nixl
    assert companions.nixl(ascend("0.23.0")) == "1.1.0"


def test_mooncake():
    facts = companions.mooncake_store()
    version = facts["version"]
    assert facts["vllm"] == ">=0.21.0" and "-logtostderr" in facts["master"]
    name = "mooncake-transfer-engine"
    assert companions.mooncake(vllm("0.19.1"), "nvidia") == f"{name}=={version}"
    assert companions.mooncake(vllm("0.22.1"), "nvidia") == f"{name}-cuda13=={version}"
    for engine in (vllm("0.19.1"), vllm("0.22.1")):
        assert companions.mooncake(engine, "amd") == f"{name}-non-cuda=={version}"
    assert companions.router() == "0.1.17"


@pytest.mark.parametrize(
    ("engine", "folder"),
    [
        (ascend("0.16.0rc1"), ""),
        (ascend("0.17.0rc1"), "/usr/local/lib"),
        (ascend("0.20.2rc1"), "/usr/local/lib"),
        (ascend("0.22.1rc1"), "/usr/local/lib"),
        (ascend("0.23.0rc1"), ""),
        (vllm("0.19.1"), ""),
    ],
)
def test_where_mooncake_has_its_libraries(engine, folder):
    assert companions.mooncake_libraries(engine) == folder
