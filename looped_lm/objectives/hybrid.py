"""GPT-BERT's hybrid: some rows of the batch are masked, the others causal.

The loss is r · mean over masked tokens + (1 - r) · mean over causal tokens, with both means taken
over the whole step: all devices and micro-batches.
"""

from collections.abc import Callable
import dataclasses
import fractions

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from looped_lm import visibility
from looped_lm.errors import UserError
from looped_lm.nn import masked_next
from looped_lm.nn.token_loss import next_tokens
from looped_lm.nn.token_objective import TokenObjective
from looped_lm.types import Batch, Inputs, Task

_CLM, _MNTP = 0, 1
_LARGEST_DENOMINATOR = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective(TokenObjective):
  """Masked next-token and causal rows in one batch. Source: GPT-BERT.

  Attributes:
    mntp_fraction: r, the fraction of masked rows, in [0, 1].
    mask_rate_start: Nominal fraction masked at the first step.
    mask_rate_end: The same at the last step; linear in between.
    token_weighted: True takes one mean over all supervised tokens instead; masked rows supervise
      only 15-30 % of their tokens and then weigh accordingly less.
  """

  mntp_fraction: float
  mask_rate_start: float
  mask_rate_end: float
  token_weighted: bool
  modes = ("clm", "mntp")

  def __post_init__(self):
    super().__post_init__()
    if not 0.0 <= self.mntp_fraction <= 1.0:
      raise UserError(
        f"objective.mntp_fraction={self.mntp_fraction} must lie in [0, 1]: "
        "0 is purely causal, 1 purely masked."
      )
    if abs(float(self._ratio()) - self.mntp_fraction) > 1e-9:
      raise UserError(
        f"objective.mntp_fraction={self.mntp_fraction} must be a fraction with a denominator up to "
        f"{_LARGEST_DENOMINATOR}; the nearest is {float(self._ratio())}."
      )

  def is_masked(self, row_B: Int[Array, " B"]) -> Bool[Array, " B"]:
    """Row i is masked iff ⌊(i + 1) r⌋ > ⌊i r⌋: the rows spread evenly, the same on any layout."""
    ratio = self._ratio()
    return (row_B + 1) * ratio.numerator // ratio.denominator > (
      row_B * ratio.numerator // ratio.denominator
    )

  def draw(self, batch: Batch, *, key: jax.Array, progress: jax.Array | float) -> Task:
    """Masks some rows at the rate of this point of the run (progress in [0, 1])."""
    rate = masked_next.mask_rate(self.mask_rate_start, self.mask_rate_end, progress)
    masked = masked_next.pose(batch, key=key, rate=rate, vocabulary=self.vocabulary)
    targets_BT, causal_BT = next_tokens(batch)
    masked_B = self.is_masked(batch.row_B)
    masked_B1 = masked_B[:, None]
    return Task(
      inputs=Inputs(
        tokens_BT=jnp.where(masked_B1, masked.inputs.tokens_BT, batch.tokens_BT),
        order_BT=jnp.where(masked_B1, masked.inputs.order_BT, visibility.causal(batch.tokens_BT)),
        segments_BT=batch.segments_BT,
        row_B=batch.row_B,
      ),
      targets_BT=targets_BT,
      weight_BT=jnp.where(masked_B1, masked.weight_BT, causal_BT.astype(jnp.float32)),
      mode_B=jnp.where(masked_B, _MNTP, _CLM),
    )

  def weigh(self, task: Task, *, total: Callable[[jax.Array], jax.Array]) -> Task:
    """Gives masked tokens the weight r / N_mntp and causal ones (1 - r) / N_clm.

    Args:
      task: From `draw`, for all micro-batches of this device.
      total: Sums a figure over the devices.
    """
    if self.token_weighted:
      return task
    masked_B1 = (task.mode_B == _MNTP)[:, None]
    num_masked = total(jnp.where(masked_B1, task.weight_BT, 0.0).sum())
    num_causal = total(jnp.where(masked_B1, 0.0, task.weight_BT).sum())
    r = self.mntp_fraction
    scale_B1 = jnp.where(
      masked_B1,
      r / jnp.maximum(num_masked, 1.0),
      (1.0 - r) / jnp.maximum(num_causal, 1.0),
    )
    return dataclasses.replace(task, weight_BT=task.weight_BT * scale_B1)

  def _ratio(self) -> fractions.Fraction:
    return fractions.Fraction(self.mntp_fraction).limit_denominator(_LARGEST_DENOMINATOR)
