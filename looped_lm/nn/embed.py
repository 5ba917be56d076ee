"""Token embeddings."""

import flax.linen as nn
from jaxtyping import Array, Float, Int, Key

from looped_lm.nn import dropout
from looped_lm.nn.linear import truncated_normal
from looped_lm.nn.norms import layer_norm
from looped_lm.nn.precision import widen


class Embed(nn.Module):
  """Dropout(LN(E[token])); the norm has no parameters and may be off.

  Attributes:
    vocab_size: V.
    embed_dim: D.
    norm: Whether the vectors are layer-normalised.
    norm_eps: Added to the variance.
    dropout_rate: In [0, 1).
  """

  vocab_size: int
  embed_dim: int
  norm: bool = False
  norm_eps: float = 1e-5
  dropout_rate: float = 0.0

  def setup(self):
    self.embedding = self.param(
      "embedding", truncated_normal(self.embed_dim), (self.vocab_size, self.embed_dim)
    )

  def __call__(
    self, tokens_BT: Int[Array, "B T"], keys_B: Key[Array, " B"] | None
  ) -> Float[Array, "B T D"]:
    x_BTD = widen(self.embedding[tokens_BT])
    if self.norm:
      x_BTD = layer_norm(x_BTD, self.norm_eps)
    return dropout.dropout(x_BTD, self.dropout_rate, keys_B, site=dropout.EMBED)
