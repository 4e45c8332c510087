"""Small checkouts in the grammar of the public ones, in our own words."""

from __future__ import annotations

from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"

TAXONOMY = """
hardware_profiles:
  h100: {brand: NVIDIA, generation: hopper, gpu_count: 8, vram_gb: 640}
  h200: {brand: NVIDIA, generation: hopper, gpu_count: 8, vram_gb: 1128}
  b200: {brand: NVIDIA, generation: blackwell, gpu_count: 8, vram_gb: 1440}
  gb200: {brand: NVIDIA, generation: blackwell, gpu_count: 4, vram_gb: 768}
  mi300x: {brand: AMD, generation: amd, gpu_count: 8, vram_gb: 1536}
  desk: {brand: NVIDIA, generation: blackwell, gpu_count: 1, vram_gb: 96, scalable: false, restricted: true}
  chip: {brand: Google, generation: tpu, gpu_count: 8, vram_gb: 256, restricted: true}
"""

STRATEGIES = {
    "strategies/single_node_tp.yaml": """
name: single_node_tp
deploy_type: single_node
parallel_flag: "--tensor-parallel-size"
""",
    "strategies/single_node_dep.yaml": """
name: single_node_dep
deploy_type: single_node
vllm_args: ["--enable-expert-parallel"]
parallel_flag: "--data-parallel-size"
""",
    "strategies/single_node_tep.yaml": """
name: single_node_tep
deploy_type: single_node
vllm_args: ["--enable-expert-parallel"]
parallel_flag: "--tensor-parallel-size"
""",
    "strategies/multi_node_tp.yaml": """
name: multi_node_tp
deploy_type: multi_node
parallel_flag: "--tensor-parallel-size"
env: {GLOO_SOCKET_IFNAME: "$IFACE_NAME"}
""",
    "strategies/multi_node_dep.yaml": """
name: multi_node_dep
deploy_type: multi_node
vllm_args: ["--enable-expert-parallel"]
parallel_flag: "--data-parallel-size"
""",
    "strategies/multi_node_tp_pp.yaml": """
name: multi_node_tp_pp
deploy_type: multi_node
parallelism: tp_pp
parallel_flag: "--tensor-parallel-size"
""",
    "strategies/multi_node_tp_dp.yaml": """
name: multi_node_tp_dp
deploy_type: multi_node
parallelism: tp_dp
parallel_flag: "--tensor-parallel-size"
""",
    "strategies/pd_cluster.yaml": """
name: pd_cluster
deploy_type: pd_cluster
parallel_flag: "--tensor-parallel-size"
prefill:
  vllm_args: ["--port", "8001", "--kv-transfer-config", '{"kv_role":"kv_producer"}']
  env: {NCCL_CUMEM_ENABLE: "1", SIDE: "$PREFILL_NODE_1"}
decode:
  vllm_args: ["--port", "8002", "--kv-transfer-config", '{"kv_role":"kv_consumer"}']
""",
    "kv_store/pool.yaml": """
name: pool
deploy_type: kv_store_lb
default_instances: 3
min_vllm_version: "0.21.0"
vllm:
  vllm_args: ["--kv-transfer-config", '{"kv_connector":"Pool"}']
  env: {PYTHONHASHSEED: 0}
  install: {nvidia: "pip install pool-cuda", amd: "pip install pool-rocm"}
""",
}

PAGE = """
meta:
  tasks: [text]
  hardware: {h200: verified}
model:
  model_id: acme/Kimi-Toy
  min_vllm_version: "0.19.1"
  docker_image: {nvidia: {cu129: "img:129", cu130: "img:130"}, amd: "rocm:nightly"}
  base_args: ["--trust-remote-code"]
  base_env: {ALWAYS: "1"}
features:
  tools: {args: ["--tool-call-parser", "kimi_k2"]}
  draft:
    modes:
      old: {args: ["--speculative-config", '{"method":"eagle3"}']}
      new:
        args: ["--speculative-config", '{"method":"dflash"}']
        hardware: {amd: unsupported}
        hardware_overrides: {h100: {args: ["--speculative-config", '{"method":"small"}']}}
    default_mode: new
  quiet: {args: ["--language-model-only"]}
opt_in_features: [quiet]
hardware_opt_in_features: {gb200: [tools]}
variants:
  default: {precision: int4, vram_minimum_gb: 700}
  nvfp4:
    model_id: nvidia/Kimi-Toy-NVFP4
    precision: nvfp4
    vram_minimum_gb: 500
    extra_args: ["--kv-cache-dtype", "fp8"]
    extra_env: {FP4: "1"}
    docker_image: "img:fp4"
compatible_strategies:
  - single_node_tp
  - multi_node_tp
  - multi_node_dep
  - pd_cluster
strategy_hardware:
  multi_node_tp_dp: {gb200: supported}
  multi_node_dep: {mi300x: unsupported}
hardware_overrides:
  nvidia: {extra_args: ["--max-num-seqs", 16]}
  amd: {extra_env: {AITER: "1"}}
strategy_overrides:
  multi_node_tp:
    hardware_overrides: {hopper: {extra_args: ["--max-num-seqs", "8"], extra_env: {HOPPER: "1"}}}
  pd_cluster:
    env: {NCCL_NVLS_ENABLE: "1"}
    decode: {parallelism: dep, tp: 2, vllm_args: ["--block-size", "64"]}
guide: |
  ## Serve

  ### On 8x MI300X

  ```bash
  export FAST=1
  PORT=8100
  vllm serve acme/Kimi-Toy \\
    -tp 8 --port $PORT --host $HOST
  ```

  ### Two nodes of H800

  ```bash
  # node 0
  vllm serve acme/Kimi-Toy --data-parallel-size 16 --data-parallel-size-local 8
  # node 1
  vllm serve acme/Kimi-Toy --headless --data-parallel-start-rank 8 \\
    --data-parallel-size 16 --data-parallel-size-local 8
  ```

  ### Pipelines

  ```bash
  vllm serve acme/Kimi-Toy -tp 8 -pp 2
  ```
"""

