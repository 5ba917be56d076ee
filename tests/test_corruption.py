"""Which tokens are masked, and what stands in their place."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import corruption
from looped_lm.types import Vocabulary

VOCABULARY = Vocabulary(size=1000, num_special=16, bos_id=1, pad_id=3, mask_id=4)


def corrupt(tokens_BT, segments_BT, *, rate=0.3, vocabulary=VOCABULARY):
  keys_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(len(tokens_BT)))
  mask = functools.partial(corruption.mask_spans, rate=jnp.float32(rate), vocabulary=vocabulary)
  # A part of the rows at a time: ranks compare all pairs of a row.
  part = jax.jit(lambda arguments: jax.lax.map(lambda a: mask(*a), arguments, batch_size=500))
  return part((keys_B, jnp.asarray(tokens_BT), jnp.asarray(segments_BT)))


def rows_of_pieces(num_rows, piece_tokens):
  """Each row is `<s>`, a piece, and one pad."""
  tokens = np.full((num_rows, piece_tokens + 2), 3, np.int32)
  tokens[:, 0] = 1
  tokens[:, 1:-1] = np.random.default_rng(0).integers(16, 1000, (num_rows, piece_tokens))
  segments = np.ones_like(tokens)
  segments[:, -1] = 0
  return tokens, segments


def test_spans_tile_a_row_and_restart_at_every_piece():
  #                piece: a a a a a b b b
  start = np.array([1, 0, 0, 0, 0, 1, 0, 0], bool)
  length = np.array([2, 3, 3, 1, 3, 2, 1, 1])
  #          spans: [a a][a a a][b b][b]: the second span of a is cut by nothing, b starts afresh.
  expected = np.array([1, 0, 1, 0, 0, 1, 0, 1], bool)
  np.testing.assert_array_equal(
    corruption.span_starts(jnp.asarray(start), jnp.asarray(length)), expected
  )


def test_tiling_equals_walking_along_the_row():
  rng = np.random.default_rng(1)
  starts = rng.random((50, 40)) < 0.1
  lengths = rng.integers(1, 4, (50, 40))
  ours = jax.jit(jax.vmap(corruption.span_starts))(jnp.asarray(starts), jnp.asarray(lengths))
  for row in range(50):
    left, expected = 0, []
    for piece_start, length in zip(starts[row], lengths[row], strict=True):
      begins = bool(piece_start) or left == 0
      left = length - 1 if begins else left - 1
      expected.append(begins)
    np.testing.assert_array_equal(ours[row], expected)


@pytest.mark.parametrize(
  ("piece_tokens", "expected"),
  [pytest.param(126, 0.305, marks=pytest.mark.slow), (30, 0.321), (10, 0.358), (5, 0.44)],
)
def test_realised_rates_are_the_references(piece_tokens, expected):
  _, chosen = corrupt(*rows_of_pieces(20_000, piece_tokens))
  assert abs(float(chosen.sum()) / (20_000 * piece_tokens) - expected) < 0.005


def test_eighty_ten_ten_and_specials_are_never_masked():
  tokens, segments = rows_of_pieces(4000, 60)
  tokens[:, 7] = 0  # An `<unk>` within a piece.
  corrupted, chosen = (np.asarray(x) for x in corrupt(tokens, segments))
  assert not chosen[tokens < 16].any()
  np.testing.assert_array_equal(corrupted[~chosen], tokens[~chosen])
  masked = corrupted[chosen] == 4
  kept = corrupted[chosen] == tokens[chosen]
  assert abs(masked.mean() - 0.8) < 0.01
  assert abs(kept.mean() - 0.1) < 0.01
  assert corrupted[chosen & (corrupted != 4)].min() >= 16


def test_the_first_id_behind_the_specials_is_masked_and_drawn():
  tokens, segments = rows_of_pieces(200, 30)
  tokens[:, 1:-1] = np.where(np.arange(30) % 2, 15, 16)
  small = dataclasses.replace(VOCABULARY, size=17)
  corrupted, chosen = corrupt(tokens, segments, vocabulary=small)
  assert chosen[tokens == 16].mean() > 0.2
  assert not chosen[tokens == 15].any()
  assert set(np.unique(corrupted[chosen])) == {4, 16}


def test_every_piece_has_a_masked_token_even_at_rate_zero():
  tokens, segments = rows_of_pieces(200, 6)
  segments[:, 3:-1] = 2
  _, chosen = corrupt(tokens, segments, rate=0.0)
  for segment in (1, 2):
    assert np.asarray((chosen & (segments == segment)).any(axis=1)).all()


def test_a_row_is_corrupted_the_same_in_any_batch():
  tokens, segments = rows_of_pieces(8, 20)
  whole = corrupt(tokens, segments)
  other = rows_of_pieces(9, 20)[0]
  other[:8] = tokens
  longer = corrupt(other, np.concatenate([segments, segments[:1]]))
  np.testing.assert_array_equal(whole[0], longer[0][:8])
