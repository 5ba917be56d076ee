"""Causal language modelling: every token from those before it in its piece."""

from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp

from looped_lm import visibility
from looped_lm.nn.token_loss import next_tokens, token_loss
from looped_lm.types import Batch, Inputs, Loss, Model, Params, Task, Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
  """Cross-entropy of the next token, plus a z-loss.

  Attributes:
    vocabulary: The tokenizer's.
    z_loss_weight: Weight of the squared log-partition.
  """

  vocabulary: Vocabulary
  z_loss_weight: float
  modes = ("clm",)

  def draw(self, batch: Batch, *, key: jax.Array, progress: jax.Array | float) -> Task:
    """Poses the batch; nothing is random here."""
    del key, progress
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
