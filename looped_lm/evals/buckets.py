"""Texts of many lengths in few shapes: which rows share a batch, and how long it is."""

from collections.abc import Iterator

from jaxtyping import Int
import numpy as np

_SHORTEST = 8
# Positions that must be saved: about what a processor computes while it compiles.
_WORTH_A_PROGRAM = 2**16


def ladder(longest: int, *, seq_len: int, most: int | None = None) -> list[int]:
  """Lengths that batches may have, up to the first that holds `longest` tokens.

  Eight per octave: 8, 9, 10, …, 16, 18, 20, … The length that the model was trained at is among
  them, and none is above `most`, the longest that the model can read.
  """
  octaves = [_SHORTEST * 2**i for i in range(max(1, longest).bit_length())]
  wanted = (seq_len, *(octave * part // 8 for octave in octaves for part in range(8, 16)))
  lengths = sorted({each if most is None else min(each, most) for each in wanted})
  return lengths[: next(i for i, each in enumerate(lengths) if each >= longest) + 1]


def batches(
  length_N: Int[np.ndarray, " N"],
  *,
  batch_tokens: int,
  seq_len: int,
  multiple: int,
  most: int | None = None,
  together: int = 1,
) -> Iterator[tuple[int, int, Int[np.ndarray, " M"]]]:
  """Sorts N rows into batches.

  Rows go to the next longer length in use unless keeping them apart saves enough to be worth a
  program of its own.

  Args:
    length_N: Tokens of each row.
    batch_tokens: Positions of a batch, about.
    seq_len: Length the model was trained at.
    multiple: Rows of a batch are a multiple of it.
    most: The longest that the model can read; no row is longer.
    together: Batches that are yielded at once.

  Yields:
    (positions, rows of one batch, indices of the rows in them: at most `together` times as many).
  """
  if not len(length_N):
    return
  lengths = np.array(ladder(int(length_N.max()), seq_len=seq_len, most=most))
  rung_N = np.searchsorted(lengths, length_N)
  used = np.unique(rung_N).tolist()
  waiting = np.zeros(0, np.int64)
  for rung, longer in zip(used, [*used[1:], None], strict=True):
    length = int(lengths[rung])
    waiting = np.concatenate([waiting, np.flatnonzero(rung_N == rung)])
    if longer is not None and len(waiting) * (lengths[longer] - length) < _WORTH_A_PROGRAM:
      continue
    rows = max(1, batch_tokens // length // multiple) * multiple
    for first in range(0, len(waiting), rows * together):
      yield length, rows, waiting[first : first + rows * together]
    waiting = waiting[:0]
