"""The hardware that ships: memory and peaks against figures written apart, and that all can be planned."""

from __future__ import annotations

import pytest

from kimi_nb.bundle import scripts
from kimi_nb.check import judge
from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load
from kimi_nb.plan.memory import device

GIB = 2**30
NAMES = [name for name in load.names("hardware") if name != "cpu"]
# GiB of one device at --gpu-memory-utilization 0.9, from what torch was seen to report.
BUDGETS = {
    "a2": "54.86",
    "a3": "54.86",
    "h20": "85.80",
    "h100": "71.2",
    "h200": "125.8",
    "b200": "160.5",
    "b300": "240.9",
    "gb200": "165.9",
    "gb300": "248.9",
    "mi300x": "172.8",
    "mi325x": "230.4",
    "mi355x": "259.2",
}
# Dense: memory in TB/s, bf16, fp8, int8 and fp4 in TFLOP/s or TOP/s, link within a node in GB/s.
PEAKS = {
    "a2": (1.759, 353.9, None, 752, None, 196),
    "a3": (1.759, 353.9, None, 752, None, 196),
    "h20": (4.0, 148, 296, 296, None, 450),
    "h100": (3.35, 989, 1979, 1978, None, 450),
    "h200": (4.8, 989, 1979, 1979, None, 450),
    "b200": (8, 2250, 4500, 4500, 9000, 900),
    "b300": (8, 2250, 4500, 153.5, 14000, 900),
    "gb200": (8, 2500, 5000, 5000, 10000, 900),
    "gb300": (8, 2500, 5000, 165, 15000, 900),
    "mi300x": (5.3, 1307.4, 2614.9, 2614.9, None, 448),
    "mi325x": (6, 1307, 2615, None, None, 448),
    "mi355x": (8, 2516, 5033, None, 10066, 576),
}
UNKNOWN = {"a5", "mi350x"}  # nobody published their peaks, nor what torch sees of their memory


@pytest.mark.parametrize("name", NAMES)
def test_the_budget_of_a_device(name):
    found = device.usable(load.hardware(name))
    if name in UNKNOWN:
        assert found.mark == "estimated" and load.hardware(name).devices.usable is None
    else:
        budget = found.bytes / GIB * 0.9
        said = BUDGETS[name]
        places = len(said.partition(".")[2])
        assert abs(budget - float(said)) <= 0.5001 * 10**-places and found.mark == "measured"


@pytest.mark.parametrize("name", NAMES)
def test_the_tool_shows_more_than_torch_and_less_than_a_tenth(name):
    usable = load.hardware(name).devices.usable
    if usable and usable.tool_mib and load.hardware(name).vendor != "ascend":
        assert 1 - 0.01 < usable.gib / (usable.tool_mib / 1024) < 1 + 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_those_of_dense_arithmetic(name):
    peaks = load.hardware(name).peaks
    if name in UNKNOWN:
        assert not any(vars(peaks).values())
        return
    memory, *others = PEAKS[name]
    parts = (
        peaks.bf16_tflops,
        peaks.fp8_tflops,
        peaks.int8_tops,
        peaks.fp4_tflops,
        peaks.node_link_gb_s,
    )
    assert peaks.memory_gb_s.value == pytest.approx(memory * 1000)
    assert [one and one.value for one in parts] == others


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name):
    chip = load.hardware(name)
    figures = [one for one in vars(chip.peaks).values() if one]
    figures += [chip.devices.usable] if chip.devices.usable else []
    assert (not figures) == (name in UNKNOWN)
    for one in figures:
        assert len(one.source) > 8
    assert chip.source.document


@pytest.mark.parametrize("name", NAMES)
def test_a_service_can_be_planned_on_it(name, plan_on):
    """With a recipe of the test: plan, check and bundle, on the example site of the hardware."""
    plan = plan_on(name)
    assert judge.plan(plan).ok
    files = scripts.files(plan)
    chip = plan.request.hardware
    assert {engine.node for engine in plan.engines} == set(plan.nodes)
    for engine in plan.engines:
        assert set(engine.devices) == set(range(chip.devices.count))
        assert plan.image in "".join(
            text for path, text in files.items() if path.startswith(f"{engine.node}/")
        )


@pytest.mark.parametrize(
    "name, version, image",
    [
        ("h100", "0.19.1", "vllm/vllm-openai:v0.19.1-cu130"),
        ("h20", "0.12.0", "vllm/vllm-openai:v0.12.0"),
        ("b200", "0.25.1", "vllm/vllm-openai:v0.25.1"),
        ("b300", "0.19.1", "vllm/vllm-openai:v0.19.1-cu130"),
        ("b300", "0.25.1", "vllm/vllm-openai:v0.25.1"),
        ("gb300", "0.19.1", "vllm/vllm-openai:v0.19.1-aarch64-cu130"),
        ("gb300", "0.25.1", "vllm/vllm-openai:v0.25.1-aarch64"),
        ("mi325x", "0.19.1", "vllm/vllm-openai-rocm:v0.19.1"),
        ("mi350x", "0.25.1", "vllm/vllm-openai-rocm:v0.25.1"),
        ("mi355x", "0.25.1", "vllm/vllm-openai-rocm:v0.25.1"),
        ("a5", "v0.23.0", "quay.io/ascend/vllm-ascend:v0.23.0-a5"),
    ],
)
def test_the_image_is_that_of_vendor_and_version(name, version, image, plan_on):
    assert plan_on(name, engine_version=version).image == image


def test_an_mi350x_takes_the_recipes_of_an_mi355x():
    chip = load.hardware("mi350x")
    assert chip.recipes_of == "mi355x" and chip.devices.target == "gfx950"
    assert load.hardware("mi325x").recipes_of == "mi325x"


def test_a_wrong_name_is_answered_with_every_hardware():
    with pytest.raises(ParameterError) as caught:
        load.hardware("b400")
    assert all(f" {name}" in str(caught.value) for name in load.names("hardware"))


@pytest.mark.parametrize("name, judged", [("a3", True), ("a5", False)])
def test_a_buffer_is_judged_where_the_operators_are_known(name, judged, plan_on):
    flags = {"max-model-len": 16384, "max-num-seqs": 512}
    plan = plan_on(name, settings={"flags": flags, "env": {"HCCL_BUFFSIZE": "1"}})
    rules = {finding.rule for finding in judge.plan(plan).findings}
    assert ("capacity/hccl-buffer" in rules) == judged


@pytest.mark.parametrize(
    "name, install, version, told",
    [
        ("b300", "pip", "0.19.1", True),
        ("b300", "pip", "0.25.1", False),
        ("gb300", "docker", "0.19.1", False),  # takes the image with -cu130
        ("gb300", "docker", "0.12.0", True),  # there is none
        ("b200", "pip", "0.19.1", False),
        ("h100", "pip", "0.19.1", False),
    ],
)
def test_blackwell_ultra_asks_for_cuda_13(name, install, version, told, plan_on):
    plan = plan_on(name, install=install, engine_version=version)
    found = [one for one in judge.plan(plan).findings if one.rule == "containers/cuda-of-gpu"]
    assert bool(found) == told
