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


# Name -> (activation, whether a second projection is multiplied in).
ACTIVATIONS = {
  # Parcae's has the half in front.
  "relu2": (lambda x: 0.5 * jnp.square(jax.nn.relu(x)), False),
  "gelu": (lambda x: jax.nn.gelu(x, approximate=False), False),
  "swiglu": (jax.nn.silu, True),
  "geglu": (lambda x: jax.nn.gelu(x, approximate=False), True),
}


class Mlp(nn.Module):
  """f(x W₁) W₂, or (f(a) · b) W₂ with [a | b] = x W₁ where gated.

  Attributes:
    embed_dim: D.
    mlp_dim: F.
    activation: A key of `ACTIVATIONS`: relu2 is 0.5 · relu(x)², gelu is exact.
    up_init: Initialiser of W₁.
    down_init: Initialiser of W₂.
    use_bias: Whether the projections have biases.
    compute_dtype: Of the matrix products.
  """

  embed_dim: int
  mlp_dim: int
  activation: str
  up_init: nn.initializers.Initializer
  down_init: nn.initializers.Initializer
  use_bias: bool = False
  compute_dtype: str = "float32"

  @nn.compact
  def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    activate, gated = ACTIVATIONS[self.activation]
    options = {"use_bias": self.use_bias, "compute_dtype": self.compute_dtype}
    width = 2 * self.mlp_dim if gated else self.mlp_dim
    y_BTF = Linear(width, self.up_init, name="up", **options)(x_BTD)
    if gated:
      y_BTF, factor_BTF = jnp.split(y_BTF, 2, axis=-1)
      y_BTF = activate(y_BTF) * factor_BTF
    else:
      y_BTF = activate(y_BTF)
    return Linear(self.embed_dim, self.down_init, name="down", **options)(y_BTF)
