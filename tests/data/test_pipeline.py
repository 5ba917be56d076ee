import itertools
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from looped_lm.data import packing
from looped_lm.data.pipeline import Pipeline, eval_batches
from looped_lm.data.rows import Rows
from looped_lm.errors import UserError

BOS, PAD = 1, 3


def rows_of(num_rows, *, words=None):
  """Rows of 8 positions, each with one piece of 7 tokens; the first token numbers the row."""
  tokens_S = np.repeat(np.arange(16, 16 + num_rows, dtype=np.uint16), 7)
  words_S = np.ones(7 * num_rows, np.int8)
  if words is not None:
    words_S[:] = 0
    words_S[::7] = words
  return Rows.build(
    packing.Pieces(
      row_P=np.arange(num_rows, dtype=np.int32),
      start_P=np.arange(num_rows) * 7,
      length_P=np.full(num_rows, 7),
    ),
    tokens_S=tokens_S,
    words_S=words_S,
    seq_len=8,
    bos_id=BOS,
    pad_id=PAD,
  )


def rows_read(batch):
  return (batch.tokens_BT[:, 1] - 16).tolist()


def test_an_epoch_shows_every_row_once_and_batches_straddle_epochs():
  pipeline = Pipeline(rows_of(10), batch_size=4, seed=0)
  read = [row for step in range(5) for row in rows_read(pipeline.batch_at(step))]
  assert sorted(read[:10]) == sorted(read[10:]) == list(range(10))
  assert read[:10] != read[10:], "each epoch has its own order"
  assert read[:10] != list(range(10))


def test_the_order_is_the_seed_and_the_epoch_alone():
  rows = rows_of(50)
  first, again, other = (Pipeline(rows, batch_size=5, seed=seed) for seed in (7, 7, 8))
  late = [again.indices(step).tolist() for step in (40, 3, 17)]
  assert late == [first.indices(step).tolist() for step in (40, 3, 17)]
  assert first.indices(3).tolist() != other.indices(3).tolist()


@pytest.mark.parametrize("process_count", [2, 3, 6])
def test_processes_share_each_step_in_the_same_order(process_count):
  rows = rows_of(10)
  alone = Pipeline(rows, batch_size=6, seed=0)
  shares = [
    Pipeline(rows, batch_size=6, seed=0, process_index=p, process_count=process_count)
    for p in range(process_count)
  ]
  for step in range(4):
    whole = alone.batch_at(step)
    parts = [share.batch_at(step) for share in shares]
    for name in ("tokens_BT", "segments_BT", "row_B"):
      joined = np.concatenate([getattr(part, name) for part in parts])
      np.testing.assert_array_equal(joined, getattr(whole, name))
    assert whole.row_B.tolist() == list(range(6))


def test_the_iterator_starts_at_any_step_and_resumes_exactly():
  pipeline = Pipeline(rows_of(10), batch_size=4, seed=0)
  iterator = pipeline.iterator(3)
  for step in (3, 4, 5):
    np.testing.assert_array_equal(next(iterator).tokens_BT, pipeline.batch_at(step).tokens_BT)
  state = iterator.get_state()
  assert state == {"next_index": 6}
  expected = rows_read(next(iterator))
  resumed = pipeline.iterator(0)
  next(resumed)
  resumed.set_state(state)
  assert rows_read(next(resumed)) == expected == rows_read(pipeline.batch_at(6))
  iterator.close()
  resumed.close()


def test_the_iterator_needs_no_parsed_flags_and_no_tensorflow():
  program = """
import sys, numpy as np
from looped_lm.data import packing
from looped_lm.data.pipeline import Pipeline
from looped_lm.data.rows import Rows
pieces = packing.pack(np.full(9, 20), seq_len=8, packing="lines", seed=0)
tokens_S = np.full(180, 20, np.uint16)
rows = Rows.build(pieces, tokens_S=tokens_S, words_S=tokens_S, seq_len=8, bos_id=1, pad_id=3)
iterator = Pipeline(rows, batch_size=2, seed=0).iterator(0)
assert next(iterator).tokens_BT.shape == (2, 8)
iterator.close()
assert "tensorflow" not in sys.modules
"""
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


WORDS = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)


