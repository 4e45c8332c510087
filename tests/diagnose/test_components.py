"""The part of the system, where a code, a library and the words name different ones."""

from __future__ import annotations

import pytest

from kimi_nb.diagnose import doctor

ERROR = "(Worker_TP3 pid=9) ERROR 11-22 05:49:28 [a.py:7] "
NPU = "/torch_npu/csrc/aten/a.cpp:210 OPS function error: "
# name: the lines, the part, the rank, a word of the line
LOGS = {
    "an operator of HCCL fails within": (
        [f"{ERROR}RuntimeError: InnerRun:{NPU}HcclAllreduce, error code is 361001"],
        ("hccl", "TP3", "361001"),
    ),
    "any other kernel fails within": (
        [f"{ERROR}RuntimeError: InnerRun:{NPU}aclnnMatmul, error code is 361001"],
        ("kernel", "TP3", "361001"),
    ),
    "what failed within stands below": (
        [
            f"{ERROR}RuntimeError: InnerRun:{NPU}aclnnDispatch, error code is 361001",
            "EI0006: 2026-11-22-05:49:28.123.456 Getting socket times out. Reason: Remote Rank did not "
            "send the data in time.",
        ],
        ("hccl", "TP3", "EI0006"),
    ),
    "a rank did not come to Gloo's barrier": (
        [f"{ERROR}RuntimeError: Rank 5 failed to pass monitoredBarrier in 60000 ms"],
        ("gloo", 5, "monitoredBarrier"),
    ),
    "a rank was lost in Gloo's barrier": (
        [
            "[rank2]:[E1122 05:49:28.1 ProcessGroupGloo.cpp:145] Rank 2 successfully reached "
            "monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please "
            "check rank 0 logs for faulty rank."
        ],
        ("gloo", 0, "received errors"),
    ),
    "CUDA fails in DeepEP": (
        [
            f"{ERROR}RuntimeError: Failed: CUDA error /src/csrc/deep_ep.cpp:1122 'unspecified launch failure'"
        ],
        ("deepep", "TP3", "deep_ep.cpp"),
    ),
    "CUDA fails in DeepEP, which raises nothing": (
        [
            "Failed: CUDA error csrc/kernels/internode_ll.cu:79 'too many blocks in cooperative launch'"
        ],
        ("deepep", None, "too many blocks"),
    ),
    "an assertion of DeepEP": (
        [
            "python3: /s/runtime.cu:41: int deep_ep::internode::init(): Assertion `rank >= 0' failed."
        ],
        ("deepep", None, "rank >= 0"),
    ),
    "DeepEP waits": (
        ["DeepEP timeout for combine receiver, rank 9, responsible_channel = 3, slot_idx = 0"],
        ("deepep", 9, "combine receiver"),
    ),
    "the compiler of graphs for Gaudi": (
        [
            "[05:49:34.310951][GC                    ][error][tid:52C1B] Failed to load tpc kernel for node: TPC2"
        ],
        ("jit", None, "tpc kernel"),
    ),
    "a source that does not compile": (
        ['(Worker_TP0 pid=1) /opt/cuda/include/cuda_fp8.hpp(200): error: no operator "=" matches'],
        ("jit", "TP0", "no operator"),
    ),
    "sizes that do not fit": (
        [f"{ERROR}ValueError: Tensor-parallel size 3 does not divide 64 heads"],
        ("configuration", "TP3", "does not divide"),
    ),
    "a library of MPI": (
        [
            "[a3-0:77] *** An error occurred in MPI_Init_thread",
            "[a3-0:77] *** on a NULL communicator",
        ],
        ("library", None, "MPI_Init_thread"),
    ),
    "memory of Gaudi": (
        [
            "[rank2]: RuntimeError: [Rank:2] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::2348"
        ],
        ("memory", 2, "PT_DEVMEM"),
    ),
    "a device of Intel": (
        [f"{ERROR}RuntimeError: Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RES)"],
        ("device", "TP3", "Native API"),
    ),
    "memory that TensorRT-LLM asks CUDA for": (
        ["[TensorRT-LLM][ERROR] Assertion failed: Can't allocate tensor. cudaMalloc failed (/x)"],
        ("memory", None, "cudaMalloc"),
    ),
    "a kernel of FlashInfer": (
        [f"{ERROR}RuntimeError: FlashInfer Internal Error: Invalid : NUM_MMA_Q=1 NUM_MMA_D_QK=8"],
        ("kernel", "TP3", "FlashInfer"),
    ),
    "packages that do not fit": (
        [
            "  \u00d7 No solution found when resolving dependencies:",
            "  \u2570\u2500\u25b6 Because vllm==0.11.0 depends on torch==2.8.0 and you require torch==2.9.0",
        ],
        ("package", None, "No solution"),
    ),
    "what docker compose starts is killed": (
        ["Attaching to vllm-1", "vllm-1 exited with code 137"],
        ("host-memory", None, "exited with code 137"),
    ),
    "an event of Ray": (
        [
            '{"host_name":"gpu-1","label":"RAYLET_MARKED_DEAD","message":"Exiting because this node has '
            'been marked as dead by the GCS","pid":"93","severity":"FATAL","source_type":"RAYLET"}'
        ],
        ("ray", None, "RAYLET_MARKED_DEAD"),
    ),
    "a container of Apptainer": (
        ["FATAL:   container creation failed: mount /proc/self/fd/3->/opt/x error: while mounting"],
        ("container", None, "container creation"),
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_part_of(name, tmp_path):
    lines, (part, rank, word) = LOGS[name]
    path = tmp_path / "serve.log"
    path.write_text("\n".join(lines) + "\n")
    found = doctor.examine(path).first
    assert (found.component, found.rank) == (part, rank) and word in found.text, found
