"""Feed-forward sublayers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.nn.linear import Linear, truncated_normal
from looped_lm.nn.norms import layer_norm


class NormedGeglu(nn.Module):
  """LN_F(a · GELU_tanh(b)) W₂ with [a | b] = x W₁; no biases.

  Attributes:
    embed_dim: D.
    mlp_dim: F.
    init_scale: Factor on both initial matrices.
    norm_eps: Of the inner norm, which has no parameters.
    compute_dtype: Of the matrix products.
  """

  embed_dim: int
  mlp_dim: int
  init_scale: float
  norm_eps: float
  compute_dtype: str = "float32"

  @nn.compact
  def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    init = truncated_normal(self.embed_dim, scale=self.init_scale)
    both = Linear(2 * self.mlp_dim, init, compute_dtype=self.compute_dtype, name="up")(x_BTD)
    value_BTF, gate_BTF = jnp.split(both, 2, axis=-1)
    y_BTF = layer_norm(value_BTF * jax.nn.gelu(gate_BTF, approximate=True), self.norm_eps)
    return Linear(self.embed_dim, init, compute_dtype=self.compute_dtype, name="down")(y_BTF)
