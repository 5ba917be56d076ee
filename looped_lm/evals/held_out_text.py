"""Held-out rows posed as a task, states read out, and sums over all batches: for evaluators."""

from collections.abc import Callable, Sequence
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from looped_lm.data.pipeline import eval_batches
from looped_lm.nn import causal_next, masked_next
from looped_lm.nn.token_loss import token_figures
from looped_lm.types import Batch, Model, Params, Ratio, Subject, Task, Vocabulary

# What a mode decides; how the state moves is much the same in all.
_BY_MODE = ("loss_nats", "accuracy")


def pose(batch: Batch, mode: str, *, mask_rate: float, vocabulary: Vocabulary) -> Task:
  """Poses rows in a mode, "clm" or "mntp"; the masks are the same at every call."""
  if mode == "mntp":
    rate = jnp.float32(mask_rate)
    return masked_next.pose(batch, key=jax.random.key(0), rate=rate, vocabulary=vocabulary)
  return causal_next.pose(batch)


def compile_sums(
  subject: Subject,
  figures: Callable[[Model, Params, Batch, Task], dict[str, Ratio]],
  *,
  modes: Sequence[str],
  mask_rate: float,
) -> Callable[[Params, Batch], dict[str, Ratio]]:
  """Compiles what an evaluator measures on a batch, posed in each mode.

  Loss and accuracy are `<mode>/loss_nats` and `<mode>/accuracy`; all else is of the first mode.

  Args:
    subject: The model and its devices.
    figures: Of a batch and the task it was made; must not hold the subject, because programs are
      kept as long as the process and would keep the rows' files open.
    modes: Of "clm" and "mntp".
    mask_rate: Fraction of tokens masked in mntp.
  """
  return subject.strategy.compile_sums(
    functools.partial(
      _over_modes, subject.model, figures, tuple(modes), mask_rate, subject.vocabulary
    )
  )


def _over_modes(
  model: Model,
  figures: Callable[[Model, Params, Batch, Task], dict[str, Ratio]],
  modes: tuple[str, ...],
  mask_rate: float,
  vocabulary: Vocabulary,
  params: Params,
  batch: Batch,
) -> dict[str, Ratio]:
  """The modes take turns in one program, which halves what is to be compiled."""
  tasks = [pose(batch, mode, mask_rate=mask_rate, vocabulary=vocabulary) for mode in modes]
  found = jax.lax.map(
    functools.partial(figures, model, params, batch),
    jax.tree.map(lambda *parts: jnp.stack(parts), *tasks),
  )
  sums = {
    f"{mode}/{name}": jax.tree.map(lambda x, n=n: x[n], found[name])
    for n, mode in enumerate(modes)
    for name in _BY_MODE
  }
  return sums | {
    name: jax.tree.map(lambda x: x[0], ratio)
    for name, ratio in found.items()
    if name not in _BY_MODE
  }


def read_out(
  model: Model, params: Params, task: Task, states_RBTD: Float[Array, "R B T D"]
) -> dict[str, Ratio]:
  """Sends each state through coda and head: loss in nats, accuracy, and the state's mean square."""

  def figures(h_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
    hidden_BTD = model.finish(params, h_BTD, task.inputs)
    logits_BTV = model.readout(params, hidden_BTD, task.inputs.row_B)
    nats_BT, _, correct_BT = token_figures(logits_BTV, task.targets_BT)
    return (task.weight_BT * nats_BT).sum(), (task.weight_BT * correct_BT).sum()

  loss_R, correct_R = jax.lax.map(figures, states_RBTD)
  count = task.weight_BT.sum()
  return {
    "loss_nats": (loss_R, count),
    "accuracy": (correct_R, count),
    "state_square": _mean_square(states_RBTD, task.inputs.segments_BT),
  }


def _mean_square(
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
