"""What all objectives that predict tokens share."""

from collections.abc import Callable
import dataclasses

import jax

from looped_lm.errors import UserError
from looped_lm.nn.token_loss import token_loss
from looped_lm.types import Loss, Model, Params, Task, Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenObjective:
  """Cross-entropy of the chosen tokens, plus a z-loss. An objective adds `draw` and its `modes`.

  Attributes:
    vocabulary: The tokenizer's.
    z_loss_weight: Weight of the squared log-partition.
    exit_entropy_weight: β, for a model with an exit gate: the loss is the expected one over the
      loops at which the gate leaves, less β times the entropy of that choice, in nats.
  """

  vocabulary: Vocabulary
  z_loss_weight: float
  exit_entropy_weight: float = 0.0
  modes = ()

  def __post_init__(self):
    if self.exit_entropy_weight < 0:
      raise UserError(
        f"objective.exit_entropy_weight={self.exit_entropy_weight} must be at least 0."
      )

  def weigh(self, task: Task, *, total: Callable[[jax.Array], jax.Array]) -> Task:
    """Sets the weight of each token; here all weigh the same.

    Args:
      task: From `draw`, for all micro-batches of this device.
      total: Sums a figure over the devices.
    """
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
      exit_entropy_weight=self.exit_entropy_weight,
      modes=self.modes,
      progress=progress,
    )
