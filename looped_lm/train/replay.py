"""Takes one step of a run again, and tells all about it: what it read and what came out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm.data.pipeline import Pipeline
from looped_lm.train import checkpoint
from looped_lm.types import State

_SHOWN_TOKENS = 12


def replay(
  step: int,
  *,
  workdir: str,
  strategy: Any,
  abstract_state: State,
  create_state: Callable[[], State],
  train_step: Callable[..., Any],
  pipeline: Pipeline,
  tokenizer: Any,
  progress: Callable[[str], None],
) -> dict[str, float]:
  """Goes from the last checkpoint before a step (or from the start) through that step.

  Batches and draws depend on the step alone, so the figures are those of the run, bit for bit on
  the same devices. Nothing is written.

  Args:
    step: Which, from 1.
    workdir: The run's folder.
    strategy: Runs steps on devices.
    abstract_state: The state's shapes.
    create_state: Gives the state before the first step, placed by the strategy.
    train_step: The pure step.
    pipeline: Gives the batch of any step.
    tokenizer: Turns rows into text.
    progress: Told everything, a line at a time.

  Returns:
    The figures of the step.

  Raises:
    UserError: A checkpoint is damaged or of another model.
  """
  state = _state_before(step, workdir, strategy, abstract_state, create_state, progress)
  compiled = strategy.compile_step(train_step)
  for earlier in range(int(state.step), step - 1):
    state, _ = compiled(state, strategy.split(pipeline.batch_at(earlier)))
  rows_B = pipeline.indices(step - 1)
  progress(f"Step {step} reads {len(rows_B)} training rows:")
  for row in rows_B.tolist():
    tokens_BT, _ = pipeline.rows.gather(np.array([row]))
    progress(f"  row {row}: {tokenizer.decode(tokens_BT[0, :_SHOWN_TOKENS].tolist())!r} …")
  state, figures = compiled(state, strategy.split(pipeline.batch_at(step - 1)))
  values = {
    name: float(np.asarray(total)) / float(np.asarray(weight)) if float(np.asarray(weight)) else 0.0
    for name, (total, weight) in figures.items()
  }
  for name, value in values.items():
    progress(f"train/{name:40} {value:.9g}")
  broken = _not_finite(state)
  if broken:
    progress(f"Not finite after step {step}: {', '.join(broken)}.")
  else:
    progress(f"Everything in the state is finite after step {step}.")
  return values


def _state_before(
  step: int,
  workdir: str,
  strategy: Any,
  abstract_state: State,
  create_state: Callable[[], State],
  progress: Callable[[str], None],
) -> State:
  earlier = [s for s in checkpoint.saved_steps(workdir) if s < step]
  if not earlier:
    progress(f"No checkpoint of {workdir} lies before step {step}: starting from the beginning.")
    return create_state()
  progress(f"Starting from the checkpoint of step {earlier[-1]}.")
  like = strategy.like_saved(abstract_state)
  return strategy.from_saved(checkpoint.restore_state(workdir, like, step=earlier[-1]))


def _not_finite(state: State) -> list[str]:
  """Names the parameters and the parts of the optimiser that hold a NaN or an infinity."""
  names = []
  for path, x in jax.tree_util.tree_leaves_with_path((state.params, state.opt_state)):
    if jnp.issubdtype(x.dtype, jnp.inexact) and not bool(jnp.isfinite(x).all()):
      names.append(("parameters", "optimiser")[path[0].idx] + jax.tree_util.keystr(path[1:]))
  return names