CASES = """
_envs: &envs {OMP_NUM_THREADS: "1", FLAG: false}
_cmd: &cmd ["--tensor-parallel-size", "8", "--port", "$SERVER_PORT"]
test_cases:
  - name: short
    model: acme/Kimi-Toy-w4a8
    envs:
      <<: *envs
      HCCL_BUFFSIZE: 800
    server_cmd: *cmd
    server_cmd_extra: ["--enforce-eager"]
    benchmarks:
      perf: {case_type: performance, num_prompts: 8, baseline: 12.5, request_conf: left_out}
  - name: proxy
    model: acme/Kimi-Toy-w4a8
"""

POOLS = """
test_name: toy pools
model: acme/Kimi-Toy-w4a8
num_nodes: 2
npu_per_node: 16
routing:
  type: disaggregated_prefill
  groups: {prefiller: [0], decoder: [1]}
config:
  - {node_index: 0, port_start: 7100, dp_rpc_port: 12321, dp_size: 2, dp_size_local: 2, dp_rank_start: 0, tp_size: 8}
  - {node_index: 1, port_start: 7100, dp_rpc_port: 12321, dp_size: 4, dp_size_local: 4, dp_rank_start: 0, tp_size: 4}
templates:
  - node_index: 0
    envs: {PORT: "${PORT}"}
    server_cmd_template: ["--data-parallel-size", "${DP_SIZE}", "--data-parallel-rank", "${DP_RANK}",
                          "--data-parallel-rpc-port", "${DP_RPC_PORT}", "--tensor-parallel-size", "${TP_SIZE}"]
  - node_index: 1
    envs: {PORT: "${PORT}"}
    server_cmd_template: ["--data-parallel-size", "${DP_SIZE}", "--tensor-parallel-size", "${TP_SIZE}",
                          "--enable-expert-parallel"]
"""

NODES = """
test_name: toy nodes
model: acme/Kimi-Toy-w4a8
num_nodes: 2
npu_per_node: 8
deployment:
  - envs: {A: 1}
    server_cmd: >
      vllm serve acme/Kimi-Toy-w4a8
        --port $SERVER_PORT
        --speculative-config '{"method": "eagle3"}'
  -
    envs: {A: 1}
    server_cmd: >
      vllm serve acme/Kimi-Toy-w4a8
        --headless
        --data-parallel-start-rank 1
"""

TUTORIAL = """# Toy

## 5 Deploy {: #deploy }

### 5.1 One node

It fits 1 Atlas 800 A3 (64G x 16).

```shell
export HCCL_BUFFSIZE=800
vllm serve acme/Kimi-Toy-w4a8 --tensor-parallel-size 4 --data-parallel-size 4
```

### 5.2 Pools

Take two Atlas 800 A3.

=== "Node 0(Prefill)"

    ```shell
    vllm serve acme/Kimi-Toy-w4a8 --data-parallel-size $3 --tensor-parallel-size $7 \\
      --kv-transfer-config '{"kv_role": "kv_producer", "kv_connector_extra_config":
        {"prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 4, "tp_size": 4}}}'
    ```

=== "Node 1(Decode)"

    ```shell
    vllm serve acme/Kimi-Toy-w4a8 --data-parallel-size $3 --tensor-parallel-size $7 \\
      --kv-transfer-config '{"kv_role": "kv_consumer", "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "Store"},
        {"kv_connector": "Direct", "kv_role": "kv_consumer", "kv_connector_extra_config":
        {"prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 4, "tp_size": 4}}}]}}'
    ```

### 5.3 Many nodes (A2 series)

```shell
export MODEL=<TOY PATH>
vllm serve $MODEL --data-parallel-size 4 --data-parallel-size-local 1 --host <node0_ip>
```

```shell
START=<1_OR_2_OR_3>
vllm serve <TOY PATH> --headless --data-parallel-start-rank $START \\
  --data-parallel-size 4 --data-parallel-size-local 1
```
"""


def write(root: Path, files: dict[str, str]) -> Path:
    """Write some files, and the .git of a detached head."""
    for name, text in {".git/HEAD": f"{COMMIT}\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def recipes(root: Path, **changed: str) -> Path:
    """Write a checkout of recipes; ``page`` and ``taxonomy`` replace what they name."""
    return write(
        root,
        {
            "taxonomy.yaml": changed.get("taxonomy", TAXONOMY),
            "models/acme/Kimi-Toy.yaml": changed.get("page", PAGE),
            **STRATEGIES,
        },
    )


def ascend(root: Path, **changed: str) -> Path:
    """Write a checkout of vllm-ascend; ``cases`` replaces the cases on one node."""
    tests = "tests/e2e/weekly"
    return write(
        root,
        {
            "tests/e2e/nightly/README.md": "No configuration yet.\n",
            "vllm_ascend/__init__.py": "raise SystemExit('executed')\n",
            "docs/source/tutorials/models/Kimi-Toy.md": TUTORIAL,
            f"{tests}/single_node/configs/Kimi-Toy.yaml": changed.get("cases", CASES),
            f"{tests}/multi_node/external_dp/config/Kimi-Toy-PD.yaml": POOLS,
            f"{tests}/multi_node/internal_dp/config/Kimi-Toy-nodes.yaml": NODES,
            ".github/workflows/configs/weekly_config.yaml": (
                "a2:\n  single_node:\n    test_config:\n"
                "      - {name: toy, config_file_path: Kimi-Toy.yaml}\n"
            ),
        },
    )
