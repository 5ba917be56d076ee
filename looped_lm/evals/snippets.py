"""A few pieces of held-out text, cut short, for figures that show single tokens."""

import dataclasses
from typing import Self

import jax.numpy as jnp
from jaxtyping import Array, Int
import numpy as np

from looped_lm import visibility
from looped_lm.types import Inputs, Subject

# Rows searched for pieces.
_SEARCHED = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snippets:
  """Pieces of text, one per row.

  Attributes:
    tokens_BT: `<s>` and what follows; behind a short piece, padding.
    targets_BT: The token after each; padding where there is none.
    length_B: Positions that are no padding.
  """

  tokens_BT: Int[np.ndarray, "B T"]
  targets_BT: Int[np.ndarray, "B T"]
  length_B: Int[np.ndarray, " B"]

  @classmethod
  def choose(cls, subject: Subject, *, count: int, length_tokens: int) -> Self:
    """Chooses pieces that are long enough, evenly spaced over the first rows.

    Args:
      subject: Has the held-out rows; the same ones always give the same snippets.
      count: Pieces, or as many as there are.
      length_tokens: Positions, `<s>` included. Where too few pieces are as long, the longest serve.
    """
    rows = subject.held_out
    tokens_NT, segments_NT = rows.gather(np.arange(min(rows.num_rows, _SEARCHED)))
    pieces = [
      tokens_T[segments_T == segment]
      for tokens_T, segments_T in zip(tokens_NT, segments_NT, strict=True)
      for segment in range(1, segments_T.max() + 1)
    ]
    long = [piece for piece in pieces if len(piece) > length_tokens]
    if len(long) >= count:
      chosen = [long[place * len(long) // count] for place in range(count)]
    else:
      chosen = sorted(pieces, key=len, reverse=True)[:count]
    both_BT = np.full((len(chosen), length_tokens + 1), subject.vocabulary.pad_id, np.int32)
    for row_T, piece in zip(both_BT, chosen, strict=True):
      row_T[: len(piece)] = piece[: length_tokens + 1]
    length_B = np.array([min(len(piece), length_tokens) for piece in chosen], np.int32)
    return cls(tokens_BT=both_BT[:, :-1], targets_BT=both_BT[:, 1:], length_B=length_B)


def causal(tokens_BT: Int[Array, "B T"], length_B: Int[Array, " B"]) -> Inputs:
  """Snippets as a model reads them from left to right."""
  real_BT = jnp.arange(tokens_BT.shape[1]) < length_B[:, None]
  return Inputs(
    tokens_BT=tokens_BT,
    order_BT=visibility.causal(tokens_BT),
    segments_BT=real_BT.astype(jnp.int32),
    row_B=jnp.arange(tokens_BT.shape[0], dtype=jnp.int32),
  )
