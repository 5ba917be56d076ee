"""Which rows share a batch."""

import numpy as np
import pytest

from looped_lm.evals import buckets


@pytest.mark.parametrize(
  ("longest", "seq_len", "lengths"),
  [
    (1, 32, [8]),
    (9, 32, [8, 9]),
    (33, 32, [*range(8, 16), *range(16, 33, 2), 36]),
    (29, 29, [*range(8, 16), *range(16, 30, 2), 29]),
  ],
)
def test_lengths_are_few_and_hold_the_trained_one(longest, seq_len, lengths):
  assert buckets.ladder(longest, seq_len=seq_len) == lengths


def test_no_length_is_above_what_the_model_reads():
  assert buckets.ladder(33, seq_len=32, most=40)[-3:] == [30, 32, 36]
  assert buckets.ladder(33, seq_len=32, most=35)[-1] == 35


@pytest.mark.parametrize("worth", [1, 2**17])
@pytest.mark.parametrize("together", [1, 3])
def test_every_row_is_in_one_batch_that_is_long_enough(monkeypatch, worth, together):
  monkeypatch.setattr(buckets, "_WORTH_A_PROGRAM", worth)
  length_N = np.random.default_rng(0).integers(1, 70, size=500)
  seen = []
  sizes = {"batch_tokens": 256, "seq_len": 32, "multiple": 4, "together": together}
  for length, rows, index_M in buckets.batches(length_N, **sizes):
    assert rows % 4 == 0
    assert len(index_M) <= rows * together
    assert length_N[index_M].max() <= length
    seen += index_M.tolist()
  assert sorted(seen) == list(range(500))


def test_a_handful_of_rows_shares_the_program_of_longer_ones():
  def shapes(length_N):
    found = buckets.batches(np.array(length_N), batch_tokens=256, seq_len=32, multiple=1)
    return {length for length, _, _ in found}

  assert shapes([8] * 10 + [16] * 10) == {16}
  assert shapes([8] * 20_000 + [16] * 10) == {8, 16}
