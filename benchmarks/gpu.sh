#!/usr/bin/env bash
# The training step on one GPU, in under 8 minutes: beside the plain PyTorch loop, the share of the
# measured GEMM peak in bfloat16 by rematerialisation, and fused attention.
#
#     pip install -e '.[cuda]' torch && bash benchmarks/gpu.sh | tee gpu.md
#
# Beside PyTorch, which keeps everything, half as many rows are tried until both fit: 80 GB are
# enough. CONFIG, BATCH, PAIRS and LIMIT, in seconds each, change what is timed; PLATFORM=cpu tries
# the script without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

CONFIG=${CONFIG:-configs/looped_gpt_bert.py}
LONG_CONFIG=${LONG_CONFIG:-configs/parcae.py}
BATCH=${BATCH:-256}
PAIRS=${PAIRS:-10}
LIMIT=${LIMIT:-110}
PYTHON=${PYTHON:-python}
# PyTorch works beside: jax must not take all memory at once.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
export JAX_PLATFORMS=${PLATFORM:-cuda,cpu}

"$PYTHON" - <<PYTHON_END
import jax
print("#", jax.devices()[0].device_kind, "jax", jax.__version__)
PYTHON_END

step() {
  local config=$1 rows=$2
  shift 2
  timeout "$LIMIT" "$PYTHON" benchmarks/train_step.py --config="$config" --batch="$rows" \
    --dtype=bfloat16 --pairs="$PAIRS" "$@" || {
    echo "(with $rows rows that one failed or took too long)"
    return 1
  }
}

for rows in "$BATCH" "$((BATCH / 2))" "$((BATCH / 4))" "$((BATCH / 8))"; do
  step "$CONFIG" "$rows" --set=model.remat=dots --against=torch && break
done
step "$CONFIG" "$BATCH" --set=model.remat=dots --against=model.remat=attention || true
step "$LONG_CONFIG" "$((BATCH / 16))" --seq-len=1024 --set=model.remat=full \
  --against=model.attention.name=fused || true
