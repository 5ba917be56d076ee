"""Self-attention with rotary positions, grouped key/value heads and value embeddings."""

from collections.abc import Callable
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from looped_lm.nn import dropout, watch
from looped_lm.nn.cache import Memory
from looped_lm.nn.context import Context
from looped_lm.nn.linear import Linear
from looped_lm.nn.norms import rms_norm
from looped_lm.nn.precision import narrow, widen
from looped_lm.nn.rotary import rotate

POSITIONS = ("rotary", "none")
# The gate of a value embedding reads this many channels of the layer's input.
VALUE_GATE_INPUTS = 32
# Places of a layer where dropout draws.
_PROBABILITIES, _ATTENTION_OUT = 1, 2


class ValueEmbedding(nn.Module):
  """A table of value vectors per token, added to a layer's values behind a gate.

  v += 2 σ(u[:32] G) · E[token], one gate per key/value head. Source: Parcae, arXiv 2604.12946.

  Attributes:
    vocab_size: V.
    num_kv_heads: K.
    head_dim: H.
  """

  vocab_size: int
  num_kv_heads: int
  head_dim: int

  def setup(self):
    shape = (self.vocab_size, self.num_kv_heads * self.head_dim)
    self.embedding = self.param("embedding", nn.initializers.normal(1.0), shape)
    bound = 1.0 / math.sqrt(VALUE_GATE_INPUTS)
    self.gate = self.param(
      "gate",
      lambda key, shape: jax.random.uniform(key, shape, minval=-bound, maxval=bound),
      (VALUE_GATE_INPUTS, self.num_kv_heads),
    )

  def __call__(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T K H"]:
    """The tokens' rows."""
    rows = widen(self.embedding[tokens_BT])
    return rows.reshape(*tokens_BT.shape, self.num_kv_heads, self.head_dim)

  def gated(
    self, u_BTD: Float[Array, "B T D"], value_BTKH: Float[Array, "B T K H"]
  ) -> Float[Array, "B T K H"]:
    """What is added to the values of a layer that reads u."""
    gate_BTK = 2.0 * jax.nn.sigmoid(widen(u_BTD)[..., :VALUE_GATE_INPUTS] @ widen(self.gate))
    return gate_BTK[..., None] * value_BTKH


class SelfAttention(nn.Module):
  """Projections, positions, attention, projection back.

  Attributes:
    embed_dim: D.
    num_heads: N.
    num_kv_heads: K; each serves N / K query heads in turn.
    kernel_init: Initialiser of the query, key and value matrices.
    out_init: Initialiser of the output matrix.
    attention: Which pairs are computed.
    layer_index: Physical index, for dropout's draws.
    positions: "rotary" or "none".
    rope_theta: Base of the rotary frequencies.
    qk_norm: Whether queries and keys are RMS-normalised per head after turning.
    qk_bias: Whether queries and keys have a bias.
    use_bias: Whether all four projections have one.
    dropout_rate: On probabilities and output.
    compute_dtype: Of the matrix products.
  """

  embed_dim: int
  num_heads: int
  num_kv_heads: int
  kernel_init: nn.initializers.Initializer
  out_init: nn.initializers.Initializer
  attention: Callable[..., jax.Array]
  layer_index: int
  positions: str
  rope_theta: float
  qk_norm: bool
  qk_bias: bool
  use_bias: bool
  dropout_rate: float
  compute_dtype: str

  @nn.compact
  def __call__(
    self,
    u_BTD: Float[Array, "B T D"],
    extra_BTKH: Float[Array, "B T K H"] | None,
    context: Context,
  ) -> Float[Array, "B T D"]:
    """Attends.

    Args:
      u_BTD: The layer's normalised input.
      extra_BTKH: Added to the values, or None.
      context: Visibility and keys.
    """
    head_dim = self.embed_dim // self.num_heads

    def project(name: str, heads: int, use_bias: bool) -> Float[Array, "B T N H"]:
      linear = Linear(
        heads * head_dim,
        self.kernel_init,
        use_bias=use_bias,
        compute_dtype=self.compute_dtype,
        name=name,
      )
      return linear(u_BTD).reshape(*u_BTD.shape[:2], heads, head_dim)

    qk_bias = self.use_bias or self.qk_bias
    q_BTNH = context.picked(self._place(project("query", self.num_heads, qk_bias), context))
    k_BTKH = self._place(project("key", self.num_kv_heads, qk_bias), context)
    v_BTKH = project("value", self.num_kv_heads, self.use_bias)
    if extra_BTKH is not None:
      v_BTKH = narrow(widen(v_BTKH) + extra_BTKH, self.compute_dtype)
    k_BTKH, v_BTKH = Memory(name="memory")(context.chunk, k_BTKH, v_BTKH)

    def drop_probabilities(p_BNTS: jax.Array) -> jax.Array:
      in_loop = context.loop_B is not None
      watch.offer_attention(self, p_BNTS, layer_index=self.layer_index, in_loop=in_loop)
      return self._drop(p_BNTS, _PROBABILITIES, context)

    repeats = self.num_heads // self.num_kv_heads
    c_BTNH = self.attention(
      q_BTNH,
      jnp.repeat(k_BTKH, repeats, axis=2),
      jnp.repeat(v_BTKH, repeats, axis=2),
      context.picked(context.see_BTS),
      scale=1.0 / math.sqrt(head_dim),
      dropout=drop_probabilities,
    )
    out = Linear(
      self.embed_dim,
      self.out_init,
      use_bias=self.use_bias,
      compute_dtype=self.compute_dtype,
      name="out",
    )
    return self._drop(out(c_BTNH.reshape(*c_BTNH.shape[:2], -1)), _ATTENTION_OUT, context)

  def _place(self, x: Float[Array, "B T N H"], context: Context) -> Float[Array, "B T N H"]:
    """Turns by position and normalises; both in float32, since the angles need it."""
    if self.positions == "rotary":
      chunk = context.chunk
      where = {}
      if chunk is not None:
        where = {"position_BT": chunk.position_BT, "num_positions": chunk.capacity}
      x = rotate(x, theta=self.rope_theta, **where)
    if self.qk_norm:
      x = rms_norm(x, float(jnp.finfo(widen(x).dtype).eps))
    return narrow(x, self.compute_dtype)

  def _drop(self, x: jax.Array, place: int, context: Context) -> jax.Array:
    site = dropout.layer_site(self.layer_index, place)
    return dropout.dropout(x, self.dropout_rate, context.keys_B, site=site)
