"""Figures summed over the steps of a log interval, on the device; and the first not finite."""

from collections.abc import Mapping
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm.data.pipeline import Pipeline
from looped_lm.errors import UserError

Window = dict[str, Any]
_SHOWN_ROWS = 8


def add(window: Window | None, figures: Mapping[str, Any], step: int) -> Window:
  """Adds a step's figures; None begins an interval."""
  return _open(figures, step) if window is None else _extend(window, figures, step)


def pack(window: Window | None) -> dict[str, Any] | None:
  """Gives a finite interval as JSON that loses no bit: name -> [sum, weight]."""
  if window is None:
    return None
  return {
    name: [float(np.asarray(part)) for part in ratio] for name, ratio in window["figures"].items()
  }


def unpack(figures: Mapping[str, Any] | None) -> Window | None:
  """The inverse of `pack`."""
  if figures is None:
    return None
  zero = np.float32(0)
  ratios = {name: tuple(np.float32(part) for part in ratio) for name, ratio in figures.items()}
  return {"figures": ratios, "bad_step": np.int32(0), "bad_loss": zero, "bad_norm": zero}


def stop_if_not_finite(window: Window, *, pipeline: Pipeline, latest_step: int | None) -> None:
  """Waits for an interval's figures.

  Args:
    window: The interval.
    pipeline: Names the rows of a step.
    latest_step: Of the checkpoints.

  Raises:
    UserError: A loss or a gradient in it is not finite.
  """
  step = int(window["bad_step"])
  if step == 0:
    return
  loss, norm = float(window["bad_loss"]), float(window["bad_norm"])
  assert not (math.isfinite(loss) and math.isfinite(norm))
  rows = pipeline.indices(step - 1).tolist()
  shown = ", ".join(str(row) for row in rows[:_SHOWN_ROWS])
  more = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
  kept = "no checkpoint was saved before"
  if latest_step is not None:
    kept = f"the last good checkpoint is step {latest_step}"
  raise UserError(
    f"Step {step} is not finite: loss {loss} nats, gradient norm {norm}, on training rows {shown}"
    f"{more}; {kept}. To see this step alone: the same command with --mode=replay --step={step}. "
    "To go on: lower optim.learning_rate or optim.clip_norm and start again."
  )


@jax.jit
def _open(figures: dict[str, Any], step: int) -> Window:
  """Starts summing figures, and remembers the first step that is not finite."""
  bad = ~(jnp.isfinite(figures["loss_nats"][0]) & jnp.isfinite(figures["grad_norm"][0]))
  return {
    "figures": figures,
    "bad_step": jnp.where(bad, step, 0),
    "bad_loss": figures["loss_nats"][0],
    "bad_norm": figures["grad_norm"][0],
  }


@jax.jit
def _extend(window: Window, figures: dict[str, Any], step: int) -> Window:
  """Adds a step's figures."""
  new = _open(figures, step)
  was_bad = window["bad_step"] > 0
  kept = {
    name: jnp.where(was_bad, window[name], new[name])
    for name in ("bad_step", "bad_loss", "bad_norm")
  }
  return {"figures": jax.tree.map(jnp.add, window["figures"], figures), **kept}
