"""Packed rows: a token array on disk and a table of pieces, read a batch at a time."""

import dataclasses
import os
import pathlib
from typing import Self

from jaxtyping import Int
import numpy as np
import numpy.typing as npt

from looped_lm.data import packing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
  """Rows of `seq_len` positions over a token array that stays on disk.

  Attributes:
    tokens_S: All tokens of the corpus, documents one after the other, no special among them.
    start_P: First token of each piece; pieces are ordered by row, then from left to right.
    length_P: Tokens of each piece, its `<s>` not counted.
    first_N: First piece of each row, and behind the last row the number of pieces.
    words_N: Words whose first token lies in the row.
    seq_len: Positions of a row.
    bos_id: Id of `<s>`.
    pad_id: Id of `<pad>`.
  """

  tokens_S: Int[np.ndarray, " S"]
  start_P: Int[np.ndarray, " P"]
  length_P: Int[np.ndarray, " P"]
  first_N: Int[np.ndarray, " M"]
  words_N: Int[np.ndarray, " N"]
  seq_len: int
  bos_id: int
  pad_id: int

  @classmethod
  def build(
    cls,
    pieces: packing.Pieces,
    *,
    tokens_S: Int[np.ndarray, " S"],
    words_S: Int[np.ndarray, " S"],
    seq_len: int,
    bos_id: int,
    pad_id: int,
  ) -> Self:
    """Joins packed pieces with their tokens.

    Args:
      pieces: As `packing.pack` gives them for these tokens.
      tokens_S: The token array.
      words_S: Words that begin in each token; counted in the row that holds the token.
      seq_len: Positions of a row.
      bos_id: Id of `<s>`.
      pad_id: Id of `<pad>`.
    """
    first_N = np.searchsorted(pieces.row_P, np.arange(pieces.num_rows + 1))
    words_N = np.zeros(pieces.num_rows, np.int64)
    if pieces.num_rows:
      # Sorted by start, the pieces tile the array: one sum over each, without a copy of the array.
      order_P = np.argsort(pieces.start_P)
      words_P = np.empty(len(order_P), np.int64)
      words_P[order_P] = np.add.reduceat(words_S, pieces.start_P[order_P], dtype=np.int64)
      words_N = np.add.reduceat(words_P, first_N[:-1])
    return cls(
      tokens_S=tokens_S,
      start_P=pieces.start_P.astype(np.int64),
      length_P=pieces.length_P.astype(np.int32),
      first_N=first_N.astype(np.int64),
      words_N=words_N.astype(np.int32),
      seq_len=seq_len,
      bos_id=bos_id,
      pad_id=pad_id,
    )

  @property
  def num_rows(self) -> int:
    """Rows, each seen once per epoch."""
    return len(self.words_N)

  @property
  def tokens_N(self) -> Int[np.ndarray, " N"]:
    """Corpus tokens of each row; `<s>` and padding not counted."""
    if not self.num_rows:
      return np.zeros(0, np.int64)
    return np.add.reduceat(self.length_P, self.first_N[:-1], dtype=np.int64)

  def gather(
    self, indices_B: Int[np.ndarray, " B"]
  ) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, "B T"]]:
    """Reads rows.

    Args:
      indices_B: Rows to read, each in [0, num_rows).

    Returns:
      tokens_BT: int32; every piece starts with `<s>`, and padding is `<pad>`.
      segments_BT: int32; 1, 2, … for the pieces of a row, 0 for padding.
    """
    indices_B = np.asarray(indices_B, np.int64)
    count_B = self.first_N[indices_B + 1] - self.first_N[indices_B]
    piece_P = _runs(self.first_N[indices_B], count_B)
    length_P = self.length_P[piece_P].astype(np.int64)
    segment_P = _runs(np.ones_like(count_B), count_B)
    row_P = np.repeat(np.arange(len(indices_B)), count_B)
    # Where each piece's `<s>` goes in the flattened rows: behind the pieces before it in its row.
    before_P = np.cumsum(length_P + 1) - (length_P + 1)
    place_P = row_P * self.seq_len + before_P - before_P[_opening(count_B)][row_P]
    tokens_X = np.full(len(indices_B) * self.seq_len, self.pad_id, np.int32)
    segments_X = np.zeros(len(indices_B) * self.seq_len, np.int32)
    tokens_X[_runs(place_P + 1, length_P)] = self.tokens_S[_runs(self.start_P[piece_P], length_P)]
    tokens_X[place_P] = self.bos_id
    segments_X[_runs(place_P, length_P + 1)] = np.repeat(segment_P, length_P + 1)
    shape = (len(indices_B), self.seq_len)
    return tokens_X.reshape(shape), segments_X.reshape(shape)

  def save(self, folder: pathlib.Path) -> None:
    """Writes the tables beside the tokens; `tokens.npy` is already there."""
    for name in ("start_P", "length_P", "first_N", "words_N"):
      np.save(folder / f"{name}.npy", getattr(self, name))

  @classmethod
  def load(cls, folder: pathlib.Path, *, seq_len: int, bos_id: int, pad_id: int) -> Self:
    """Opens saved rows; the arrays stay on disk until a batch reads them."""
    arrays = {
      name: np.load(folder / f"{name}.npy", mmap_mode="r")
      for name in ("start_P", "length_P", "first_N", "words_N")
    }
    tokens_S = np.load(folder / "tokens.npy", mmap_mode="r")
    return cls(tokens_S=tokens_S, seq_len=seq_len, bos_id=bos_id, pad_id=pad_id, **arrays)


def _runs(start_P, length_P):
  """Joins the ranges [start, start + length): [3, 7], [2, 3] -> [3, 4, 7, 8, 9]."""
  before_P = np.cumsum(length_P) - length_P
  return np.arange(length_P.sum()) + np.repeat(start_P - before_P, length_P)


def _opening(count_B):
  """The index, among the pieces read, of each row's first."""
  return np.cumsum(count_B) - count_B


class ArrayWriter:
  """Appends to a .npy file of one dimension whose length is not known yet.

  The header is written twice: numpy leaves room in it for the length to grow.
  """

  def __init__(self, path: pathlib.Path, dtype: npt.DTypeLike):
    self._file = open(path, "wb")  # noqa: SIM115 closed by __exit__
    self._dtype = np.dtype(dtype)
    self._length = 0
    self._write_header()
    self._header_bytes = self._file.tell()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception) -> None:
    try:
      self._file.seek(0, os.SEEK_SET)
      self._write_header()
      assert self._file.tell() == self._header_bytes
    finally:
      self._file.close()

  def _write_header(self) -> None:
    header = {
      "descr": np.lib.format.dtype_to_descr(self._dtype),
      "fortran_order": False,
      "shape": (self._length,),
    }
    np.lib.format.write_array_header_1_0(self._file, header)

  def append(self, array_S: Int[np.ndarray, " S"]) -> None:
    """Adds values at the end."""
    self._file.write(np.ascontiguousarray(array_S, self._dtype).tobytes())
    self._length += len(array_S)
