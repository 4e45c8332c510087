"""What lies beside torch, and how large HCCL_BUFFSIZE must be."""

from __future__ import annotations

import pytest

from kimi_nb.plan.memory import GIB, MIB, Shape, buffers

NPU = Shape(tp=8, expert_parallel=True, vendor="ascend", buffer_mib=300)


def sizes(one, unit=GIB) -> tuple[float, ...]:
    return one.bytes / unit, one.low / unit, one.high / unit


def test_only_what_dispatches_tokens_has_a_buffer_of_the_variables_size():
    assert buffers.buffer_bytes(NPU) == 2 * (300 + 200 + 200) * MIB
    assert buffers.buffer_bytes(Shape(buffer_mib=300)) == 2 * (200 + 200) * MIB


def test_an_npu_has_buffers_connector_and_contexts():
    shape = Shape(tp=8, expert_parallel=True, vendor="ascend", buffer_mib=300, transfer_mib=32)
    first, second, third = buffers.terms(shape)
    assert [first.name, second.name, third.name] == ["buffers", "connector", "contexts"]
    assert sizes(first, MIB) == pytest.approx((1400, 1120, 1610))
    assert first.formula == "2 x (HCCL_BUFFSIZE + 2 x 200 MB)"
    assert first.source == (
        "CANN, environment variables; 3.15 GiB beside torch logged at 1024 MB, Mooncake issue 2827"
    )
    assert sizes(second, MIB) == (32, 0, 64)
    assert (second.formula, second.source) == ("ASCEND_BUFFER_POOL", "Mooncake, transfer engine")
    assert sizes(third) == pytest.approx((0.25, 0.13, 0.6))
    assert third.formula == "driver, libraries and communicators"
    assert first.inside and second.inside and third.inside


@pytest.mark.parametrize(
    "shape",
    [
        Shape(tp=8, vendor="ascend"),
        Shape(vendor="ascend", buffer_mib=300),
    ],
)
def test_without_a_size_or_a_second_device_there_are_no_buffers(shape):
    assert [one.name for one in buffers.terms(shape)] == ["contexts"]


def test_two_devices_have_buffers():
    assert buffers.terms(Shape(dp=2, vendor="ascend", buffer_mib=1))[0].name == "buffers"
    small = Shape(vendor="ascend", transfer_mib=1)
    assert buffers.terms(small)[0].bytes == MIB


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (Shape(), 0.15),
        (Shape(tp=2), 1.3),
        (Shape(dp=2), 1.3),
        (Shape(vendor="ascend"), 0.25),
        (Shape(vendor="cpu"), 0.6),
    ],
)
def test_one_device_has_no_communicator(shape, size):
    (found,) = buffers.terms(shape)
    assert found.bytes == pytest.approx(size * GIB) and found.source


def test_the_kernels_of_a_format_take_a_workspace_after_the_cache():
    found = buffers.terms(Shape(tp=8), "MXFP4")[0]
    assert found.name == "expert workspace" and found.inside is False
    assert sizes(found) == pytest.approx((1.6, 0, 2))
    assert found.formula == "workspace of the experts' kernels" and "Kimi-K3" in found.source
    for shape, precision in ((Shape(tp=8, vendor="amd"), "MXFP4"), (Shape(tp=8), "INT4")):
        assert [one.name for one in buffers.terms(shape, precision)] == ["contexts"]


# HCCL_BUFFSIZE ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "to", "wanted"), [(0, 8, 0), (1, 8, 8), (8, 8, 8), (9, 8, 16)])
def test_up(value, to, wanted):
    assert buffers.up(value, to) == wanted


@pytest.mark.parametrize(
    ("hidden", "row", "back", "need"),
    [
        # 466 B are 480, with 44 more than 512; 960 B stay, and 44 more are below 1024.
        (233, 1024, 512, 57),  # 2000 x (1024 x 12 + 512 x 5) x 2 = 59,392,000 B
        (480, 1024, 1024, 67),  # 2000 x (1024 x 12 + 1024 x 5) x 2 = 69,632,000 B
    ],
)
def test_a3_counts_what_is_sent_to_every_expert_and_returned(hidden, row, back, need):
    assert buffers.buffer_need_a3(2000, hidden, 4, 3, 5) == (
        need,
        f"(2000 tokens x {row} B x 4 ranks x 3 experts + 2000 x {back} B x 5) x 2 = {need} MB",
    )


def test_a3_wants_more_than_what_fits_exactly():
    """1024 x (512 x 1 + 512 x 1) x 2 B are 2 MiB."""
    assert buffers.buffer_need_a3(1024, 200, 1, 1, 1)[0] == 3


def test_a3_between_nodes_keeps_a_table_with_each_row():
    """3 x (8 + 7) = 45 is 40, 3 x (1 + 7) stays 24; 64 B more, and 404 MB."""
    assert buffers.buffer_need_hierarchy(32, 7168, 384, 8) == (
        575,  # 384 x 32 x 14560 B = 170.6 MiB
        "384 experts x 32 tokens x 14560 B + 404 MB = 575 MB",
    )
    assert buffers.buffer_need_hierarchy(1024, 432, 1, 1) == (
        406,  # 1024 x 1024 B = 1 MiB
        "1 experts x 1024 tokens x 1024 B + 404 MB = 406 MB",
    )


def test_a2_keeps_16_bytes_for_each_choice_in_eights():
    assert buffers.buffer_need_a2(16, 7168, 384, 8) == (
        189,  # 384 x 16 x 14464 B = 84.8 MiB
        "384 experts x 16 tokens x 14464 B + 104 MB = 189 MB",
    )
    assert buffers.buffer_need_a2(32, 384, 32, 9) == (
        105,  # 32 x 32 x 1024 B = 1 MiB
        "32 experts x 32 tokens x 1024 B + 104 MB = 105 MB",
    )
