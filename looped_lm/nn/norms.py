"""Normalisation, in at least float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from looped_lm.nn.precision import widen

NORMS = ("rms", "layer")


def layer_norm(x: Float[Array, "... D"], eps: float) -> Float[Array, "... D"]:
  """(x - mean) / sqrt(var + eps) over the last axis, with the population variance."""
  x = widen(x)
  x = x - x.mean(axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + eps)


def rms_norm(x: Float[Array, "... D"], eps: float) -> Float[Array, "... D"]:
  """x / sqrt(mean(x²) + eps) over the last axis."""
  x = widen(x)
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


class Norm(nn.Module):
  """A norm with a learned scale, perhaps a bias, perhaps one of each per loop.

  Attributes:
    kind: "rms" or "layer".
    eps: Added to the mean square or the variance.
    use_bias: Whether there is a bias.
    num_loops: Loops with a scale and bias of their own; 0 has one for all. Deeper loops use the
      last one's, and so does nothing outside the recurrence: there is one scale then.
  """

  kind: str
  eps: float
  use_bias: bool = False
  num_loops: int = 0

  @nn.compact
  def __call__(
    self, x_BTD: Float[Array, "B T D"], loop_B: Int[Array, " B"] | None = None
  ) -> Float[Array, "B T D"]:
    shape = (x_BTD.shape[-1],)
    if self.num_loops > 0 and loop_B is not None:
      shape = (self.num_loops, *shape)

    def own(table: jax.Array) -> jax.Array:
      return table if table.ndim == 1 else per_row(table, jnp.asarray(loop_B))[:, None]

    y_BTD = (rms_norm if self.kind == "rms" else layer_norm)(x_BTD, self.eps)
    y_BTD = y_BTD * own(self.param("scale", nn.initializers.ones, shape))
    if self.use_bias:
      y_BTD = y_BTD + own(self.param("bias", nn.initializers.zeros, shape))
    return y_BTD


def per_row(table_R: Float[Array, "R ..."], loop_B: Int[Array, " B"]) -> Float[Array, "B ..."]:
  """Each row's entry of a per-loop table; loops beyond its end use the last entry."""
  return table_R[jnp.minimum(loop_B, table_R.shape[0] - 1)]
