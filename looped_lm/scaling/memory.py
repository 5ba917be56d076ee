"""How much memory the backward pass keeps: an estimate.

The formula is a sum of what a step must hold at its peak, and its three constants were fitted to
the temporary memory XLA reports for GPT-BERT blocks on CPU (R 1 to 24, T 128 and 2,048, all
rematerialisations; tests/scaling/test_describe.py holds the figures). Expect it within 30 % there,
an overestimate for a single loop, and less on accelerators, whose compilers fuse more. Parameters,
gradients and optimiser state are not in it.
"""

from collections.abc import Mapping
from typing import Any

import jax

from looped_lm.nn import depth
from looped_lm.types import Params

# Values kept per output of a weight product: the product, and what norms, gates, dropout, residual
# sums and their gradients keep of it.
_PER_PRODUCT = 4.0
# [T, T] matrices kept per head and layer application, and those alive while one goes backward.
_KEPT_SCORES = 2.25
_LIVE_SCORES = 4.0
# Copies of the logits: themselves, their softmax and their gradient.
_LOGITS = 3
_FLOAT32_BYTES = 4


def activation_bytes(
  model: Mapping[str, Any], params: Params, *, rows: int, seq_len: int, chunk_tokens: int = 0
) -> int:
  """Estimates the peak of a step's temporary memory on one device.

  Args:
    model: The `model` group of a config; its block has `num_heads`.
    params: Parameters or their shapes.
    rows: Rows that go through a device at once: batch / (devices × micro-batches).
    seq_len: T.
    chunk_tokens: `objective.chunk_tokens`: positions whose logits exist at a time, 0 for all.
  """
  product_bytes = 2 if model["compute_dtype"] == "bfloat16" else _FLOAT32_BYTES
  outputs = _layer_outputs(model, params)
  scores = model["block"]["num_heads"] * seq_len
  # Per token: what one layer application keeps without rematerialisation, and of it the products.
  products = outputs * product_bytes
  kept = products + ((_PER_PRODUCT - 1) * outputs + _KEPT_SCORES * scores) * _FLOAT32_BYTES
  core = model["core_layers"]
  # Loops without gradient keep nothing.
  settings = model.get("depth", {"name": "fixed"})
  loops = depth.make(settings, num_loops=model["num_loops"]).trained_loops
  state = loops * model["embed_dim"] * _FLOAT32_BYTES
  if model["remat"] == "none":
    looped = loops * core * kept
  elif model["remat"] in ("dots", "attention"):
    attention = (scores + model["embed_dim"]) * _FLOAT32_BYTES
    saved = products + (attention if model["remat"] == "attention" else 0)
    looped = state + loops * core * saved + core * (kept - products)
  else:
    looped = state + core * kept
  once = (model["prelude_layers"] + model["coda_layers"]) * kept
  live = (outputs + _LIVE_SCORES * scores) * _FLOAT32_BYTES
  logits = _LOGITS * params["embed"]["embedding"].shape[0] * _FLOAT32_BYTES
  logits *= min(1.0, (chunk_tokens or rows * seq_len) / (rows * seq_len))
  # At the head all kept values exist but nothing recomputed does; later it is the other way round.
  held = looped - (core * kept if model["remat"] == "full" else 0)
  if model["remat"] in ("dots", "attention"):
    held -= core * (kept - products)
  return int(rows * seq_len * max(once + held + logits, once + looped + live))


def _layer_outputs(model: Mapping[str, Any], params: Params) -> float:
  """Width of all products with the matrices of a layer, together: the core's, or any stack's."""
  for stack in ("core", "prelude", "coda"):
    if model[f"{stack}_layers"]:
      leaves = jax.tree_util.tree_leaves_with_path(params[stack])
      outputs = sum(x.shape[-1] for path, x in leaves if path[-1].key == "kernel")
      return outputs / model[f"{stack}_layers"]
  return 0.0
