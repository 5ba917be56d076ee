"""Rows to batches: the order of the rows, and what a step has shown, from the step alone.

Sample g of a run is row `order(g // N)[g % N]`, where N is the number of rows and `order(e)` is
epoch e's own shuffle; step s reads samples s·B to (s+1)·B. So no row is dropped at an epoch's end,
a batch may straddle two epochs, and the position in the data is one number: the step.
"""

from collections.abc import Iterator
import dataclasses
from fractions import Fraction
import functools
import math
from typing import Any

import grain
from jaxtyping import Int
import numpy as np

from looped_lm.data.rows import Rows
from looped_lm.errors import UserError
from looped_lm.types import Batch

# Grain wants a length. No run gets here, and it fits any machine's ssize_t.
_ENDLESS = 2**62
# Batches prepared ahead by Grain's thread, which is enough to hide one gather behind one step.
_PREFETCH = 4


class Pipeline:
  """An endless, shuffled, exactly resumable sequence of batches.

  Args:
    rows: The rows to feed.
    batch_size: Rows of a step over all processes.
    seed: With the epoch, decides the order.
    process_index: This process; it gets the rows [p·B/P, (p+1)·B/P) of each step.
    process_count: Processes that share a step; the order of the data does not depend on it.

  Raises:
    UserError: The processes cannot share a batch equally, or the rows do not fill one batch.
  """

  def __init__(
    self,
    rows: Rows,
    *,
    batch_size: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
  ):
    self._share = _share(batch_size, process_index, process_count)
    if rows.num_rows < batch_size:
      raise UserError(
        f"train.batch_size={batch_size} rows is more than the {rows.num_rows} rows of the corpus; "
        "lower it, lower data.seq_len, or give more text."
      )
    self.rows = rows
    self.batch_size = batch_size
    self._seed = seed
    self._words = _Exposure("words", rows.words_N)
    self._tokens = _Exposure("tokens", rows.tokens_N)
    # A batch straddles two epochs, and Grain's thread may be an epoch ahead of the loop.
    self._order = functools.lru_cache(maxsize=3)(self._shuffled)

  def _shuffled(self, epoch: int) -> Int[np.ndarray, " N"]:
    key = np.array([self._seed, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(self.rows.num_rows)

  def indices(self, step: int) -> Int[np.ndarray, " B"]:
    """The rows of a step, over all processes."""
    sample_B = step * self.batch_size + np.arange(self.batch_size)
    epoch_B, place_B = np.divmod(sample_B, self.rows.num_rows)
    first, last = int(epoch_B[0]), int(epoch_B[-1])
    parts = [self._order(epoch)[place_B[epoch_B == epoch]] for epoch in range(first, last + 1)]
    return np.concatenate(parts)

  def batch_at(self, step: int) -> Batch:
    """This process's rows of a step; the same for every call, in any order."""
    tokens_BT, segments_BT = self.rows.gather(self.indices(step)[self._share])
    row_B = np.arange(self._share.start, self._share.stop, dtype=np.int32)
    return Batch(tokens_BT=tokens_BT, segments_BT=segments_BT, row_B=row_B)  # pyright: ignore

  def iterator(self, start_step: int) -> grain.DatasetIterator:
    """A Grain iterator over the batches from a step on, read ahead by a thread.

    Its state is `{"next_index": step}`, so it is known without asking.
    """
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_PREFETCH)
    iterator = iter(grain.MapDataset.source(_Steps(self)).to_iter_dataset(options))
    iterator.set_state({"next_index": start_step})
    return iterator

  def words_seen(self, step: int) -> int:
    """Words that the first `step` steps show: repeated epochs count again."""
    return self._words.seen(step * self.batch_size, self._order)

  def tokens_seen(self, step: int) -> int:
    """Corpus tokens that the first `step` steps show; `<s>` and padding are none."""
    return self._tokens.seen(step * self.batch_size, self._order)

  def epochs_seen(self, step: int) -> float:
    """Passes over the rows that the first `step` steps make."""
    return step * self.batch_size / self.rows.num_rows

  def step_reaching(self, words: int) -> int:
    """The first step after which at least so many words were shown.

    Raises:
      UserError: The corpus has no words.
    """
    samples = self._words.samples_within(words - 1, self._order) + 1
    return math.ceil(samples / self.batch_size)

  def steps_every(self, words: int, *, after: int) -> Iterator[int]:
    """The later steps that pass a multiple of so many words, each once; none for 0.

    Raises:
      UserError: The corpus has no words.
    """
    step = after
    while words:
      step = self.step_reaching((self.words_seen(step) // words + 1) * words)
      yield step

  def steps_for(
    self, *, words: int | None = None, tokens: int | None = None, epochs: float | None = None
  ) -> int:
    """The most steps that stay within a budget; exactly one budget is given.

    Raises:
      UserError: Not even one step does.
    """
    assert sum(budget is not None for budget in (words, tokens, epochs)) == 1
    if words is not None:
      samples = self._words.samples_within(words, self._order)
      given = f"train.total_words={words}"
      one = f"{self.words_seen(1)} words"
    elif tokens is not None:
      samples = self._tokens.samples_within(tokens, self._order)
      given = f"train.total_tokens={tokens}"
      one = f"{self.tokens_seen(1)} tokens"
    else:
      # Fraction(str) reads 0.1 as a tenth, which the binary float is not.
      samples = math.floor(Fraction(str(epochs)) * self.rows.num_rows)
      given = f"train.total_epochs={epochs}"
      one = f"{self.epochs_seen(1):.4g} epochs ({self.words_seen(1)} words)"
    steps = samples // self.batch_size
    if steps < 1:
      raise UserError(
        f"{given} is less than one step: the first shows {one} with "
        f"train.batch_size={self.batch_size}. Raise the budget or lower the batch size."
      )
    return steps


def eval_batches(
  rows: Rows,
  *,
  batch_size: int,
  num_batches: int,
  process_index: int = 0,
  process_count: int = 1,
) -> Iterator[Batch]:
  """Gives the rows of a held-out split in their own order, each once.

  Args:
    rows: The held-out rows.
    batch_size: Rows of a batch over all processes.
    num_batches: Most batches to give; 0 gives the whole split.
    process_index: This process; it gets its share of each batch as in `Pipeline`.
    process_count: Processes that share a batch.

  Yields:
    Batches of one size: the last is filled up with rows of padding, so no row is dropped.

  Raises:
    UserError: The processes cannot share a batch equally, or there is no held-out row.
  """
  share = _share(batch_size, process_index, process_count)
  if not rows.num_rows:
    raise UserError(
      "There is no held-out text to evaluate on; set data.validation_fraction or "
      "data.validation_paths."
    )
  total = math.ceil(rows.num_rows / batch_size)
  wanted = min(total, num_batches) if num_batches else total

  def batches() -> Iterator[Batch]:
    for number in range(wanted):
      first = number * batch_size + share.start
      real = max(0, min(share.stop - share.start, rows.num_rows - first))
      tokens_BT = np.full((share.stop - share.start, rows.seq_len), rows.pad_id, np.int32)
      segments_BT = np.zeros_like(tokens_BT)
      tokens_BT[:real], segments_BT[:real] = rows.gather(np.arange(first, first + real))
      row_B = np.arange(share.start, share.stop, dtype=np.int32)
      yield Batch(tokens_BT=tokens_BT, segments_BT=segments_BT, row_B=row_B)  # pyright: ignore

  return batches()  # A generator of its own, so that the checks above run at the call.


def _share(batch_size: int, process_index: int, process_count: int) -> slice:
  """Which of a step's rows are this process's."""
  if batch_size < 1 or batch_size % process_count:
    nearest = max(1, round(batch_size / process_count)) * process_count
    raise UserError(
      f"A batch of {batch_size} rows cannot be shared equally by {process_count} process(es); "
      f"the nearest batch size that can is {nearest}."
    )
  each = batch_size // process_count
  return slice(process_index * each, (process_index + 1) * each)


@dataclasses.dataclass(frozen=True)
class _Exposure:
  """How much of one unit a number of samples shows, and the reverse; exact integers."""

  unit: str
  amount_N: Int[np.ndarray, " N"]

  @functools.cached_property
  def epoch(self) -> int:
    return int(self.amount_N.sum(dtype=np.int64))

  def seen(self, samples: int, order: Any) -> int:
    epochs, rest = divmod(samples, len(self.amount_N))
    seen = epochs * self.epoch
    if rest:
      seen += int(self.amount_N[order(epochs)[:rest]].sum(dtype=np.int64))
    return seen

  def samples_within(self, budget: int, order: Any) -> int:
    if not self.epoch:
      raise UserError(f"The corpus has no {self.unit}, so a budget in {self.unit} has no end.")
    epochs, rest = divmod(budget, self.epoch)
    seen_N = np.cumsum(self.amount_N[order(epochs)], dtype=np.int64)
    return epochs * len(seen_N) + int(np.searchsorted(seen_N, rest, side="right"))


class _Steps(grain.sources.RandomAccessDataSource):
  """The batches of a pipeline by step: one item is one vectorised gather."""

  def __init__(self, pipeline: Pipeline):
    self._pipeline = pipeline

  def __len__(self) -> int:
    return _ENDLESS

  def __getitem__(self, step: int) -> Batch:
    return self._pipeline.batch_at(int(step))
