"""A transformer layer without its norms: what the pre-norm and the sandwich block share."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from looped_lm.errors import UserError
from looped_lm.nn import dropout, initial
from looped_lm.nn.attend import POSITIONS, VALUE_GATE_INPUTS, SelfAttention, ValueEmbedding
from looped_lm.nn.context import Context
from looped_lm.nn.mlp import ACTIVATIONS, Mlp
from looped_lm.nn.norms import NORMS, Norm
from looped_lm.nn.precision import widen

# The place of a layer where the feed-forward output drops; attention has the others.
_MLP_OUT = 3


class TransformerLayer(nn.Module):
  """Attention and feed-forward; a block says where its norms stand.

  Attributes:
    embed_dim: D.
    num_heads: N; must divide D.
    num_kv_heads: K; must divide N. Fewer than N is grouped-query attention.
    mlp_dim: F.
    mlp: "relu2", "gelu", "swiglu" or "geglu".
    norm: "rms" or "layer", always with a learned scale.
    norm_eps: Of these norms.
    weight_init: Initialiser of the matrices, a key of `nn.initial.INITIALIZERS`.
    weight_std: Standard deviation of their entries; 0 starts them at zero.
    out_init_scale: Factor on it for the two matrices that write to the stream; 0 starts the layer
      as the identity.
    attention: Which pairs are computed.
    layer_index: Which physical layer of the model this is, from 0.
    stack_index: Which layer of its stack this is, from 0.
    vocab_size: V, of the value embeddings.
    positions: "rotary" or "none"; learned ones are added to the token embeddings.
    rope_theta: Base of the rotary frequencies.
    qk_norm: Whether queries and keys are RMS-normalised per head, without weights.
    qk_bias: Whether queries and keys have a bias.
    use_bias: Whether all projections have biases.
    norm_bias: Whether the norms have biases.
    num_loop_norms: Loops whose norms have their own scale and bias; 0 shares one.
    value_layers: Physical indices of the layers that have a value embedding.
    attention_dropout_rate: On probabilities and on the attention's output.
    hidden_dropout_rate: On the feed-forward output.
    compute_dtype: Of the matrix products.
  """

  embed_dim: int
  num_heads: int
  num_kv_heads: int
  mlp_dim: int
  mlp: str
  norm: str
  norm_eps: float
  weight_init: str
  weight_std: float
  out_init_scale: float
  attention: Callable[..., jax.Array]
  layer_index: int
  stack_index: int
  vocab_size: int
  positions: str = "rotary"
  rope_theta: float = 10_000.0
  qk_norm: bool = False
  qk_bias: bool = False
  use_bias: bool = False
  norm_bias: bool = False
  num_loop_norms: int = 0
  value_layers: tuple[int, ...] = ()
  attention_dropout_rate: float = 0.0
  hidden_dropout_rate: float = 0.0
  compute_dtype: str = "float32"

  def setup(self):
    init = initial.weights(self.weight_init, self.weight_std)
    out_init = initial.weights(self.weight_init, self.weight_std * self.out_init_scale)
    self.attend = SelfAttention(
      embed_dim=self.embed_dim,
      num_heads=self.num_heads,
      num_kv_heads=self.num_kv_heads,
      kernel_init=init,
      out_init=out_init,
      attention=self.attention,
      layer_index=self.layer_index,
      positions=self.positions,
      rope_theta=self.rope_theta,
      qk_norm=self.qk_norm,
      qk_bias=self.qk_bias,
      use_bias=self.use_bias,
      dropout_rate=self.attention_dropout_rate,
      compute_dtype=self.compute_dtype,
    )
    self.feed = Mlp(
      self.embed_dim,
      self.mlp_dim,
      self.mlp,
      up_init=init,
      down_init=out_init,
      use_bias=self.use_bias,
      compute_dtype=self.compute_dtype,
    )
    if self.layer_index in self.value_layers:
      head_dim = self.embed_dim // self.num_heads
      self.value_embedding = ValueEmbedding(self.vocab_size, self.num_kv_heads, head_dim)

  def invariants(self, context: Context) -> Float[Array, "B T K H"] | None:
    """The loop-invariant part: the tokens' rows of this layer's value embedding."""
    if self.layer_index not in self.value_layers:
      return None
    return self.value_embedding(context.tokens_BT)

  def attention_out(
    self,
    u_BTD: Float[Array, "B T D"],
    context: Context,
    value_BTKH: Float[Array, "B T K H"] | None,
  ) -> Float[Array, "B T D"]:
    """The attention sublayer's contribution, from normalised input."""
    extra_BTKH = None
    if value_BTKH is not None:
      extra_BTKH = self.value_embedding.gated(u_BTD, value_BTKH)
    return widen(self.attend(u_BTD, extra_BTKH, context))

  def mlp_out(self, u_BTD: Float[Array, "B T D"], context: Context) -> Float[Array, "B T D"]:
    """The feed-forward sublayer's contribution, from normalised input."""
    site = dropout.layer_site(self.layer_index, _MLP_OUT)
    y_BTD = dropout.dropout(self.feed(u_BTD), self.hidden_dropout_rate, context.keys_B, site=site)
    return widen(y_BTD)

  def make_norm(self) -> Norm:
    """A norm as this layer's settings have it."""
    return Norm(self.norm, self.norm_eps, use_bias=self.norm_bias, num_loops=self.num_loop_norms)


