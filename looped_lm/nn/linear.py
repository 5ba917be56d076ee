"""The dense layer, and the initialiser of the GPT-BERT family."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.nn.precision import narrow


def truncated_normal(embed_dim: int, *, scale: float = 1.0) -> nn.initializers.Initializer:
  """scale · N(0, 2 / (5 D)) cut at two standard deviations, its variance not corrected for the cut.

  Source: GPT-BERT reference; the realised standard deviation is 0.88 of the nominal one.
  """
  sigma = scale * math.sqrt(2.0 / (5.0 * embed_dim))

  def init(key, shape, dtype=jnp.float32):
    return sigma * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

  return init


class Linear(nn.Module):
  """x W (+ b), with W of shape [inputs, features].

  The product is taken on a flat [tokens, inputs] matrix: XLA:CPU is faster at it than at a batched
  one, and on accelerators it is the same.

  Attributes:
    features: Width of the output.
    kernel_init: Initialiser of W.
    use_bias: Whether there is a b, starting at zero.
    compute_dtype: Dtype of the product's operands and of the output.
  """

  features: int
  kernel_init: nn.initializers.Initializer
  use_bias: bool = False
  compute_dtype: str = "float32"

  @nn.compact
  def __call__(
    self, x: Float[Array, "... I"], columns: slice = slice(None)
  ) -> Float[Array, "... O"]:
    """Multiplies.

    Args:
      x: The input.
      columns: Of W and b, that the output has; by default all.
    """
    kernel_IO = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))[:, columns]
    flat = narrow(x, self.compute_dtype).reshape(-1, x.shape[-1])
    out = flat @ narrow(kernel_IO, self.compute_dtype)
    if self.use_bias:
      bias_O = self.param("bias", nn.initializers.zeros, (self.features,))[columns]
      out = out + narrow(bias_O, self.compute_dtype)
    return out.reshape(*x.shape[:-1], -1)
