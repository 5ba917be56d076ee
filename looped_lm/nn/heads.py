"""From hidden states to logits, with the token table tied."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from looped_lm.nn import dropout
from looped_lm.nn.linear import Linear, truncated_normal
from looped_lm.nn.norms import layer_norm
from looped_lm.nn.precision import accumulator, narrow


def tied_logits(
  x_BTD: Float[Array, "B T D"], embedding_VD: Float[Array, "V D"], compute_dtype: str
) -> Float[Array, "B T V"]:
  """x Eᵀ, summed and returned in at least float32."""
  flat = narrow(x_BTD, compute_dtype).reshape(-1, x_BTD.shape[-1])
  embedding_VD = narrow(embedding_VD, compute_dtype)
  logits = jnp.einsum("ID,VD->IV", flat, embedding_VD, preferred_element_type=accumulator(flat))
  return logits.reshape(*x_BTD.shape[:-1], -1)


class TransformHead(nn.Module):
  """BERT's prediction head: LN, linear, GELU (exact), LN, dropout, tied table, bias.

  Attributes:
    norm_eps: Of both norms, which have no parameters.
    dropout_rate: In [0, 1).
    compute_dtype: Of the matrix products.
  """

  norm_eps: float = 1e-5
  dropout_rate: float = 0.0
  compute_dtype: str = "float32"

  @nn.compact
  def __call__(
    self,
    hidden_BTD: Float[Array, "B T D"],
    embedding_VD: Float[Array, "V D"],
    keys_B: Key[Array, " B"] | None,
  ) -> Float[Array, "B T V"]:
    vocab_size, embed_dim = embedding_VD.shape
    x_BTD = Linear(
      embed_dim,
      kernel_init=truncated_normal(embed_dim),
      use_bias=True,
      compute_dtype=self.compute_dtype,
      name="transform",
    )(layer_norm(hidden_BTD, self.norm_eps))
    x_BTD = layer_norm(jax.nn.gelu(x_BTD, approximate=False), self.norm_eps)
    x_BTD = dropout.dropout(x_BTD, self.dropout_rate, keys_B, site=dropout.HEAD)
    bias_V = self.param("bias", nn.initializers.zeros, (vocab_size,))
    return tied_logits(x_BTD, embedding_VD, self.compute_dtype) + bias_V


HEADS = {"transform": TransformHead}
