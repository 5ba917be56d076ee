"""Causal language modelling: every token from those before it in its piece."""

import dataclasses

import jax
import jax.numpy as jnp

from looped_lm import visibility
from looped_lm.nn.token_loss import next_tokens
from looped_lm.nn.token_objective import TokenObjective
from looped_lm.types import Batch, Inputs, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective(TokenObjective):
  """Cross-entropy of the next token, plus a z-loss. The settings are `TokenObjective`'s."""

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
