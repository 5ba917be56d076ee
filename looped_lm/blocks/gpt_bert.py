"""The GPT-BERT block: gated attention with disentangled relative positions, GEGLU, DWA.

Source: GPT-BERT (Charpentier and Samuel, 2024) and its reference implementation. Norms stand before
each sublayer and inside it and have no parameters; the only affine norm is the positions'.

Differs from the reference: the position vectors go through a layer's projection once per step,
outside the loop, so their dropout mask is one per seed, step and physical layer instead of one per
row and application.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from looped_lm.errors import UserError
from looped_lm.nn import dropout, watch
from looped_lm.nn.cache import Kept, Memory
from looped_lm.nn.context import Context
from looped_lm.nn.linear import Linear, truncated_normal
from looped_lm.nn.mixing import DepthWeightedAverage, History
from looped_lm.nn.mlp import NormedGeglu
from looped_lm.nn.norms import layer_norm
from looped_lm.nn.positions import (
  LOOKUPS,
  RelativePositions,
  bucket_rows,
  bucket_table,
  disentangled_bias,
  one_query_bias,
)
from looped_lm.nn.precision import widen

DWA_SCOPES = ("layer", "stack")
# Whether layers read `Context.longest_distance`.
HAS_RELATIVE_DISTANCES = True
# Places of a layer where dropout draws.
_POSITIONS, _PROBABILITIES, _ATTENTION_OUT, _MLP_OUT = range(4)
# A layer's position vectors through its query and key projections: of each bucket, [P, N, H]; or,
# where a single token is read after others, of the bucket of each key, [N, S, H].
PositionKeys = tuple[Float[Array, "..."], Float[Array, "..."]]


class Shared(nn.Module):
  """What all layers share: the normalised position vectors, [2 K - 1, D].

  Attributes:
    embed_dim: D.
    num_buckets: K.
    norm_eps: Of their norm.
  """

  embed_dim: int
  num_buckets: int
  norm_eps: float

  @nn.compact
  def __call__(self) -> Float[Array, "P D"]:
    return RelativePositions(self.embed_dim, self.num_buckets, self.norm_eps, name="positions")()


class Block(nn.Module):
  """x + attention, mixed with the history; + feed-forward, mixed again.

  Attributes:
    embed_dim: D.
    num_heads: N; must divide D.
    mlp_dim: F.
    num_buckets: K, buckets of relative distance to each side.
    max_distance: M, in tokens; farther ones share the last bucket.
    attention_dropout_rate: On probabilities, position vectors and the attention's output.
    hidden_dropout_rate: On the feed-forward output.
    norm_eps: Of all norms.
    dwa_scope: "layer" mixes within a layer (Looped GPT-BERT), "stack" over the whole stack.
    position_lookup: "one_hot" or "gather": how bucket terms reach the pairs; same numbers.
    attention: Which pairs are computed.
    layer_index: Which physical layer of the model this is, from 0.
    stack_index: Which layer of its stack this is, from 0.
    compute_dtype: Of the matrix products.
  """

  embed_dim: int
  num_heads: int
  mlp_dim: int
  num_buckets: int
  max_distance: int
  attention_dropout_rate: float
  hidden_dropout_rate: float
  norm_eps: float
  dwa_scope: str
  position_lookup: str
  attention: Callable[..., jax.Array]
  layer_index: int
  stack_index: int
  compute_dtype: str = "float32"

  def setup(self):
    init = truncated_normal(self.embed_dim)
    dtype = self.compute_dtype
    self.qk = Linear(2 * self.embed_dim, init, use_bias=True, compute_dtype=dtype)
    self.vg = Linear(2 * self.embed_dim, init, use_bias=True, compute_dtype=dtype)
    self.out = Linear(self.embed_dim, init, use_bias=True, compute_dtype=dtype)
    self.mlp = NormedGeglu(
      self.embed_dim,
      self.mlp_dim,
      init_scale=math.sqrt(1.0 / (2.0 * (1 + self.layer_index))),
      norm_eps=self.norm_eps,
      compute_dtype=dtype,
    )
    self.memory = Memory()
    self.kept = Kept()
    self.mix_attention = DepthWeightedAverage()
    self.mix_mlp = DepthWeightedAverage()

  def invariants(self, context: Context) -> PositionKeys:
    """The loop-invariant part: the position vectors through this layer's projection.

    Of a single token that is read after others they are those of each key, by head and place.
    """
    keys = self.kept(context.chunk, lambda: self._projected(context))
    if not _is_one_query(context):
      return keys
    bucket_S = self._bucket_table(1, context)[0]
    position_q_SNH, position_k_SNH = (position_PNH[bucket_S] for position_PNH in keys)
    return position_q_SNH.swapaxes(0, 1), position_k_SNH.swapaxes(0, 1)

  def _projected(self, context: Context) -> PositionKeys:
    position_PD = dropout.step_dropout(
      context.shared,
      self.attention_dropout_rate,
      context.key,
      site=dropout.layer_site(self.layer_index, _POSITIONS),
    )
    position_q_PD, position_k_PD = jnp.split(self.qk(position_PD), 2, axis=-1)
    return self._heads(position_q_PD), self._heads(position_k_PD)

  def __call__(
    self, x_BTD: Float[Array, "B T D"], history: History, context: Context, invariants: PositionKeys
  ) -> tuple[Float[Array, "B T D"], History]:
    if self.dwa_scope == "layer" or not history:
      history = (x_BTD,)
    attended_BTD = widen(self._attend(x_BTD, context, invariants))
    x_BTD, history = context.picked((x_BTD, history))
    history += (x_BTD + attended_BTD,)
    x_BTD = self.mix_attention(history)
    y_BTD = dropout.dropout(
      self.mlp(layer_norm(x_BTD, self.norm_eps)),
      self.hidden_dropout_rate,
      context.keys_B,
      site=dropout.layer_site(self.layer_index, _MLP_OUT),
    )
    history += (x_BTD + widen(y_BTD),)
    return self.mix_mlp(history), history

  def _attend(
    self, x_BTD: Float[Array, "B T D"], context: Context, position_keys: PositionKeys
  ) -> Float[Array, "B T D"]:
    u_BTD = layer_norm(x_BTD, self.norm_eps)
    read_BTD, see_BTS = context.picked((u_BTD, context.see_BTS))
    if context.read_BK is None:
      q_BTD, k_BTD = jnp.split(self.qk(u_BTD), 2, axis=-1)
      v_BTD, gate_BTD = jnp.split(self.vg(u_BTD), 2, axis=-1)
    else:
      # Nobody asks for the queries and gates of the other positions.
      first, second = slice(None, self.embed_dim), slice(self.embed_dim, None)
      q_BTD, k_BTD = self.qk(read_BTD, first), self.qk(u_BTD, second)
      v_BTD, gate_BTD = self.vg(u_BTD, first), self.vg(read_BTD, second)
    k_BSNH, v_BSNH = self.memory(context.chunk, self._heads(k_BTD), self._heads(v_BTD))
    q_BTNH = self._heads(q_BTD)
    if _is_one_query(context):
      bias_BNTS = one_query_bias(q_BTNH, k_BSNH, *position_keys)
    else:
      bias_BNTS = disentangled_bias(
        q_BTNH,
        k_BSNH,
        *position_keys,
        self._bucket_table(x_BTD.shape[1], context),
        lookup=self.position_lookup,
        read_BT=context.read_BK,
      )

    def drop(array: jax.Array, place: int) -> jax.Array:
      site = dropout.layer_site(self.layer_index, place)
      return dropout.dropout(array, self.attention_dropout_rate, context.keys_B, site=site)

    def drop_probabilities(p_BNTS: jax.Array) -> jax.Array:
      in_loop = context.loop_B is not None
      watch.offer_attention(self, p_BNTS, layer_index=self.layer_index, in_loop=in_loop)
      return drop(p_BNTS, _PROBABILITIES)

    c_BTNH = self.attention(
      q_BTNH,
      k_BSNH,
      v_BSNH,
      see_BTS,
      bias_BNTS,
      scale=1.0 / math.sqrt(3 * q_BTNH.shape[-1]),
      dropout=drop_probabilities,
    )
    c_BTD = c_BTNH.reshape(gate_BTD.shape) * jax.nn.gelu(gate_BTD, approximate=False)
    # The output's dropout is the attention's too, as in the reference.
    return drop(self.out(layer_norm(c_BTD, self.norm_eps)), _ATTENTION_OUT)

  def _bucket_table(self, length: int, context: Context) -> np.ndarray | jax.Array:
    sizes = {
      "num_buckets": self.num_buckets,
      "max_distance": self.max_distance,
      "longest": context.longest_distance,
    }
    if context.chunk is None:
      return bucket_table(length, **sizes)
    return bucket_rows(context.chunk.start, length, context.chunk.capacity, **sizes)

  def _heads(self, x: Float[Array, "... D"]) -> Float[Array, "... N H"]:
    return x.reshape(*x.shape[:-1], self.num_heads, self.embed_dim // self.num_heads)


def _is_one_query(context: Context) -> bool:
  return context.chunk is not None and context.tokens_BT.shape[1] == 1


def check(settings: Mapping[str, Any], *, embed_dim: int) -> None:
  """Checks a block's settings before anything is built.

  Raises:
    UserError: A value that cannot work.
  """
  num_heads = settings["num_heads"]
  if num_heads < 1 or embed_dim % num_heads:
    divisors = [n for n in range(1, embed_dim + 1) if embed_dim % n == 0]
    raise UserError(
      f"model.block.num_heads={num_heads} must divide model.embed_dim={embed_dim}; "
      f"choose one of {divisors}."
    )
  if settings["dwa_scope"] not in DWA_SCOPES:
    raise UserError(f"model.block.dwa_scope={settings['dwa_scope']!r} is none of {DWA_SCOPES}.")
  if settings["position_lookup"] not in LOOKUPS:
    raise UserError(
      f"model.block.position_lookup={settings['position_lookup']!r} is none of {LOOKUPS}."
    )
  if settings["num_buckets"] < 4 or settings["max_distance"] <= settings["num_buckets"] // 2 + 1:
    raise UserError(
      f"model.block.num_buckets={settings['num_buckets']} must be at least 4 and "
      f"model.block.max_distance={settings['max_distance']} must exceed num_buckets // 2 + 1."
    )


def forward_macs_per_token(settings: Mapping[str, Any], *, embed_dim: int, seq_len: int) -> float:
  """Multiply-adds of one layer application per token, the position look-up included."""
  projections = 5 * embed_dim**2
  mlp = 3 * embed_dim * settings["mlp_dim"]
  attention = 2 * seq_len * embed_dim
  rows = 2 * settings["num_buckets"] - 1
  positions = 2 * rows * embed_dim
  if settings["position_lookup"] == "one_hot":
    positions += 2 * rows * settings["num_heads"] * seq_len
  return float(projections + mlp + attention + positions)
