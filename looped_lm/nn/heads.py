"""From hidden states to logits, by the token table or a matrix of its own.

A head works in two parts: `prepare` does all that needs rows, dropout above all; `project` takes
the last product, by far the largest, and may be given any positions in any order.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from looped_lm.errors import UserError
from looped_lm.nn import dropout, initial
from looped_lm.nn.linear import Linear, truncated_normal
from looped_lm.nn.norms import NORMS, Norm, layer_norm
from looped_lm.nn.precision import accumulator, narrow

# What the last product of a head is taken with: the table and, where there is one, a bias.
Weights = tuple[jax.Array, ...]


def tied_logits(
  x: Float[Array, "... D"], embedding_VD: Float[Array, "V D"], compute_dtype: str
) -> Float[Array, "... V"]:
  """x Eᵀ, summed and returned in at least float32."""
  flat = narrow(x, compute_dtype).reshape(-1, x.shape[-1])
  embedding_VD = narrow(embedding_VD, compute_dtype)
  logits = jnp.einsum("ID,VD->IV", flat, embedding_VD, preferred_element_type=accumulator(flat))
  return logits.reshape(*x.shape[:-1], -1)


class Head(nn.Module):
  """What heads share: the whole is `project` of what `prepare` gives."""

  def prepare(
    self,
    hidden_BTD: Float[Array, "B T D"],
    embedding_VD: Float[Array, "V D"],
    keys_B: Key[Array, " B"] | None,
  ) -> tuple[Float[Array, "B T F"], Weights]:
    """All but the last product, and what that is taken with."""
    raise NotImplementedError

  def project(self, x: Float[Array, "... F"], weights: Weights) -> Float[Array, "... V"]:
    """The last product, for positions in any arrangement."""
    raise NotImplementedError

  def __call__(
    self,
    hidden_BTD: Float[Array, "B T D"],
    embedding_VD: Float[Array, "V D"],
    keys_B: Key[Array, " B"] | None,
  ) -> Float[Array, "B T V"]:
    return self.project(*self.prepare(hidden_BTD, embedding_VD, keys_B))


class TransformHead(Head):
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
  def prepare(
    self,
    hidden_BTD: Float[Array, "B T D"],
    embedding_VD: Float[Array, "V D"],
    keys_B: Key[Array, " B"] | None,
  ) -> tuple[Float[Array, "B T D"], Weights]:
    """All but the last product, and what that is taken with."""
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
    return x_BTD, (embedding_VD, bias_V)

  def project(self, x: Float[Array, "... D"], weights: Weights) -> Float[Array, "... V"]:
    """The last product, for positions in any arrangement."""
    embedding_VD, bias_V = weights
    return tied_logits(x, embedding_VD, self.compute_dtype) + bias_V


class LinearHead(Head):
  """cap · tanh(scale · N(x) W / cap), W the token table or a matrix of its own.

  Attributes:
    norm: "none", "rms" or "layer", with a learned scale.
    norm_eps: Of this norm.
    norm_bias: Whether it has a bias.
    tied: Whether W is the token table.
    factor_dim: Width in between where an own W is factorised; 0 has one matrix.
    kernel_init: Initialiser of an own W, a key of `nn.initial.INITIALIZERS`.
    kernel_std: Standard deviation of its entries.
    logit_scale: Factor on the logits.
    softcap: cap, the largest logit; 0 has none.
    dropout_rate: On the normalised input, in [0, 1).
    compute_dtype: Of the matrix products.
  """

  norm: str
  norm_eps: float = 1e-5
  norm_bias: bool = False
  tied: bool = True
  factor_dim: int = 0
  kernel_init: str = "normal"
  kernel_std: float = 0.0
  logit_scale: float = 1.0
  softcap: float = 0.0
  dropout_rate: float = 0.0
  compute_dtype: str = "float32"

  def setup(self):
    if self.norm != "none":
      self.final_norm = Norm(self.norm, self.norm_eps, use_bias=self.norm_bias, name="norm")

  def normalize(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """N."""
    return x_BTD if self.norm == "none" else self.final_norm(x_BTD)

  @nn.compact
  def prepare(
    self,
    hidden_BTD: Float[Array, "B T D"],
    embedding_VD: Float[Array, "V D"],
    keys_B: Key[Array, " B"] | None,
  ) -> tuple[Float[Array, "B T F"], Weights]:
    """All but the last product, and what that is taken with."""
    x = self.normalize(hidden_BTD)
    x = dropout.dropout(x, self.dropout_rate, keys_B, site=dropout.HEAD)
    if not self.tied:
      init = initial.weights(self.kernel_init, self.kernel_std)
      if self.factor_dim:
        x = Linear(self.factor_dim, init, compute_dtype=self.compute_dtype, name="down")(x)
      shape = (embedding_VD.shape[0], x.shape[-1])
      embedding_VD = self.param("table", init, shape)
    return x, (embedding_VD,)

  def project(self, x: Float[Array, "... F"], weights: Weights) -> Float[Array, "... V"]:
    """The last product, for positions in any arrangement."""
    (table_VF,) = weights
    logits = self.logit_scale * tied_logits(x, table_VF, self.compute_dtype)
    return self.softcap * jnp.tanh(logits / self.softcap) if self.softcap else logits


HEADS = {"linear": LinearHead, "transform": TransformHead}


def check(settings: Mapping[str, Any]) -> None:
  """Checks a head's settings before anything is built.

  Raises:
    UserError: A value that cannot work.
  """
  if settings["name"] not in HEADS:
    raise UserError(f"model.head.name={settings['name']!r} is none of {sorted(HEADS)}.")
  if settings["name"] != "linear":
    return
  if settings["norm"] not in ("none", *NORMS):
    raise UserError(f"model.head.norm={settings['norm']!r} is none of {['none', *NORMS]}.")
  if settings.get("softcap", 0.0) < 0:
    raise UserError(f"model.head.softcap={settings['softcap']} must be at least 0; 0 is off.")
  tied, factor_dim = settings.get("tied", True), settings.get("factor_dim", 0)
  if tied and factor_dim:
    raise UserError(
      f"model.head.factor_dim={factor_dim} is for a matrix of its own: set model.head.tied=False, "
      "or factorise the table with model.embed.factor_dim."
    )
  if not tied:
    initial.check(
      {"kernel_init": "normal", "kernel_std": 0.0} | {**settings}, "kernel", where="model.head"
    )
