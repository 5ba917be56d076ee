"""A small head that tells texts apart by the state of one token.

Source: babylm-org/babylm-eval at 3d57ddc, `finetune`. Differs: padding has no part in anything, so
its side makes no difference.
"""

import math

from flax import struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from looped_lm import visibility as visibilities
from looped_lm.nn import dropout
from looped_lm.nn.norms import layer_norm
from looped_lm.types import Inputs, Model, Params

_NORM_EPS = 1e-5
TOKENS = ("last", "first")
ORDERS = {"causal": visibilities.causal, "bidirectional": visibilities.bidirectional}


@struct.dataclass
class Rows:
  """A batch.

  Attributes:
    tokens_BT: Token ids.
    segments_BT: 1, and 0 for padding.
    row_B: As in `types.Batch`.
    label_B: The right class.
    weight_B: 1, and 0 for rows that fill the batch up.
  """

  tokens_BT: Int[Array, "B T"]
  segments_BT: Int[Array, "B T"]
  row_B: Int[Array, " B"]
  label_B: Int[Array, " B"]
  weight_B: Float[Array, " B"]


def init_head(key: Key[Array, ""], embed_dim: int, num_classes: int) -> Params:
  """Weights and biases of both layers, uniform in ±1/sqrt(width), as `torch.nn.Linear` has them."""

  def layer(key: Key[Array, ""], width: int) -> Params:
    keys, bound = jax.random.split(key), 1.0 / math.sqrt(embed_dim)
    return {
      "kernel": jax.random.uniform(keys[0], (embed_dim, width), minval=-bound, maxval=bound),
      "bias": jax.random.uniform(keys[1], (width,), minval=-bound, maxval=bound),
    }

  hidden, out = jax.random.split(key)
  return {"hidden": layer(hidden, embed_dim), "out": layer(out, num_classes)}


def apply_head(
  params: Params, x_BD: Float[Array, "B D"], rate: float, keys_B: Key[Array, " B"] | None
) -> Float[Array, "B C"]:
  """LN, linear, GELU (exact), LN, dropout, linear: all in float32; the norms have no parameters."""
  x_BD = layer_norm(x_BD, _NORM_EPS) @ params["hidden"]["kernel"] + params["hidden"]["bias"]
  x_BD = layer_norm(jax.nn.gelu(x_BD, approximate=False), _NORM_EPS)
  x_BD = dropout.dropout(x_BD, rate, keys_B, site=dropout.HEAD)
  return x_BD @ params["out"]["kernel"] + params["out"]["bias"]


def pooled(
  hidden_BTD: Float[Array, "B T D"], segments_BT: Int[Array, "B T"], *, token: str
) -> Float[Array, "B D"]:
  """The state of the last or first token that is no padding, on whichever side that is."""
  place_T = jnp.arange(segments_BT.shape[1])
  real_BT = segments_BT > 0
  if token == "last":
    place_B = jnp.where(real_BT, place_T, -1).max(axis=1)
  else:
    place_B = real_BT.argmax(axis=1)
  return jnp.take_along_axis(hidden_BTD, place_B[:, None, None], axis=1)[:, 0]


def logits(
  model: Model,
  params: Params,
  rows: Rows,
  *,
  token: str,
  visibility: str,
  dropout_rate: float,
  key: Key[Array, ""] | None = None,
) -> Float[Array, "B C"]:
  """Of each row's classes; with a key as in training.

  Rows take the loops of evaluation also then; gradient goes through as many as in pre-training.
  """
  inputs = Inputs(
    tokens_BT=rows.tokens_BT,
    order_BT=ORDERS[visibility](rows.tokens_BT),
    segments_BT=rows.segments_BT,
    row_B=rows.row_B,
  )
  key_model, key_head = (None, None) if key is None else jax.random.split(key)
  output = model.encode(params["encoder"], inputs, key=key_model, num_loops=model.num_loops)
  x_BD = pooled(output.hidden_BTD, rows.segments_BT, token=token)
  keys_B = None if key_head is None else dropout.row_keys(key_head, rows.row_B)
  return apply_head(params["classifier"], x_BD, dropout_rate, keys_B)
