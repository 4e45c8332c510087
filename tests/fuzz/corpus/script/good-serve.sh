#!/bin/bash
set -e
export VLLM_USE_V1=1 HCCL_BUFFSIZE=${BUF:-1200}
PORT=8000
args=(--max-num-seqs 16 --trust-remote-code)
for rank in 0 1; do
  vllm serve /models/Kimi-K2.5 --host 0.0.0.0 --port $((PORT + rank)) \
    --tensor-parallel-size 8 "${args[@]}" \
    --additional-config '{"enable_weight_nz_layout": true}' &
done
if [ "$1" = pd ]; then cat <<EOF > proxy.yaml
port: $PORT
EOF
fi
docker run --rm --net=host -v /data:/data quay.io/ascend/vllm-ascend:v0.18.0 bash -c "vllm serve /m -tp 16"
wait
