"""Posing rows as causal language modelling: every token from those before it in its piece."""

import jax.numpy as jnp

from looped_lm import visibility
from looped_lm.nn.token_loss import next_tokens
from looped_lm.types import Batch, Inputs, Task


def pose(batch: Batch) -> Task:
  """Poses every row; nothing is random. Position t is supervised iff t + 1 is of its piece."""
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
