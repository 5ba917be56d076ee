"""The one skeleton: embed, prelude once, shared core R times, coda once, read out."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from looped_lm.nn import depth as depths
from looped_lm.nn import dropout
from looped_lm.nn.cache import Chunk
from looped_lm.nn.context import Context
from looped_lm.nn.decode import Decoding, coda_chunk, decode_loops
from looped_lm.nn.embed import Embed
from looped_lm.nn.heads import Weights
from looped_lm.nn.linear import Linear
from looped_lm.nn.loops import recur
from looped_lm.nn.precision import widen
from looped_lm.nn.recurrence import Recurrence
from looped_lm.types import Continuation, Decoded, Inputs, Output
from looped_lm.visibility import visible

Settings = Mapping[str, Any]
# Applications of core layers up to which the last one is worth a program of its own.
_FEW_APPLICATIONS = 8


class Stack(nn.Module):
  """Layers applied once, in order, with one history of the residual stream.

  Attributes:
    block: The block's class.
    settings: Its settings, the same for all layers.
    num_layers: How many layers.
    first_layer: Physical index of the first one.
  """

  block: type[nn.Module]
  settings: Settings
  num_layers: int
  first_layer: int

  def setup(self):
    self.layers = [
      self.block(**self.settings, layer_index=self.first_layer + index, stack_index=index)
      for index in range(self.num_layers)
    ]

  def invariants(self, context: Context) -> tuple[Any, ...]:
    """What each layer needs that does not depend on its input."""
    return tuple(layer.invariants(context) for layer in self.layers)

  def __call__(
    self, x_BTD: Float[Array, "B T D"], context: Context, invariants: tuple[Any, ...]
  ) -> Float[Array, "B T D"]:
    if not self.layers:
      return context.picked(x_BTD)
    history = ()
    for layer, invariant in zip(self.layers, invariants, strict=True):
      # What comes before the last layer is read at all positions.
      last = layer is self.layers[-1]
      within = context if last else context.reading(None)
      x_BTD, history = layer(x_BTD, history, within, invariant)
    return x_BTD


class LoopedLM(nn.Module):
  """A looped language model.

  Attributes:
    embed: Settings of the token embedding.
    head: Class and settings of the read-out.
    shared: Class and settings of what all layers share, or None.
    block: Class and settings of the block.
    core_block: Settings in which the core's layers differ.
    recurrence_: Settings of what surrounds the core in every loop.
    injection_: Class and settings of the injection.
    prelude_layers: Layers before the loop.
    core_layers: Layers of the shared core.
    coda_layers: Layers after the loop.
    depth: How many loops rows take in training.
    exit_gate: Whether a learned gate gives each state a probability of leaving (Ouro).
    remat: What the backward pass recomputes, a key of `nn.loops.REMAT`.
    longest_distance: Relative distances beyond it read as it; None lets all be what they are.
  """

  embed: Settings
  head: tuple[type[nn.Module], Settings]
  shared: tuple[type[nn.Module], Settings] | None
  block: tuple[type[nn.Module], Settings]
  core_block: Settings
  recurrence_: Settings
  injection_: tuple[type[nn.Module], Settings]
  prelude_layers: int
  core_layers: int
  coda_layers: int
  depth: depths.Depth
  remat: str
  exit_gate: bool = False
  longest_distance: int | None = None

  def setup(self):
    block, settings = self.block
    self.embedder = Embed(**self.embed, name="embed")
    self.shared_parts = self.shared[0](**self.shared[1], name="shared") if self.shared else None
    self.prelude = Stack(block, settings, self.prelude_layers, 0)
    core = {**settings, **self.core_block}
    self.core = Stack(block, core, self.core_layers, self.prelude_layers)
    self.coda = Stack(block, settings, self.coda_layers, self.prelude_layers + self.core_layers)
    self.injection = self.injection_[0](**self.injection_[1])
    self.recurrence = Recurrence(**self.recurrence_)
    if self.exit_gate:
      self.gate = Linear(1, nn.initializers.zeros, use_bias=True, name="exit_gate")
    self.reader = self.head[0](**self.head[1], name="head")

  def encode(
    self,
    inputs: Inputs,
    key: Key[Array, ""] | None,
    num_loops: int | Int[Array, " B"],
    max_loops: int,
    keep_states: bool,
    read_BK: Int[Array, "B K"] | None = None,
  ) -> Output:
    """From tokens to what the read-out takes; `num_loops` per row is at most `max_loops`."""
    context = self._context(inputs, key)
    e_BTD = self._begin(context)
    h_BTD = self.injection.start(e_BTD, keys_B=context.keys_B)
    anchor, invariants = self.injection.prepare(e_BTD), self.core.invariants(context)
    if read_BK is not None and self._last_loop_apart(num_loops) and not keep_states:
      assert isinstance(num_loops, int)
      reading = context.in_loop(jnp.int32(num_loops - 1)).reading(read_BK)
      num_loops -= 1
    else:
      reading = None
    h_BTD, states_RBTD = recur(
      self,
      h_BTD,
      anchor,
      context,
      invariants,
      num_loops=num_loops,
      grad_loops=self.depth.trained_loops,
      max_loops=max_loops,
      may_skip=self.depth.may_skip,
      remat=self.remat,
      keep_states=keep_states,
    )
    if reading is not None:
      read_anchor = self.injection.prepare(reading.picked(e_BTD))
      h_BTD = self.one_loop(h_BTD, anchor, reading, invariants, read_anchor)
      read_BK = None
    return Output(hidden_BTD=self._finish(h_BTD, context.reading(read_BK)), states_RBTD=states_RBTD)

  def _last_loop_apart(self, num_loops: int | Int[Array, " B"]) -> bool:
    """Whether positions that nobody reads are left out of the last loop.

    That puts the core into the program a second time and saves about one application of a layer, so
    it serves where there are few, and the core's last layer is the model's.
    """
    if self.coda_layers or not isinstance(num_loops, int):
      return False
    return num_loops > 1 and num_loops * self.core_layers <= _FEW_APPLICATIONS

  def one_loop(
    self, h: Any, anchor: Any, context: Context, invariants: Any, read_anchor: Any = None
  ) -> Any:
    """The state after one more loop.

    Args:
      h: The state: [B, T, D], or what else the injection keeps.
      anchor: What the injection prepared.
      context: Of this loop.
      invariants: The core's loop-invariant parts.
      read_anchor: What it prepared for the positions that `context` reads; None if those are all.
    """
    loop_B, keys_B = context.loop_B, context.keys_B
    assert loop_B is not None
    x_BTD = self.injection.enter(h, anchor, loop_B=loop_B, keys_B=keys_B)
    x_BTD = self.recurrence.enter(x_BTD, loop_B)
    out_BTD = self.core(x_BTD, context, invariants)
    h = context.picked(h)
    anchor = anchor if read_anchor is None else read_anchor
    new = self.injection.update(h, anchor, out_BTD, loop_B=loop_B, keys_B=keys_B)
    return self.recurrence.update(h, new, loop_B)

  def decode(self, chunk: Continuation, decoding: Decoding) -> Decoded:
    """Reads tokens after those that the cache holds, and puts theirs into it."""
    context = self._chunk_context(chunk)
    position = context.chunk
    assert position is not None
    e_BTD = self._begin(context)
    h_BTD, loops_BT, executed = decode_loops(
      self,
      self.injection.start(e_BTD, keys_B=None),
      self.injection.prepare(e_BTD),
      context,
      self.core.invariants(context),
      decoding,
      real_BT=chunk.real_BT,
      vocab_size=self.embed["vocab_size"],
    )
    at_end = dataclasses.replace(context, chunk=coda_chunk(position, decoding))
    return Decoded(
      hidden_BTD=self._finish(h_BTD, at_end), loops_BT=loops_BT, executed_loops=executed
    )

  def fix(self, chunk: Continuation) -> None:
    """Makes what the layers keep for all chunks."""
    context = self._chunk_context(chunk)
    for stack in (self.prelude, self.core, self.coda):
      stack.invariants(context)

  def predict(self, h_BTD: Any, context: Context) -> Float[Array, "B T V"]:
    """Logits of a recurrent state."""
    return self.reader(self._finish(h_BTD, context), self.embedder.table(), None)

  def exit_probability(self, h_BTD: Any) -> Float[Array, "B T"]:
    """Probability of leaving with this state, from the learned gate."""
    return jax.nn.sigmoid(widen(self.gate(self.injection.leave(h_BTD)))[..., 0])

  def finish(self, h_BTD: Float[Array, "B T D"], inputs: Inputs) -> Float[Array, "B T D"]:
    """Sends one recurrent state through the coda."""
    return self._finish(h_BTD, self._context(inputs, None))

  def readout(
    self,
    hidden_BTD: Float[Array, "B T D"],
    row_B: Int[Array, " B"],
    key: Key[Array, ""] | None,
  ) -> Float[Array, "B T V"]:
    """Logits of every position."""
    return self.project(*self.prepare(hidden_BTD, row_B, key))

  def prepare(
    self,
    hidden_BTD: Float[Array, "B T D"],
    row_B: Int[Array, " B"],
    key: Key[Array, ""] | None,
  ) -> tuple[Float[Array, "B T F"], Weights]:
    """All of the read-out but its last product, and what that is taken with."""
    keys_B = None if key is None else dropout.row_keys(key, row_B)
    return self.reader.prepare(hidden_BTD, self.embedder.table(), keys_B)

  def project(self, x: Float[Array, "... F"], weights: Weights) -> Float[Array, "... V"]:
    """The last product of the read-out, for positions in any arrangement."""
    return self.reader.project(x, weights)

  def __call__(self, inputs: Inputs) -> Float[Array, "B T V"]:
    """Touches every part once; parameters are made here."""
    output = self.encode(inputs, None, 1, 1, True)
    if self.exit_gate:
      states_RBTD: Any = output.states_RBTD
      self.exit_probability(states_RBTD[-1])
    return self.readout(output.hidden_BTD, inputs.row_B, None)

  def _begin(self, context: Context) -> Float[Array, "B T D"]:
    """What the injection is given."""
    position_BT = None if context.chunk is None else context.chunk.position_BT
    e_BTD = self.embedder(context.tokens_BT, context.keys_B, position_BT)
    e_BTD = self.prelude(e_BTD, context, self.prelude.invariants(context))
    return self.recurrence.begin(e_BTD)

  def _finish(self, h_BTD: Float[Array, "B T D"], context: Context) -> Float[Array, "B T D"]:
    x_BTD = self.injection.leave(h_BTD)
    if self.recurrence.exit_norm == "head":
      x_BTD = self.reader.normalize(x_BTD)
    x_BTD = self.recurrence.leave(x_BTD)
    return self.coda(x_BTD, context, self.coda.invariants(context))

  def _chunk_context(self, chunk: Continuation) -> Context:
    length, capacity = chunk.tokens_BT.shape[1], chunk.real_BS.shape[1]
    place_T = chunk.start + jnp.arange(length)
    earlier_TS = jnp.arange(capacity)[None, :] <= place_T[:, None]
    position_BS = jnp.maximum(jnp.cumsum(chunk.real_BS, axis=1) - 1, 0)
    position_BT = jax.lax.dynamic_slice_in_dim(position_BS, chunk.start, length, axis=1)
    zero = jnp.int32(0)
    return Context(
      see_BTS=chunk.real_BT[:, :, None] & chunk.real_BS[:, None, :] & earlier_TS,
      tokens_BT=chunk.tokens_BT,
      shared=None if self.shared_parts is None else self.shared_parts(),
      key=None,
      keys_B=None,
      chunk=Chunk(
        start=chunk.start,
        position_BT=position_BT,
        writes_BT=None,
        slot=zero,
        previous_slot=zero,
        runs=None,
        num_slots=1,
        capacity=capacity,
      ),
      longest_distance=self.longest_distance,
    )

  def _context(self, inputs: Inputs, key: Key[Array, ""] | None) -> Context:
    return Context(
      see_BTS=visible(inputs.order_BT, inputs.segments_BT),
      tokens_BT=inputs.tokens_BT,
      shared=None if self.shared_parts is None else self.shared_parts(),
      key=key,
      keys_B=None if key is None else dropout.row_keys(key, inputs.row_B),
      longest_distance=self.longest_distance,
    )
