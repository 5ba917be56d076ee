"""Depth-weighted averaging (DWA) over the history of a residual stream."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.nn.precision import widen

History = tuple[Float[Array, "B T D"], ...]


def _last_one(key, shape, dtype=jnp.float32):
  del key
  return jnp.zeros(shape, dtype).at[-1].set(1.0)


class DepthWeightedAverage(nn.Module):
  """Σ_m α_m X_m over everything the stream has been; starts as "the latest one".

  The history holds the residual sums before mixing, never the mixtures. The α are plain numbers:
  no softmax, no constraint. Source: DenseFormer; GPT-BERT's gated variant keeps one per sublayer.
  """

  @nn.compact
  def __call__(self, history: History) -> Float[Array, "B T D"]:
    alpha = self.param("alpha", _last_one, (len(history),))
    mixed = alpha[0] * widen(history[0])
    for m, x_BTD in enumerate(history[1:], start=1):
      mixed = mixed + alpha[m] * widen(x_BTD)
    return mixed
