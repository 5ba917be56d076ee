"""The loss of predicting tokens: cross-entropy and z-loss, as sums with weights."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from looped_lm.types import Batch, Loss, Model, Params, Ratio, Task


def next_tokens(batch: Batch) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
  """The token after each position, and whether it belongs to the same piece.

  `<s>` starts a piece, so it is never a next token; neither is padding.
  """
  targets_BT = jnp.roll(batch.tokens_BT, -1, axis=1)
  next_segment_BT = jnp.roll(batch.segments_BT, -1, axis=1).at[:, -1].set(0)
  return targets_BT, (next_segment_BT == batch.segments_BT) & (batch.segments_BT > 0)


def token_figures(
  logits_BTV: Float[Array, "B T V"], targets_BT: Int[Array, "B T"]
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Float[Array, "B T"]]:
  """Cross-entropy in nats, squared log-partition, and 1 where the best token is the target."""
  log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
  target_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
  correct_BT = (logits_BTV.argmax(axis=-1) == targets_BT).astype(log_z_BT.dtype)
  return log_z_BT - target_BT, jnp.square(log_z_BT), correct_BT


def token_loss(
  model: Model,
  params: Params,
  task: Task,
  *,
  key: Key[Array, ""] | None,
  z_loss_weight: float,
  modes: tuple[str, ...],
  progress: Float[Array, ""] | float = 1.0,
) -> Loss:
  """Σ w (cross-entropy + z_loss_weight · log²Z) over the task's positions.

  Args:
    model: The model.
    params: Its parameters.
    task: Inputs, targets and weights w.
    key: The step's key, or None for no dropout and the model's own number of loops.
    z_loss_weight: Weight of the squared log-partition; 1e-4 in GPT-BERT.
    modes: Names of the values of `task.mode_B`; each gets its own loss and accuracy.
    progress: Steps taken over the steps of the run, for what changes along it; 1 is its end.
  """
  output = model.encode(params, task.inputs, key=key, progress=progress)
  logits_BTV = model.readout(params, output.hidden_BTD, task.inputs.row_B, key=key)
  nats_BT, z_BT, correct_BT = token_figures(logits_BTV, task.targets_BT)
  weight_BT = task.weight_BT.astype(nats_BT.dtype)
  figures = {"loss_nats": nats_BT, "z_loss": z_BT, "accuracy": correct_BT}
  return Loss(
    sum_nats=(weight_BT * (nats_BT + z_loss_weight * z_BT)).sum(),
    weight=weight_BT.sum(),
    metrics=_by_mode(figures, task, modes),
  )


def _by_mode(figures: dict[str, Any], task: Task, modes: tuple[str, ...]) -> dict[str, Ratio]:
  """Plain means over the supervised positions of each mode, as sums."""
  metrics = {}
  for number, mode in enumerate(modes):
    counts_BT = (task.weight_BT > 0) & (task.mode_B == number)[:, None]
    counts_BT = counts_BT.astype(figures["loss_nats"].dtype)
    for name, figure_BT in figures.items():
      metrics[f"{mode}/{name}"] = ((counts_BT * figure_BT).sum(), counts_BT.sum())
  return metrics
