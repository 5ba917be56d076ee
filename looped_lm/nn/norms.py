"""Normalisation, in at least float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.nn.precision import widen


def layer_norm(x: Float[Array, "... D"], eps: float) -> Float[Array, "... D"]:
  """(x - mean) / sqrt(var + eps) over the last axis, with the population variance."""
  x = widen(x)
  x = x - x.mean(axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + eps)


class LayerNorm(nn.Module):
  """Layer norm with a learned scale and bias.

  Attributes:
    eps: Added to the variance.
  """

  eps: float

  @nn.compact
  def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    scale_D = self.param("scale", nn.initializers.ones, (x.shape[-1],))
    bias_D = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
    return layer_norm(x, self.eps) * scale_D + bias_D