def check(settings: Mapping[str, Any], *, embed_dim: int) -> None:
  """Checks a block's settings before anything is built.

  Raises:
    UserError: A value that cannot work.
  """
  num_heads, num_kv_heads = settings["num_heads"], settings["num_kv_heads"]
  if num_heads < 1 or embed_dim % num_heads:
    divisors = [n for n in range(1, embed_dim + 1) if embed_dim % n == 0]
    raise UserError(
      f"model.block.num_heads={num_heads} must divide model.embed_dim={embed_dim}; "
      f"choose one of {divisors}."
    )
  if num_kv_heads < 1 or num_heads % num_kv_heads:
    divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
    raise UserError(
      f"model.block.num_kv_heads={num_kv_heads} must divide num_heads={num_heads}; "
      f"choose one of {divisors}."
    )
  choices = {"mlp": sorted(ACTIVATIONS), "norm": NORMS, "positions": POSITIONS}
  for name, known in choices.items():
    value = settings.get(name, known[0])
    if value not in known:
      raise UserError(f"model.block.{name}={value!r} is none of {list(known)}.")
  head_dim = embed_dim // num_heads
  if settings.get("positions", "rotary") == "rotary" and head_dim % 2:
    raise UserError(
      f"model.block.positions='rotary' turns pairs of channels, but embed_dim / num_heads = "
      f"{head_dim} is odd; choose another num_heads."
    )
  if settings.get("value_layers") and embed_dim < VALUE_GATE_INPUTS:
    raise UserError(
      f"model.block.value_layers needs model.embed_dim={embed_dim} to be at least "
      f"{VALUE_GATE_INPUTS}, the inputs of its gate."
    )
  if settings.get("num_loop_norms", 0) < 0:
    raise UserError(f"model.block.num_loop_norms={settings['num_loop_norms']} must be at least 0.")
  initial.check(settings, "weight", where="model.block")
  for name in ("attention_dropout_rate", "hidden_dropout_rate"):
    if not 0.0 <= settings.get(name, 0.0) < 1.0:
      raise UserError(f"model.block.{name}={settings[name]} must lie in [0, 1).")


def forward_macs_per_token(settings: Mapping[str, Any], *, embed_dim: int, seq_len: int) -> float:
  """Multiply-adds of one layer application per token, without the value embeddings' gates."""
  kv_dim = embed_dim // settings["num_heads"] * settings["num_kv_heads"]
  projections = 2 * embed_dim**2 + 2 * embed_dim * kv_dim
  gated = ACTIVATIONS[settings["mlp"]][1]
  mlp = (3 if gated else 2) * embed_dim * settings["mlp_dim"]
  return float(projections + mlp + 2 * seq_len * embed_dim)
