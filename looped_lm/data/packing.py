"""Documents to rows of `seq_len` positions, with every token in exactly one place.

A piece is a run of a document's tokens inside one row. It takes one position more than it has
tokens, because it starts with `<s>`, which is not a corpus token and is never counted:

    lines       <s> a b c <s> d e .     a document's pieces stay whole; a row is closed by the first
                <s> f g h i j k .       piece that does not fit
    documents   <s> a b c <s> d e f     rows are filled; a document cut by a row's end goes on
                <s> g h <s> i j k l     behind a new `<s>`

Both keep one-token pieces and repeat nothing, so an epoch shows every corpus token once. The
reference draws fillers beside its sampler and shows each token about 2.1 times per epoch.
"""

from array import array
import dataclasses

from jaxtyping import Int
import numpy as np

from looped_lm.errors import UserError

PACKINGS = ("lines", "documents")
MIN_SEQ_LEN = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pieces:
  """Where each piece lies; ordered by row, then from left to right.

  Attributes:
    row_P: The row of each piece; rows count from 0 and none is empty.
    start_P: Its first token, as an index into the corpus's token array.
    length_P: Its tokens, `<s>` not counted; at least 1.
  """

  row_P: Int[np.ndarray, " P"]
  start_P: Int[np.ndarray, " P"]
  length_P: Int[np.ndarray, " P"]

  @property
  def num_rows(self) -> int:
    """Rows that hold at least one piece."""
    return int(self.row_P[-1]) + 1 if len(self.row_P) else 0


def check(*, seq_len: int, packing: str) -> None:
  """Refuses settings that cannot work.

  Raises:
    UserError: `seq_len` is below 8, or `packing` is unknown.
  """
  if packing not in PACKINGS:
    raise UserError(f"data.packing={packing!r} is none of {list(PACKINGS)}.")
  if seq_len < MIN_SEQ_LEN:
    raise UserError(f"data.seq_len={seq_len} must be at least {MIN_SEQ_LEN} positions.")


def pack(lengths_D: Int[np.ndarray, " D"], *, seq_len: int, packing: str, seed: int) -> Pieces:
  """Lays documents out in rows.

  Args:
    lengths_D: Tokens of each document; the token array holds them one after the other. A document
      of no tokens takes no place.
    seq_len: Positions of a row, `<s>` included; at least 8.
    packing: "lines" cuts each document into pieces of at most `seq_len - 2` tokens, shuffles the
      pieces and places them whole by next-fit. "documents" shuffles the documents and fills the
      rows; only where a single position is left, which `<s>` alone would take, is it padding.
    seed: Of the shuffle.

  Returns:
    The pieces; each token of the corpus is in one of them.

  Raises:
    UserError: As `check` says.

  Source: "lines" is the input of Looped GPT-BERT (arXiv 2609.09691) as its authors' code builds it.
    Differs from the paper: rows are packed once, not again each epoch (their order is shuffled
    each epoch), one-token pieces stay, and a row holds `seq_len` positions where theirs holds one
    more, used as a target only.
  """
  check(seq_len=seq_len, packing=packing)
  lengths_D = np.asarray(lengths_D, np.int64)
  start_D = np.cumsum(lengths_D) - lengths_D
  some_D = np.flatnonzero(lengths_D)
  rng = np.random.Generator(np.random.Philox(key=np.array([seed, 0], np.uint64)))
  if packing == "lines":
    start_P, length_P = _cut(start_D[some_D], lengths_D[some_D], most=seq_len - 2)
    order_P = rng.permutation(len(start_P))
    start_P, length_P = start_P[order_P], length_P[order_P]
    return Pieces(row_P=_next_fit(length_P + 1, seq_len), start_P=start_P, length_P=length_P)
  some_D = rng.permutation(some_D)
  return _fill(start_D[some_D], lengths_D[some_D], seq_len)


def _cut(start_D, length_D, *, most: int):
  """Cuts every document into consecutive pieces of at most `most` tokens."""
  count_D = -(-length_D // most)
  document_P = np.repeat(np.arange(len(length_D)), count_D)
  before_P = (np.arange(len(document_P)) - (np.cumsum(count_D) - count_D)[document_P]) * most
  return start_D[document_P] + before_P, np.minimum(length_D[document_P] - before_P, most)


def _next_fit(cost_P, seq_len: int):
  """Places pieces in order; the first that does not fit closes the row."""
  end_P = np.cumsum(cost_P)
  # If a row began at piece p, the next would begin at next_P[p]: one search for all, then a walk.
  next_P = memoryview(np.searchsorted(end_P, end_P - cost_P + seq_len, side="right"))
  opens_P = np.zeros(len(cost_P), bool)
  first = 0
  while first < len(cost_P):
    opens_P[first] = True
    first = next_P[first]
  return (np.cumsum(opens_P) - 1).astype(np.int32)


def _fill(start_D, length_D, seq_len: int) -> Pieces:
  """Fills rows to the end, cutting documents where a row ends."""
  document_P, length_P, row_P = array("q"), array("q"), array("q")
  row, free = 0, seq_len
  for document, left in enumerate(memoryview(length_D)):
    while left:
      if free < 2:  # `<s>` and a token do not fit.
        row, free = row + 1, seq_len
      taken = min(left, free - 1)
      document_P.append(document)
      length_P.append(taken)
      row_P.append(row)
      left -= taken
      free -= taken + 1
  document_P, length_P = np.array(document_P), np.array(length_P)
  # A piece starts where the previous piece of its document ended.
  before_P = np.cumsum(length_P) - length_P
  base_D = np.cumsum(length_D) - length_D
  start_P = (start_D - base_D)[document_P] + before_P
  return Pieces(row_P=np.array(row_P, np.int32), start_P=start_P, length_P=length_P)
