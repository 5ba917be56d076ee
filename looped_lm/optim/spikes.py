"""Leaves out the update of a step whose loss or gradient jumps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import optax

# Steps that a step is compared with, and how many there must be.
WINDOW = 128
FEWEST = WINDOW // 2


class SpikeState(NamedTuple):
  """What the rule remembers.

  Attributes:
    inner: The optimiser's own state.
    seen_2W: Loss and gradient norm of the last W steps, in the order of their number modulo W.
    steps: Steps so far.
    skipped: Whether the last one was left out.
  """

  inner: Any
  seen_2W: Float[Array, "2 W"]
  steps: Int[Array, ""]
  skipped: Bool[Array, ""]


def skip(
  tx: optax.GradientTransformation, *, sigmas: float
) -> optax.GradientTransformationExtraArgs:
  """Wraps an optimiser whose updates are left out where a step jumps.

  A step jumps where its loss or its gradient's global norm is more than `sigmas` standard
  deviations above the mean of the last 128 steps; 64 must have been seen. Then parameters and
  moments stay as they are, and what counts steps goes on: the learning rate is that of the step.
  The step's own loss and norm are remembered with the others, so that a lasting change is no jump
  for long. A loss that is not finite is no jump: it stops the run.

  The result's `update` needs the step's `loss`, in nats, by name.

  Args:
    tx: The optimiser.
    sigmas: Above 0; OLMo-core takes 6.

  Source: OLMo-core's skip-step optimisers; there what counts steps stands still as well.
  """
  tx = optax.with_extra_args_support(tx)

  def init(params: Any) -> SpikeState:
    return SpikeState(
      inner=tx.init(params),
      seen_2W=jnp.zeros((2, WINDOW), jnp.float32),
      steps=jnp.zeros((), jnp.int32),
      skipped=jnp.zeros((), bool),
    )

  def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, SpikeState]:
    now_2 = jnp.stack([extra["loss"], optax.tree.norm(updates)]).astype(jnp.float32)
    skipped = _jumps(now_2, state, sigmas)
    updates, inner = tx.update(updates, state.inner, params, **extra)
    updates = jax.tree.map(lambda x: jnp.where(skipped, jnp.zeros_like(x), x), updates)

    def kept(new: Array, old: Array) -> Array:
      counts = jnp.issubdtype(new.dtype, jnp.integer)
      return new if counts else jnp.where(skipped, old, new)

    return updates, SpikeState(
      inner=jax.tree.map(kept, inner, state.inner),
      seen_2W=state.seen_2W.at[:, state.steps % WINDOW].set(now_2),
      steps=state.steps + 1,
      skipped=skipped,
    )

  return optax.GradientTransformationExtraArgs(init, update)


def figures(opt_state: Any) -> dict[str, tuple[Array, Array]]:
  """Gives `skipped` (1 where the last step was left out) as a ratio; {} without the rule."""
  if not isinstance(opt_state, SpikeState):
    return {}
  return {"skipped": (opt_state.skipped.astype(jnp.float32), jnp.ones(()))}


def _jumps(now_2: Float[Array, " 2"], state: SpikeState, sigmas: float) -> Bool[Array, ""]:
  is_seen_W = jnp.arange(WINDOW) < state.steps
  count = jnp.maximum(is_seen_W.sum(), 1)
  mean_2 = jnp.where(is_seen_W, state.seen_2W, 0.0).sum(axis=1) / count
  off_2W = jnp.where(is_seen_W, state.seen_2W - mean_2[:, None], 0.0)
  deviation_2 = jnp.sqrt((off_2W**2).sum(axis=1) / jnp.maximum(count - 1, 1))
  above_2 = now_2 > mean_2 + sigmas * deviation_2
  return above_2.any() & jnp.isfinite(now_2).all() & (state.steps >= FEWEST)
