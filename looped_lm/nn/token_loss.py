"""The loss of predicting tokens: cross-entropy and z-loss, as sums with weights."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from looped_lm.nn import chunks
from looped_lm.types import Batch, Loss, Model, Output, Params, Ratio, Task


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
  exit_entropy_weight: float = 0.0,
  chunk_tokens: int = 0,
  row_groups: int = 1,
  progress: Float[Array, ""] | float = 1.0,
) -> Loss:
  """Σ w (cross-entropy + z_loss_weight · log²Z) over the task's positions.

  With an exit gate the cost of a position is Σ_r p_r cost_r - β H(p), p_r being the probability
  that the gate leaves after loop r; the figures by mode stay those of the last loop. Source: Ouro,
  arXiv 2510.25741, first stage.

  Args:
    model: The model.
    params: Its parameters.
    task: Inputs, targets and weights w.
    key: The step's key, or None for no dropout and the model's own number of loops.
    z_loss_weight: Weight of the squared log-partition; 1e-4 in GPT-BERT.
    exit_entropy_weight: β of a model with an exit gate.
    chunk_tokens: Supervised positions whose logits exist at a time; 0 makes those of all positions
      at once. Changes rounding alone.
    row_groups: Groups of rows that lie on different devices of one program; see `nn/chunks.py`.
    modes: Names of the values of `task.mode_B`; each gets its own loss and accuracy.
    progress: Steps taken over the steps of the run, for what changes along it; 1 is its end.
  """
  has_gate = model.exit_probability is not None
  output = model.encode(params, task.inputs, key=key, progress=progress, keep_states=has_gate)

  def cost(weights: Any, x: jax.Array, targets: jax.Array) -> tuple[jax.Array, chunks.Figures]:
    nats, z, correct = token_figures(model.project(x, weights), targets)
    return nats + z_loss_weight * z, {"loss_nats": nats, "z_loss": z, "accuracy": correct}

  def read(hidden_BTD: jax.Array, scale_BT: jax.Array) -> tuple[jax.Array, Any]:
    x_BTF, weights = model.prepare(params, hidden_BTD, task.inputs.row_B, key=key)
    return chunks.weighted_sum(
      cost,
      weights,
      x_BTF,
      task.targets_BT,
      scale_BT,
      task.weight_BT != 0,
      chunk_tokens=chunk_tokens,
      row_groups=row_groups,
    )

  weight_BT = task.weight_BT.astype(jnp.promote_types(output.hidden_BTD.dtype, jnp.float32))
  if not has_gate:
    sum_nats, figures = read(output.hidden_BTD, weight_BT)
  else:
    p_RBT, entropy_BT = _exits(model, params, output)
    sum_nats, figures = read(output.hidden_BTD, weight_BT * p_RBT[-1])

    @jax.checkpoint
    def earlier(part: tuple[Any, jax.Array]) -> jax.Array:
      # A coda without dropout. One loop's logits at a time, made again in the backward pass.
      h_BTD, p_BT = part
      return read(model.finish(params, h_BTD, task.inputs), weight_BT * p_BT)[0]

    states_RBTD = jax.tree.map(lambda x: x[:-1], output.states_RBTD)
    sum_nats = sum_nats + jax.lax.map(earlier, (states_RBTD, p_RBT[:-1])).sum()
    sum_nats = sum_nats - exit_entropy_weight * (weight_BT * entropy_BT).sum()
    loop_R11 = jnp.arange(1.0, 1.0 + len(p_RBT))[:, None, None]
    loops_BT = (p_RBT * loop_R11).sum(axis=0)
    figures = {**figures, "exit_loops": loops_BT, "exit_entropy_nats": entropy_BT}
  return Loss(sum_nats=sum_nats, weight=weight_BT.sum(), metrics=_by_mode(figures, task, modes))


def exit_distribution(leave_RBT: Float[Array, "R B T"]) -> Float[Array, "R B T"]:
  """p_r = λ_r Π_{j<r} (1 - λ_j); the last loop takes what is left."""
  stays_RBT = jnp.cumprod(1.0 - leave_RBT[:-1], axis=0)
  reaches_RBT = jnp.concatenate([jnp.ones_like(leave_RBT[:1]), stays_RBT])
  return jnp.concatenate([(leave_RBT * reaches_RBT)[:-1], reaches_RBT[-1:]])


def _exits(
  model: Model, params: Params, output: Output
) -> tuple[Float[Array, "R B T"], Float[Array, "B T"]]:
  """How probable each loop is to be the last, and the entropy of that in nats."""
  assert model.exit_probability is not None
  leave = functools.partial(model.exit_probability, params)
  p_RBT = exit_distribution(jax.vmap(leave)(output.states_RBTD))
  return p_RBT, -(p_RBT * jnp.log(jnp.maximum(p_RBT, 1e-20))).sum(axis=0)


def _by_mode(figures: dict[str, Any], task: Task, modes: tuple[str, ...]) -> dict[str, Ratio]:
  """Plain means over the supervised positions of each mode, as sums."""
  metrics = {}
  for number, mode in enumerate(modes):
    counts_BT = (task.weight_BT > 0) & (task.mode_B == number)[:, None]
    counts_BT = counts_BT.astype(figures["loss_nats"].dtype)
    for name, figure_BT in figures.items():
      metrics[f"{mode}/{name}"] = ((counts_BT * figure_BT).sum(), counts_BT.sum())
  return metrics
