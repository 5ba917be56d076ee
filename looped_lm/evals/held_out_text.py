"""Held-out rows posed as a task, states read out, and sums over all batches: for evaluators."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from looped_lm import visibility
from looped_lm.data.pipeline import eval_batches
from looped_lm.nn import masked_next
from looped_lm.nn.token_loss import next_tokens, token_figures
from looped_lm.types import Batch, Inputs, Model, Params, Ratio, Subject, Task, Vocabulary


def pose(batch: Batch, mode: str, *, mask_rate: float, vocabulary: Vocabulary) -> Task:
  """Poses rows in a mode, "clm" or "mntp"; the masks are the same at every call."""
  if mode == "mntp":
    rate = jnp.float32(mask_rate)
    return masked_next.pose(batch, key=jax.random.key(0), rate=rate, vocabulary=vocabulary)
  targets_BT, supervised_BT = next_tokens(batch)
  return Task(
    inputs=Inputs(
      tokens_BT=batch.tokens_BT,
      order_BT=visibility.causal(batch.tokens_BT),
      segments_BT=batch.segments_BT,
      row_B=batch.row_B,
    ),
    targets_BT=targets_BT,
    weight_BT=supervised_BT.astype(jnp.float32),
    mode_B=jnp.zeros_like(batch.row_B),
  )


def over_modes(
  modes: Sequence[str],
  figures: Callable[[Task], dict[str, Ratio]],
  batch: Batch,
  *,
  mask_rate: float,
  vocabulary: Vocabulary,
) -> dict[str, dict[str, Ratio]]:
  """Poses a batch in each mode and measures: mode -> name -> sum and weight.

  The modes take turns in one program, which halves what is to be compiled.
  """
  tasks = [pose(batch, mode, mask_rate=mask_rate, vocabulary=vocabulary) for mode in modes]
  found = jax.lax.map(figures, jax.tree.map(lambda *parts: jnp.stack(parts), *tasks))
  return {mode: jax.tree.map(lambda x, n=n: x[n], found) for n, mode in enumerate(modes)}


def read_out(
  model: Model, params: Params, task: Task, states_RBTD: Float[Array, "R B T D"]
) -> tuple[Float[Array, " R"], Float[Array, " R"]]:
  """Sends each state through coda and head: sums of the loss in nats and of right predictions."""

  def figures(h_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
    hidden_BTD = model.finish(params, h_BTD, task.inputs)
    logits_BTV = model.readout(params, hidden_BTD, task.inputs.row_B)
    nats_BT, _, correct_BT = token_figures(logits_BTV, task.targets_BT)
    return (task.weight_BT * nats_BT).sum(), (task.weight_BT * correct_BT).sum()

  return jax.lax.map(figures, states_RBTD)


def mean_square(
  states_RBTD: Float[Array, "R B T D"], segments_BT: Int[Array, "B T"]
) -> tuple[Float[Array, " R"], Int[Array, ""]]:
  """Sums of the mean square of each real token's state, and their number."""
  real_BT = segments_BT > 0
  # A state may have lanes besides its channels.
  channels = tuple(range(3, states_RBTD.ndim))
  square_RBT = jnp.square(states_RBTD).mean(axis=channels) * real_BT[None]
  return square_RBT.sum(axis=(1, 2)), real_BT.sum()


def means(
  subject: Subject,
  sums: Callable[[Params, Batch], dict[str, Ratio]],
  params: Params,
  *,
  num_batches: int,
) -> dict[str, np.ndarray]:
  """Adds compiled sums over the held-out batches and divides once, in float64.

  Args:
    subject: Has the rows.
    sums: As the subject's strategy compiled them.
    params: Where the strategy put them.
    num_batches: Most batches to read; 0 reads all.
  """
  totals: dict[str, tuple[np.ndarray, np.ndarray]] = {}
  batches = eval_batches(
    subject.held_out,
    batch_size=subject.batch_size,
    num_batches=num_batches,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  for batch in batches:
    for name, (part, weight) in sums(params, subject.strategy.split(batch)).items():
      total, weights = totals.get(name, (0.0, 0.0))
      totals[name] = (total + np.asarray(part, np.float64), weights + np.asarray(weight, float))
  return {name: total / weight for name, (total, weight) in totals.items()}
