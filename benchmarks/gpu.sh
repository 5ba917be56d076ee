#!/usr/bin/env bash
# The training step on one GPU, in under 8 minutes: share of the measured GEMM peak in bfloat16 by
# rematerialisation, and beside the plain PyTorch loop.
#
#     pip install -e '.[cuda]' torch && bash benchmarks/gpu.sh | tee gpu.md
#
# CONFIG, BATCH and PAIRS change what is timed; PLATFORM=cpu tries the script without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

CONFIG=${CONFIG:-configs/looped_gpt_bert.py}
BATCH=${BATCH:-256}
PAIRS=${PAIRS:-10}
PYTHON=${PYTHON:-python}
# PyTorch works beside: jax must not take all memory at once.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
export JAX_PLATFORMS=${PLATFORM:-cuda,cpu}

"$PYTHON" - <<PYTHON_END
import jax
print("#", jax.devices()[0].device_kind, "jax", jax.__version__)
PYTHON_END

step() {
  timeout 150 "$PYTHON" benchmarks/train_step.py --config="$CONFIG" --batch="$BATCH" \
    --dtype=bfloat16 --pairs="$PAIRS" "$@" || echo "(that one failed or took too long)"
}

step --set=model.remat=none --against=torch
step --set=model.remat=dots --against=model.remat=attention
step --set=model.remat=dots --against=model.block.position_lookup=gather
