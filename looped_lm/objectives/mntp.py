"""Masked next-token prediction.

Spans are hidden, and each hidden token is predicted from the position before it, by the same head
as in causal language modelling.
"""

from collections.abc import Callable
import dataclasses

import jax

from looped_lm.nn import masked_next
from looped_lm.nn.token_loss import token_loss
from looped_lm.types import Batch, Loss, Model, Params, Task, Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
  """Cross-entropy of the masked tokens, plus a z-loss. Source: GPT-BERT.

  Attributes:
    vocabulary: The tokenizer's.
    z_loss_weight: Weight of the squared log-partition.
    mask_rate_start: Nominal fraction masked at the first step.
    mask_rate_end: The same at the last step; linear in between.
  """

  vocabulary: Vocabulary
  z_loss_weight: float
  mask_rate_start: float
  mask_rate_end: float
  modes = ("mntp",)

  def draw(self, batch: Batch, *, key: jax.Array, progress: jax.Array | float) -> Task:
    """Masks the batch at the rate of this point of the run (progress in [0, 1])."""
    rate = masked_next.mask_rate(self.mask_rate_start, self.mask_rate_end, progress)
    return masked_next.pose(batch, key=key, rate=rate, vocabulary=self.vocabulary)

  def weigh(self, task: Task, *, total: Callable[[jax.Array], jax.Array]) -> Task:
    """All tokens weigh the same."""
    del total
    return task

  def loss(
    self,
    model: Model,
    params: Params,
    task: Task,
    *,
    key: jax.Array | None,
    progress: jax.Array | float = 1.0,
  ) -> Loss:
    """The loss of a part of the step's batch, at a point of the run (progress in [0, 1])."""
    return token_loss(
      model,
      params,
      task,
      key=key,
      z_loss_weight=self.z_loss_weight,
      modes=self.modes,
      progress=progress,
    )
