"""The recurrence over tokens that are read after others: a cache, a depth, and halting by token."""

import dataclasses
from typing import Any

from flax import struct
import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from looped_lm.errors import UserError
from looped_lm.nn.cache import COLLECTION, FIXED, Chunk, Policy
from looped_lm.nn.context import Context
from looped_lm.nn.halting import Halting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
  """How tokens are decoded.

  Attributes:
    num_loops: The most loops of a token.
    policy: Where loops keep their keys and values.
    halting: When a token takes fewer.
  """

  num_loops: int
  policy: Policy = dataclasses.field(default_factory=Policy)
  halting: Halting = dataclasses.field(default_factory=Halting)

  def __post_init__(self):
    if self.num_loops < 1:
      raise UserError(f"generate.num_loops={self.num_loops} must be at least 1.")
    if self.halting.min_loops > self.num_loops:
      raise UserError(
        f"generate.halting_min_loops={self.halting.min_loops} must be at most the "
        f"{self.num_loops} loops of generate.num_loops."
      )

  @property
  def settles(self) -> bool:
    """Whether a halted token goes through one more loop, for the keys of its last state."""
    return self.halting.is_on and self.policy.name == "full"

  @property
  def coda_slots(self) -> int:
    """Slots of a coda layer: one for what is read out, and one per loop where loops are tested."""
    return 1 + self.num_loops * (self.halting.looks_at == "prediction")


@struct.dataclass
class _Progress:
  """What the loop carries.

  Attributes:
    loop: Loops behind.
    h_BTD: The state.
    loops_BT: How many loops changed each token's state.
    halted_BT: Tokens whose state no longer changes.
    memory: The test's.
  """

  loop: Int[Array, ""]
  h_BTD: Any
  loops_BT: Int[Array, "B T"]
  halted_BT: Bool[Array, "B T"]
  memory: Any


def core_chunk(
  chunk: Chunk, decoding: Decoding, loop: Int[Array, ""], writes_BT: Bool[Array, "B T"] | None
) -> Chunk:
  """The chunk as the core sees it in one loop."""
  policy = decoding.policy
  slot = policy.slot(loop)
  return dataclasses.replace(
    chunk,
    writes_BT=writes_BT,
    slot=slot,
    previous_slot=jnp.maximum(slot - 1, 0) if policy.name == "full" else slot,
    runs=loop if policy.name == "mean" else None,
    num_slots=policy.slots(decoding.num_loops),
  )


def coda_chunk(chunk: Chunk, decoding: Decoding) -> Chunk:
  """The chunk as the coda sees it at the end."""
  return dataclasses.replace(chunk, num_slots=decoding.coda_slots)


def _test_chunk(
  chunk: Chunk, decoding: Decoding, loop: Int[Array, ""], writes_BT: Bool[Array, "B T"]
) -> Chunk:
  """The chunk as the coda sees it where a loop is tested."""
  return dataclasses.replace(
    chunk,
    writes_BT=writes_BT,
    slot=loop + 1,
    previous_slot=jnp.maximum(loop, 1),
    num_slots=decoding.coda_slots,
  )


def decode_loops(
  model: Any,
  start: Any,
  anchor: Any,
  context: Context,
  invariants: Any,
  decoding: Decoding,
  *,
  real_BT: Bool[Array, "B T"],
  vocab_size: int,
) -> tuple[Any, Int[Array, "B T"], Int[Array, ""]]:
  """Applies the core to a chunk until every token has halted, `num_loops` times at most.

  Args:
    model: Holds the shared core, its injection, coda and head.
    start: The chunk's state before the first loop.
    anchor: What the injection prepared.
    context: With the chunk.
    invariants: The core's loop-invariant parts.
    decoding: Depth, cache and halting.
    real_BT: False for padding.
    vocab_size: V.

  Returns:
    The last state, how many loops each token took (0 for padding), and how many the chunk took.
  """
  halting, chunk = decoding.halting, context.chunk
  assert chunk is not None

  def body(model: Any, now: _Progress) -> _Progress:
    runs_BT = ~now.halted_BT
    writes_BT = runs_BT | (now.loops_BT == now.loop) if decoding.settles else runs_BT
    # Without halting all tokens run but padding, and nobody sees what that writes.
    own = core_chunk(chunk, decoding, now.loop, writes_BT if halting.is_on else None)
    inside = dataclasses.replace(context.in_loop(now.loop), chunk=own)
    h_BTD = _select(runs_BT, model.one_loop(now.h_BTD, anchor, inside, invariants), now.h_BTD)
    halted_BT, loops_BT, memory = now.halted_BT, now.loops_BT + runs_BT, now.memory
    if halting.is_on:
      tested = dataclasses.replace(context, chunk=_test_chunk(chunk, decoding, now.loop, runs_BT))
      may_BT, memory = halting.test(
        now.memory,
        old_BTD=now.h_BTD,
        new_BTD=h_BTD,
        logits_BTV=model.predict(h_BTD, tested) if halting.looks_at == "prediction" else None,
        gate_BT=model.exit_probability(h_BTD) if halting.looks_at == "gate" else None,
      )
      halted_BT = halted_BT | (may_BT & (loops_BT >= halting.min_loops))
    return _Progress(
      loop=now.loop + 1, h_BTD=h_BTD, loops_BT=loops_BT, halted_BT=halted_BT, memory=memory
    )

  def unfinished(model: Any, now: _Progress) -> Any:
    del model
    open_BT = ~now.halted_BT
    if decoding.settles:
      open_BT = open_BT | ((now.loops_BT == now.loop) & real_BT)
    return (now.loop < decoding.num_loops) & open_BT.any()

  progress = _Progress(
    loop=jnp.int32(0),
    h_BTD=start,
    loops_BT=jnp.zeros(real_BT.shape, jnp.int32),
    halted_BT=~real_BT,
    memory=halting.begin(real_BT.shape[0], real_BT.shape[1], vocab_size),
  )
  if model.is_initializing():
    progress = body(model, progress)
  else:
    progress = nn.while_loop(
      unfinished,
      body,
      model,
      progress,
      carry_variables=COLLECTION,
      broadcast_variables=["params", FIXED],
    )
  return progress.h_BTD, progress.loops_BT, progress.loop


def _select(choose_BT: Bool[Array, "B T"], then: Float[Array, "B T ..."], other: Any) -> Any:
  """Token by token, one of two states."""
  return jnp.where(choose_BT.reshape(*choose_BT.shape, *(1,) * (then.ndim - 2)), then, other)
