"""Posing rows as masked next-token prediction (MNTP)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from looped_lm import corruption, visibility
from looped_lm.nn.token_loss import next_tokens
from looped_lm.types import Batch, Inputs, Task, Vocabulary

# Where this draw stands in a row's keys, apart from the sites of dropout.
_SITE = 2**31 - 1


def mask_rate(start: float, end: float, progress: jax.Array | float) -> Float[Array, ""]:
  """start + (end - start) · progress."""
  return jnp.asarray(start + (end - start) * progress, jnp.float32)


def pose(
  batch: Batch, *, key: Key[Array, ""], rate: Float[Array, ""], vocabulary: Vocabulary
) -> Task:
  """Masks spans of every row; the original token is predicted one position earlier.

  Rows are bidirectional within a piece. Position t is supervised iff token t + 1 was chosen.
  """
  keys_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, _SITE), batch.row_B)
  tokens_BT, chosen_BT = jax.vmap(
    lambda key, tokens, segments: corruption.mask_spans(
      key, tokens, segments, rate=rate, vocabulary=vocabulary
    )
  )(keys_B, batch.tokens_BT, batch.segments_BT)
  targets_BT, has_next_BT = next_tokens(batch)
  supervised_BT = has_next_BT & jnp.roll(chosen_BT, -1, axis=1)
  return Task(
    inputs=Inputs(
      tokens_BT=tokens_BT,
      order_BT=visibility.bidirectional(batch.tokens_BT),
      segments_BT=batch.segments_BT,
      row_B=batch.row_B,
    ),
    targets_BT=targets_BT,
    weight_BT=supervised_BT.astype(jnp.float32),
    mode_B=jnp.zeros_like(batch.row_B),
  )
