"""Causal language modelling: every token from those before it in its piece."""

import dataclasses

import jax

from looped_lm.nn import causal_next
from looped_lm.nn.token_objective import TokenObjective
from looped_lm.types import Batch, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective(TokenObjective):
  """Cross-entropy of the next token, plus a z-loss. The settings are `TokenObjective`'s."""

  modes = ("clm",)

  def draw(self, batch: Batch, *, key: jax.Array, progress: jax.Array | float) -> Task:
    """Poses the batch; nothing is random here."""
    del key, progress
    return causal_next.pose(batch)
