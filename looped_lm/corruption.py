"""Corruption of text, on the device: which tokens are masked, and what stands in their place.

Every draw comes from one key per row, so it does not depend on the batch's layout.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from looped_lm.types import Vocabulary

MAX_SPAN_TOKENS = 3


def span_starts(piece_start_T: Bool[Array, " T"], length_T: Int[Array, " T"]) -> Bool[Array, " T"]:
  """Tiles a row with spans; a piece always starts a new one.

  Args:
    piece_start_T: True at the first token of a piece.
    length_T: Length in tokens (1 .. MAX_SPAN_TOKENS) of the span that would start at a position.

  Returns:
    True where a span starts.
  """
  # A position maps "tokens left of the running span" before it to the same after it. The maps are
  # small tables, and tables compose associatively: the row is tiled in log T steps.
  left_TC = jnp.broadcast_to(jnp.arange(MAX_SPAN_TOKENS) - 1, (length_T.shape[0], MAX_SPAN_TOKENS))
  left_TC = left_TC.at[:, 0].set(length_T - 1)
  left_TC = jnp.where(piece_start_T[:, None], length_T[:, None] - 1, left_TC)
  after_TC = jax.lax.associative_scan(
    lambda first, second: jnp.take_along_axis(second, first, axis=-1), left_TC
  )
  left_before_T = jnp.concatenate([jnp.zeros(1, after_TC.dtype), after_TC[:-1, 0]])
  return piece_start_T | (left_before_T == 0)


def mask_spans(
  key: Key[Array, ""],
  tokens_T: Int[Array, " T"],
  segments_T: Int[Array, " T"],
  *,
  rate: Float[Array, ""],
  vocabulary: Vocabulary,
) -> tuple[Int[Array, " T"], Bool[Array, " T"]]:
  """Masks spans of 1-3 tokens in every piece of a row.

  A piece of n tokens gets k = max(1, ⌊n·rate + U⌋); tokens whose span scores no worse than the k-th
  best are masked, ties included, so whole spans come along and short pieces are masked more
  (0.305, 0.321, 0.358 and 0.44 of 126, 30, 10 and 5 tokens at a nominal 0.30). Per span: 80 %
  `<mask>`, 10 % random tokens, 10 % left as they are. Specials are never masked.

  Args:
    key: The row's key.
    tokens_T: Token ids.
    segments_T: Piece of each token; 0 is padding.
    rate: Nominal fraction in (0, 1).
    vocabulary: Which ids are specials.

  Returns:
    The corrupted tokens, and True where a token was chosen.

  Source: GPT-BERT's masked-next-token data, without its counters of how often a token was seen.
  """
  length = tokens_T.shape[0]
  key_length, key_score, key_action, key_count, key_token = jax.random.split(key, 5)
  maskable_T = (tokens_T >= vocabulary.num_special) & (segments_T > 0)
  before_T = jnp.concatenate([jnp.zeros(1, segments_T.dtype), segments_T[:-1]])
  bos_T = segments_T != before_T
  piece_start_T = jnp.concatenate([jnp.zeros(1, bool), bos_T[:-1]]) | bos_T
  length_T = jax.random.randint(key_length, (length,), 1, MAX_SPAN_TOKENS + 1)
  span_T = jnp.cumsum(span_starts(piece_start_T, length_T)) - 1
  score_T = jax.random.uniform(key_score, (length,))[span_T]
  action_T = jax.random.uniform(key_action, (length,))[span_T]

  peers_TS = (segments_T[:, None] == segments_T[None, :]) & maskable_T[None, :]
  better_T = (peers_TS & (score_T[None, :] < score_T[:, None])).sum(axis=-1)
  extra_T = jax.random.uniform(key_count, (length + 1,))[segments_T]
  count_T = jnp.maximum(1, jnp.floor(peers_TS.sum(axis=-1) * rate + extra_T))
  chosen_T = maskable_T & (better_T < count_T)

  random_T = jax.random.randint(key_token, (length,), vocabulary.num_special, vocabulary.size)
  kept_T = jnp.where(action_T <= 0.2, tokens_T, vocabulary.mask_id)
  replaced_T = jnp.where(action_T < 0.1, random_T, kept_T)
  return jnp.where(chosen_T, replaced_T, tokens_T).astype(tokens_T.dtype), chosen_T
