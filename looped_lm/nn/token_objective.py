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
    chunk_tokens: Supervised positions whose logits exist at a time on a device; 0 makes those of
      all positions at once.
  """

  vocabulary: Vocabulary
  z_loss_weight: float
  exit_entropy_weight: float = 0.0
  chunk_tokens: int = 0
  modes = ()

  def __post_init__(self):
    if self.exit_entropy_weight < 0:
      raise UserError(
        f"objective.exit_entropy_weight={self.exit_entropy_weight} must be at least 0."
      )
    if self.chunk_tokens < 0:
      raise UserError(
        f"objective.chunk_tokens={self.chunk_tokens} must be at least 0; 0 takes all at once."
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
    row_groups: int = 1,
  ) -> Loss:
    """The loss of a part of the step's batch, at a point of the run (progress in [0, 1]).

    `row_groups` says in how many groups the rows lie on different devices of one program.
    """
    return token_loss(
      model,
      params,
      task,
      key=key,
      z_loss_weight=self.z_loss_weight,
      exit_entropy_weight=self.exit_entropy_weight,
      chunk_tokens=self.chunk_tokens,
      row_groups=row_groups,
      modes=self.modes,
      progress=progress,
    )