@given(WORDS, st.data())
def test_exposure_is_what_the_batches_show(words, data):
  pipeline = Pipeline(
    rows_of(len(words), words=words),
    batch_size=data.draw(st.integers(1, len(words))),
    seed=data.draw(st.integers(0, 5)),
  )
  shown = 0
  for step in range(8):
    assert pipeline.words_seen(step) == shown
    assert type(pipeline.words_seen(step)) is int
    batch = pipeline.batch_at(step)
    assert pipeline.tokens_seen(step) == step * pipeline.batch_size * 7
    assert pipeline.epochs_seen(step) == step * pipeline.batch_size / len(words)
    shown += sum(words[row] for row in rows_read(batch))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(sum), st.data())
def test_words_are_reached_at_the_first_step_that_has_shown_them(words, data):
  pipeline = Pipeline(
    rows_of(len(words), words=words),
    batch_size=data.draw(st.integers(1, len(words))),
    seed=data.draw(st.integers(0, 99)),
  )
  wanted = data.draw(st.integers(1, 4 * sum(words)))
  step = pipeline.step_reaching(wanted)
  assert pipeline.words_seen(step - 1) < wanted <= pipeline.words_seen(step)

  after = data.draw(st.integers(0, 9))
  seen = [pipeline.words_seen(step) // wanted for step in range(40)]
  passing = [step for step in range(after + 1, 40) if seen[step] > seen[step - 1]]
  steps = itertools.takewhile(lambda step: step < 40, pipeline.steps_every(wanted, after=after))
  assert list(steps) == passing
  assert not list(pipeline.steps_every(0, after=after))


@given(WORDS, st.data())
def test_steps_for_is_the_most_that_stay_within_the_budget(words, data):
  pipeline = Pipeline(
    rows_of(len(words), words=words),
    batch_size=data.draw(st.integers(1, len(words))),
    seed=data.draw(st.integers(0, 5)),
  )
  budget = data.draw(st.integers(0, 5 * sum(words)))
  for unit, seen in (("words", pipeline.words_seen), ("tokens", pipeline.tokens_seen)):
    if seen(1) > budget:
      with pytest.raises(UserError, match=f"shows {seen(1)} {unit} with"):
        pipeline.steps_for(**{unit: budget})
    else:
      steps = pipeline.steps_for(**{unit: budget})
      assert seen(steps) <= budget < seen(steps + 1)


def test_epochs_are_counted_exactly():
  pipeline = Pipeline(rows_of(10), batch_size=4, seed=0)
  assert pipeline.steps_for(epochs=10) == 25
  assert pipeline.steps_for(epochs=1) == 2
  # The float 1.2 lies below 12/10; the budget that was written does not.
  assert pipeline.steps_for(epochs=1.2) == 3
  with pytest.raises(UserError, match=r"total_epochs=0.3 is less than one step: the first shows"):
    pipeline.steps_for(epochs=0.3)


def test_a_budget_below_one_step_names_what_a_step_shows():
  pipeline = Pipeline(rows_of(10), batch_size=4, seed=0)
  with pytest.raises(UserError, match=r"total_words=27 is less than one step.* 28 words"):
    pipeline.steps_for(words=27)
  assert pipeline.steps_for(words=28) == 1


def test_a_batch_that_cannot_be_shared_or_filled_is_refused():
  with pytest.raises(UserError, match=r"10 rows .* 4 process.* nearest .* is 8"):
    Pipeline(rows_of(20), batch_size=10, seed=0, process_count=4)
  with pytest.raises(UserError, match=r"batch_size=30 rows is more than the 20 rows"):
    Pipeline(rows_of(20), batch_size=30, seed=0)


@pytest.mark.parametrize("process_count", [1, 2, 4])
def test_evaluation_sees_every_row_once_in_order(process_count):
  rows = rows_of(10)
  shares = [
    eval_batches(rows, batch_size=4, num_batches=0, process_index=p, process_count=process_count)
    for p in range(process_count)
  ]
  read = []
  for parts in zip(*shares, strict=True):
    tokens_BT = np.concatenate([part.tokens_BT for part in parts])
    segments_BT = np.concatenate([part.segments_BT for part in parts])
    assert tokens_BT.shape == (4, 8)
    assert np.concatenate([part.row_B for part in parts]).tolist() == [0, 1, 2, 3]
    real = segments_BT.any(1)
    assert (tokens_BT[~real] == PAD).all()
    read += (tokens_BT[real, 1] - 16).tolist()
  assert read == list(range(10))


def test_evaluation_can_be_cut_short_and_needs_rows():
  assert len(list(eval_batches(rows_of(10), batch_size=4, num_batches=2))) == 2
  assert len(list(eval_batches(rows_of(10), batch_size=4, num_batches=9))) == 3
  with pytest.raises(UserError, match="no held-out text"):
    eval_batches(rows_of(0), batch_size=4, num_batches=0)
