"""The training loop: one linear function, batches in, checkpoints and figures out."""

from collections.abc import Callable, Iterable
import math
from typing import Any

import jax
import jax.numpy as jnp

from looped_lm.data.pipeline import Pipeline
from looped_lm.errors import UserError
from looped_lm.train.checkpoint import Checkpoints
from looped_lm.train.metrics import Metrics
from looped_lm.types import State


def train(
  state: State,
  *,
  train_step: Callable[..., Any],
  strategy: Any,
  pipeline: Pipeline,
  evaluate: Callable[[State], Iterable[tuple[str, float]]],
  checkpoints: Checkpoints,
  metrics: Metrics,
  total_steps: int,
  log_every_steps: int,
  eval_every_steps: int,
  save_every_steps: int,
) -> State:
  """Trains from the state's step to the last one.

  Within a step's end the order is: log, evaluate, save. Whatever was logged for a step is on disk
  before the step's checkpoint, so that a run resumed there continues the same log.

  Args:
    state: Where to go on, placed by the strategy.
    train_step: The pure step.
    strategy: Runs it on devices.
    pipeline: Gives the batch of any step.
    evaluate: state -> figures; called every `eval_every_steps` and at the end.
    checkpoints: Where states are kept; the final one always is.
    metrics: Where figures go.
    total_steps: Where to stop.
    log_every_steps: Steps per line of the log; a line's losses are means over them.
    eval_every_steps: Steps between evaluations; 0 evaluates at the end only.
    save_every_steps: Steps between checkpoints; 0 saves at the end only.

  Raises:
    UserError: A loss or gradient is not finite; names the step and the last good checkpoint.
  """
  compiled_step = strategy.compile_step(train_step)
  first = int(state.step)
  batches = pipeline.iterator(first)
  window = None
  unchecked: list[dict[str, Any]] = []
  try:
    for step in range(first + 1, total_steps + 1):
      last = step == total_steps
      saves = last or _due(step, save_every_steps)
      evaluates = last or _due(step, eval_every_steps)
      state, figures = compiled_step(state, strategy.split(next(batches)))
      window = _open_window(figures, step) if window is None else _extend(window, figures, step)

      # Log: figures are fetched an interval later, so that the device never waits. A save ends the
      # interval, so that a run resumed there logs the same means as one that was never stopped.
      if saves or evaluates or step % log_every_steps == 0:
        metrics.train(
          step,
          window["figures"],
          words_seen=pipeline.words_seen(step),
          tokens_seen=pipeline.tokens_seen(step),
        )
        _stop_if_not_finite(unchecked, checkpoints)
        unchecked, window = [window], None

      if saves or evaluates:
        _stop_if_not_finite(unchecked, checkpoints)

      evaluated: dict[str, float] = {}
      if evaluates:
        with metrics.paused():
          metrics.flush()
          evaluated = metrics.write(step, dict(evaluate(state)))

      if saves:
        with metrics.paused():
          metrics.flush()
          checkpoints.save(strategy.to_saved(state), data={"next_step": step}, metrics=evaluated)
  finally:
    batches.close()
  checkpoints.wait()
  return state


def _due(step: int, every_steps: int) -> bool:
  return every_steps > 0 and step % every_steps == 0


@jax.jit
def _open_window(figures: dict[str, Any], step: int) -> dict[str, Any]:
  """Starts summing figures, and remembers the first step that is not finite."""
  bad = ~(jnp.isfinite(figures["loss_nats"][0]) & jnp.isfinite(figures["grad_norm"][0]))
  return {
    "figures": figures,
    "bad_step": jnp.where(bad, step, 0),
    "bad_loss": figures["loss_nats"][0],
    "bad_norm": figures["grad_norm"][0],
  }


@jax.jit
def _extend(window: dict[str, Any], figures: dict[str, Any], step: int) -> dict[str, Any]:
  """Adds a step's figures."""
  new = _open_window(figures, step)
  was_bad = window["bad_step"] > 0
  kept = {
    name: jnp.where(was_bad, window[name], new[name])
    for name in ("bad_step", "bad_loss", "bad_norm")
  }
  return {"figures": jax.tree.map(jnp.add, window["figures"], figures), **kept}


def _stop_if_not_finite(windows: list[dict[str, Any]], checkpoints: Checkpoints) -> None:
  for window in windows:
    step = int(window["bad_step"])
    if step == 0:
      continue
    loss, norm = float(window["bad_loss"]), float(window["bad_norm"])
    assert not (math.isfinite(loss) and math.isfinite(norm))
    good = checkpoints.latest_step()
    kept = f"the last good checkpoint is step {good}" if good else "no checkpoint was saved before"
    raise UserError(
      f"Step {step} is not finite: loss {loss} nats, gradient norm {norm}; {kept}. "
      "Lower optim.learning_rate or optim.clip_norm and start again."
    )
