"""The recurrence: one shared core, applied R times as an `nn.scan`.

The parameters are broadcast into the scan, so the program's size does not depend on R, and the loop
body may be rematerialised: backward memory is then one state per loop.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.nn.context import Context

# [B, T, D], or whatever else the injection keeps, rows first.
State = Any
# What the backward pass recomputes inside a loop; "dots" keeps the outputs of weight products.
REMAT = {
  "none": None,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": jax.checkpoint_policies.nothing_saveable,
}


def recur(
  model: nn.Module,
  h_BTD: State,
  anchor: Any,
  context: Context,
  invariants: Any,
  *,
  num_loops: int,
  remat: str,
  keep_states: bool,
) -> tuple[State, Float[Array, "R B T D"] | None]:
  """Applies `model.one_loop` `num_loops` times, injecting `anchor` each time.

  Args:
    model: Holds the shared core and its injection.
    h_BTD: The state before the first loop.
    anchor: What the injection prepared from the prelude's output.
    context: What all layers share.
    invariants: The core's loop-invariant parts.
    num_loops: R, at least 1.
    remat: A key of `REMAT`.
    keep_states: Whether to return the state after every loop.

  Returns:
    The last state, and all of them or None.
  """

  def loop_body(model: Any, h_BTD: State, loop: jax.Array) -> tuple[State, State | None]:
    h_BTD = model.one_loop(h_BTD, anchor, context.in_loop(loop), invariants)
    return h_BTD, h_BTD if keep_states else None

  if model.is_initializing():
    # Parameters are made by one plain pass; a scan over them would only add a loop axis to undo.
    h_BTD, state_BTD = loop_body(model, h_BTD, jnp.int32(0))
    return h_BTD, None if state_BTD is None else state_BTD[None]
  if remat != "none":
    loop_body = nn.remat(loop_body, policy=REMAT[remat], prevent_cse=False)
  scan = nn.scan(loop_body, variable_broadcast="params", split_rngs={"params": False})
  return scan(model, h_BTD, jnp.arange(num_loops, dtype=jnp.int32))
