"""The recurrence: one shared core, applied R times.

The parameters are broadcast into the loop, so the program's size does not depend on R, and the loop
body may be rematerialised: backward memory is then one state per loop.

Where all rows take the same number of loops and all carry gradient, it is an `nn.scan`. Else it has
two phases: a prefix without gradient, whose length is known only when it runs, and a scan of the
last loops, which carry gradient. Rows end together and begin apart: a row of T loops waits in its
initial state until T are left. docs/decisions/0005-two-phase-loop.md says why.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from looped_lm.nn import watch
from looped_lm.nn.context import Context

# [B, T, D], or whatever else the injection keeps, rows first.
State = Any
# What every loop is given besides the state: anchor, context and the core's invariants.
Given = tuple[Any, Context, Any]
# The name under which attention offers its probabilities and their values for keeping.
ATTENTION = "attention"
_DOTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
# What the backward pass recomputes inside a loop: "dots" keeps the outputs of weight products, and
# "attention" what attention made of them too. "auto" is for jobs to choose before a run trains;
# where nothing is trained it is the smallest.
REMAT = {
  "none": None,
  "attention": jax.checkpoint_policies.save_from_both_policies(
    _DOTS, jax.checkpoint_policies.save_only_these_names(ATTENTION)
  ),
  "dots": _DOTS,
  "full": jax.checkpoint_policies.nothing_saveable,
  "auto": jax.checkpoint_policies.nothing_saveable,
}


def recur(
  model: nn.Module,
  h_BTD: State,
  anchor: Any,
  context: Context,
  invariants: Any,
  *,
  num_loops: int | Int[Array, " B"],
  grad_loops: int,
  max_loops: int,
  may_skip: bool,
  remat: str,
  keep_states: bool,
) -> tuple[State, Any]:
  """Applies `model.one_loop` `num_loops` times, injecting `anchor` each time.

  Args:
    model: Holds the shared core and its injection.
    h_BTD: The state before the first loop.
    anchor: What the injection prepared from the prelude's output.
    context: What all layers share.
    invariants: The core's loop-invariant parts.
    num_loops: R, at least 1; or the loops of each row, each at least 1.
    grad_loops: With the loops of each row: K, the last loops of a row that carry gradient.
    max_loops: With the loops of each row: how many states are kept; no row may take more.
    may_skip: With the loops of each row: whether loops in which no row has begun are skipped. Saves
      their time where all rows take few; costs a copy of the core's parameters per loop in the
      backward pass where `remat` is "none".
    remat: A key of `REMAT`.
    keep_states: Whether to return the state after every loop.

  Returns:
    The last state, and all of them or None. Where rows differ, a row's states are counted from its
    own first loop, and after its last loop its last state repeats up to max_loops.
  """
  given = (anchor, context, invariants)
  if model.is_initializing():
    # Parameters are made by one plain pass; a scan over them would only add a loop axis to undo.
    h_BTD = _loop(model, h_BTD, jnp.int32(0), given)
    return h_BTD, jax.tree.map(lambda x: x[None], h_BTD) if keep_states else None
  if isinstance(num_loops, int):

    def loop_body(model: Any, h_BTD: State, loop: jax.Array) -> tuple[State, State | None]:
      h_BTD = _loop(model, h_BTD, loop, given)
      return h_BTD, h_BTD if keep_states else None

    return _scan(loop_body, num_loops, remat)(model, h_BTD)
  return _two_phases(
    model,
    h_BTD,
    given,
    loops_B=num_loops,
    grad_loops=grad_loops,
    max_loops=max_loops,
    may_skip=may_skip,
    remat=remat,
    keep_states=keep_states,
  )


def _two_phases(
  model: nn.Module,
  start_BTD: State,
  given: Given,
  *,
  loops_B: Int[Array, " B"],
  grad_loops: int,
  max_loops: int,
  may_skip: bool,
  remat: str,
  keep_states: bool,
) -> tuple[State, Any]:
  """Loops without gradient until `grad_loops` are left, then those with gradient.

  Loop t of the batch is loop t - (T_max - T_i) of row i, T_max being the most loops of any row.
  Where that is negative the row has not begun and keeps its initial state. T_max decides how long
  rows wait and nothing else, so devices and micro-batches may each have their own.
  """
  rows_B = jnp.arange(loops_B.shape[0])
  longest = loops_B.max()
  behind_B = longest - loops_B

  def masked(model: Any, h_BTD: State, t: jax.Array, given: Given) -> State:
    own_B = t - behind_B
    new_BTD = _loop(model, h_BTD, jnp.maximum(own_B, 0), given)
    return _select(own_B >= 0, new_BTD, h_BTD)

  def place(t: jax.Array) -> Int[Array, "... B"]:
    """Where the states after loop t are kept; out of range, so nowhere, before a row begins."""
    own = t[..., None] - behind_B
    return jnp.where(own >= 0, own, max_loops)

  # Nothing of the prefix may carry gradient: a loop of unknown length cannot be run backwards.
  frozen = _stop(given)

  def prefix(model: Any, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    def unfinished(model: Any, carry: tuple[jax.Array, ...]) -> Any:
      del model
      return carry[0] < longest - grad_loops

    def body(model: Any, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
      t, h_BTD, *kept = carry
      h_BTD = masked(model, h_BTD, t, frozen)
      kept = [_keep(states, h_BTD, place(t)) for states in kept]
      return (t + 1, h_BTD, *kept)

    return nn.while_loop(unfinished, body, model, carry)

  empty = jax.tree.map(lambda x: jnp.zeros((max_loops, *x.shape), x.dtype), start_BTD)
  kept = [empty] if keep_states else []
  carry = (jnp.int32(0), _stop(start_BTD), *kept)
  _, h_BTD, *kept = nn.map_variables(prefix, "params", trans_in_fn=_stop)(model, carry)
  # A row with no more than `grad_loops` loops has not begun: its initial state carries gradient.
  h_BTD = _select(loops_B > grad_loops, _stop(h_BTD), start_BTD)

  def loop_body(model: Any, h_BTD: State, loop: jax.Array) -> tuple[State, State | None]:
    t = longest - grad_loops + loop
    if may_skip:
      h_BTD = nn.cond(t >= 0, lambda m, h: masked(m, h, t, given), lambda m, h: h, model, h_BTD)
    else:
      h_BTD = masked(model, h_BTD, t, given)
    return h_BTD, h_BTD if keep_states else None

  h_BTD, states_KBTD = _scan(loop_body, grad_loops, remat)(model, h_BTD)
  if not keep_states:
    return h_BTD, None
  where_KB = place(longest - grad_loops + jnp.arange(grad_loops))
  states_RBTD = _keep(_stop(kept[0]), states_KBTD, where_KB)
  own_RB = jnp.minimum(jnp.arange(max_loops)[:, None], loops_B - 1)
  return h_BTD, jax.tree.map(lambda x: x[own_RB, rows_B], states_RBTD)


def _stop(tree: Any) -> Any:
  return jax.tree.map(jax.lax.stop_gradient, tree)


def _select(choose_B: Bool[Array, " B"], then: State, otherwise: State) -> State:
  """Row by row, one of two states."""

  def leaf(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(choose_B.reshape(-1, *[1] * (x.ndim - 1)), x, y)

  return jax.tree.map(leaf, then, otherwise)


def _keep(states: Any, new: State, place: Int[Array, "... B"]) -> Any:
  """Puts rows at their places along the axis of loops; a place out of range is nowhere."""
  rows_B = jnp.arange(place.shape[-1])
  return jax.tree.map(lambda x, y: x.at[place, rows_B].set(y, mode="drop"), states, new)


def _loop(model: Any, h_BTD: State, loop: jax.Array, given: Given) -> State:
  """One loop; `loop` is its number from 0, or each row's own."""
  anchor, context, invariants = given
  return model.one_loop(h_BTD, anchor, context.in_loop(loop), invariants)


def _scan(loop_body: Any, length: int, remat: str) -> Any:
  """(model, state) -> (state, outputs), the body rematerialised as asked."""
  if remat != "none":
    loop_body = nn.remat(loop_body, policy=REMAT[remat], prevent_cse=False)
  scan = nn.scan(
    loop_body,
    variable_broadcast="params",
    variable_axes=dict.fromkeys(watch.IN_LOOPS, 0),
    split_rngs={"params": False},
  )
  return lambda model, h_BTD: scan(model, h_BTD, jnp.arange(length, dtype=jnp.int32))
