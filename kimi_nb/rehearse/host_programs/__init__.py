"""The programs that a rehearsal puts first on PATH: docker, npu-smi, pip, vllm-router and more."""
