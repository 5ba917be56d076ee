"""Masked next-token prediction.

Spans are hidden, and each hidden token is predicted from the position before it, by the same head
as in causal language modelling.
"""

import dataclasses

import jax

from looped_lm.nn import masked_next
from looped_lm.nn.token_objective import TokenObjective
from looped_lm.types import Batch, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective(TokenObjective):
  """Cross-entropy of the masked tokens, plus a z-loss. Source: GPT-BERT.

  Attributes:
    mask_rate_start: Nominal fraction masked at the first step.
    mask_rate_end: The same at the last step; linear in between.
  """

  mask_rate_start: float
  mask_rate_end: float
  modes = ("mntp",)

  def draw(self, batch: Batch, *, key: jax.Array, progress: jax.Array | float) -> Task:
    """Masks the batch at the rate of this point of the run (progress in [0, 1])."""
    rate = masked_next.mask_rate(self.mask_rate_start, self.mask_rate_end, progress)
    return masked_next.pose(batch, key=key, rate=rate, vocabulary=self.vocabulary)
