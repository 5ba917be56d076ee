"""Token embeddings."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from looped_lm.errors import UserError
from looped_lm.nn import dropout, initial
from looped_lm.nn.linear import truncated_normal
from looped_lm.nn.norms import layer_norm
from looped_lm.nn.precision import widen
from looped_lm.nn.recurrence import sinusoid

POSITIONS = ("none", "learned", "sinusoidal")


class Embed(nn.Module):
  """Dropout(LN(scale · E[token] P + position)); every part but E may be off.

  Attributes:
    vocab_size: V.
    embed_dim: D.
    norm: Whether the vectors are layer-normalised, without parameters.
    norm_eps: Added to the variance.
    dropout_rate: In [0, 1).
    scale: Factor on the vectors.
    factor_dim: Width of the table where it is factorised (ALBERT): E is [V, factor_dim] and P
      projects to D. 0 is one table of width D.
    positions: "none", "learned" or "sinusoidal" vectors by position in the row.
    max_positions: Length of the learned ones.
    table_init: Initialiser of E, P and positions; "gpt_bert" cuts at two standard deviations.
    table_std: Standard deviation of their entries; "gpt_bert" has its own.
  """

  vocab_size: int
  embed_dim: int
  norm: bool = False
  norm_eps: float = 1e-5
  dropout_rate: float = 0.0
  scale: float = 1.0
  factor_dim: int = 0
  positions: str = "none"
  max_positions: int = 0
  table_init: str = "gpt_bert"
  table_std: float = 0.0

  def setup(self):
    if self.table_init == "gpt_bert":
      init = truncated_normal(self.embed_dim)
    else:
      init = initial.weights(self.table_init, self.table_std)
    width = self.factor_dim or self.embed_dim
    self.embedding = self.param("embedding", init, (self.vocab_size, width))
    if self.factor_dim:
      self.projection = self.param("projection", init, (width, self.embed_dim))
    if self.positions == "learned":
      self.position = self.param("position", init, (self.max_positions, self.embed_dim))

  def table(self) -> Float[Array, "V D"]:
    """One vector per token, as a tied read-out multiplies with."""
    return self.embedding @ self.projection if self.factor_dim else self.embedding

  def __call__(
    self,
    tokens_BT: Int[Array, "B T"],
    keys_B: Key[Array, " B"] | None,
    position_BT: Int[Array, "B T"] | None = None,
  ) -> Float[Array, "B T D"]:
    """Looks tokens up.

    Args:
      tokens_BT: Token ids.
      keys_B: The rows' keys, or None for no dropout.
      position_BT: Where they stand, or None for 0 .. T - 1.

    Raises:
      UserError: The rows are longer than the learned positions.
    """
    x_BTD = widen(self.embedding[tokens_BT])
    if self.factor_dim:
      x_BTD = x_BTD @ widen(self.projection)
    if self.scale != 1.0:
      x_BTD = self.scale * x_BTD
    length = tokens_BT.shape[1]
    if self.positions == "learned":
      if position_BT is None and length > self.max_positions:
        raise UserError(
          f"Rows of {length} tokens need model.embed.max_positions of at least that; it is "
          f"{self.max_positions}."
        )
      where = slice(length) if position_BT is None else position_BT
      x_BTD = x_BTD + widen(self.position[where])
    elif self.positions == "sinusoidal":
      where = jnp.arange(length) if position_BT is None else position_BT.reshape(-1)
      vectors = sinusoid(where, self.embed_dim, x_BTD.dtype)
      x_BTD = x_BTD + vectors.reshape(-1, length, self.embed_dim)
    if self.norm:
      x_BTD = layer_norm(x_BTD, self.norm_eps)
    return dropout.dropout(x_BTD, self.dropout_rate, keys_B, site=dropout.EMBED)


def check(settings: Mapping[str, Any], *, embed_dim: int) -> None:
  """Checks the settings before anything is built.

  Raises:
    UserError: A value that cannot work.
  """
  positions = settings.get("positions", "none")
  if positions not in POSITIONS:
    raise UserError(f"model.embed.positions={positions!r} is none of {list(POSITIONS)}.")
  if (positions == "learned") != (settings.get("max_positions", 0) > 0):
    raise UserError(
      f"model.embed.max_positions={settings.get('max_positions', 0)} must be above 0 for "
      f"positions='learned' and 0 for the others; positions={positions!r}."
    )
  if positions == "sinusoidal" and embed_dim % 2:
    raise UserError(
      f"model.embed.positions='sinusoidal' needs an even model.embed_dim, not {embed_dim}."
    )
  if settings.get("factor_dim", 0) < 0:
    raise UserError(
      f"model.embed.factor_dim={settings['factor_dim']} must be at least 0; 0 has one table."
    )
  if settings.get("table_init", "gpt_bert") != "gpt_bert":
    initial.check({"table_std": 0.0, **settings}, "table", where="model.embed")
    if settings.get("table_std", 0.0) == 0:
      raise UserError("model.embed.table_std must be above 0: all tokens would be alike.")
