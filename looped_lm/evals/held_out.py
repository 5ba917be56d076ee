"""Loss and accuracy on held-out text: in both modes, and after every loop."""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm import visibility
from looped_lm.data.pipeline import eval_batches
from looped_lm.nn import masked_next
from looped_lm.nn.token_loss import next_tokens, token_figures
from looped_lm.types import Batch, Inputs, Params, Ratio, Subject, Task


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Reads every loop out: z_r goes through coda and head, r = 1 .. R.

  Yields `eval/<mode>/loss_nats` and `/accuracy` (the last loop's), `eval/<mode>/loop/<r>/loss_nats`
  and `eval/loop/<r>/state_rms` over the causal rows. The masks are the same at every call.

  Attributes:
    subject: The model and the held-out rows.
    modes: Any of "clm" and "mntp".
    mask_rate: Fraction of tokens masked in mntp.
  """

  subject: Subject
  modes: tuple[str, ...] = ("clm", "mntp")
  mask_rate: float = 0.15

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Evaluates parameters that lie where the strategy put them."""
    subject = self.subject
    totals: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    batches = eval_batches(
      subject.held_out,
      batch_size=subject.batch_size,
      num_batches=subject.num_batches,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
    )
    for batch in batches:
      for name, (part, weight) in self._sums(params, subject.strategy.split(batch)).items():
        total, weights = totals.get(name, (0.0, 0.0))
        totals[name] = (total + np.asarray(part, np.float64), weights + np.asarray(weight, float))
    for mode in self.modes:
      loss_R = _divide(totals[f"{mode}/loss_nats"])
      yield f"eval/{mode}/loss_nats", float(loss_R[-1])
      yield f"eval/{mode}/accuracy", float(_divide(totals[f"{mode}/accuracy"])[-1])
      for loop, value in enumerate(loss_R, start=1):
        yield f"eval/{mode}/loop/{loop:02}/loss_nats", float(value)
    for loop, square in enumerate(_divide(totals["state_square"]), start=1):
      yield f"eval/loop/{loop:02}/state_rms", math.sqrt(square)

  @functools.cached_property
  def _sums(self) -> Callable[[Params, Batch], dict[str, Ratio]]:
    return self.subject.strategy.compile_sums(self._batch_sums)

  def _batch_sums(self, params: Params, batch: Batch) -> dict[str, Ratio]:
    sums = {}
    for mode in self.modes:
      task = self._pose(batch, mode)
      states_RBTD = self.subject.model.encode(params, task.inputs, keep_states=True).states_RBTD
      assert states_RBTD is not None
      figures = functools.partial(self._figures, params, task)
      loss_R, correct_R = jax.lax.map(figures, states_RBTD)
      count = task.weight_BT.sum()
      sums[f"{mode}/loss_nats"] = (loss_R, count)
      sums[f"{mode}/accuracy"] = (correct_R, count)
      if mode == self.modes[0]:
        real_BT = batch.segments_BT > 0
        # A state may have lanes besides its channels.
        channels = tuple(range(3, states_RBTD.ndim))
        square_RBT = jnp.square(states_RBTD).mean(axis=channels) * real_BT[None]
        sums["state_square"] = (square_RBT.sum(axis=(1, 2)), real_BT.sum())
    return sums

  def _figures(self, params: Params, task: Task, h_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
    model = self.subject.model
    hidden_BTD = model.finish(params, h_BTD, task.inputs)
    logits_BTV = model.readout(params, hidden_BTD, task.inputs.row_B)
    nats_BT, _, correct_BT = token_figures(logits_BTV, task.targets_BT)
    return (task.weight_BT * nats_BT).sum(), (task.weight_BT * correct_BT).sum()

  def _pose(self, batch: Batch, mode: str) -> Task:
    if mode == "mntp":
      return masked_next.pose(
        batch,
        key=jax.random.key(0),
        rate=jnp.float32(self.mask_rate),
        vocabulary=self.subject.vocabulary,
      )
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


def _divide(ratio: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
  return ratio[0] / ratio[1]
