"""Words, as budgets count them: the whitespace-separated runs of a text (`str.split`)."""

from collections.abc import Sequence

from jaxtyping import Bool, Int, UInt32
import numpy as np

# Code points of whitespace, as str.split sees it; a test compares them with str.isspace.
WHITESPACE = (
  *range(0x09, 0x0E),
  *range(0x1C, 0x21),
  *(0x85, 0xA0, 0x1680),
  *range(0x2000, 0x200B),
  *(0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
)
_IS_SPACE = np.zeros(max(WHITESPACE) + 2, bool)  # One more, which stands for all beyond.
_IS_SPACE[list(WHITESPACE)] = True


def code_points(texts: Sequence[str]) -> UInt32[np.ndarray, " C"]:
  """Lays texts end to end and gives the code point of each character."""
  return np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)


def starts(
  code_C: UInt32[np.ndarray, " C"], *, length_N: Int[np.ndarray, " N"]
) -> Bool[np.ndarray, " C"]:
  """True at the first character of every word of N texts laid end to end."""
  space_C = _IS_SPACE[np.minimum(code_C, len(_IS_SPACE) - 1)]
  before_C = np.ones(len(code_C) + 1, bool)  # One more: an empty last text would start there.
  before_C[1:] = space_C
  before_C[np.cumsum(length_N) - length_N] = True
  return ~space_C & before_C[:-1]


def utf8_lengths(code_C: UInt32[np.ndarray, " C"]) -> Int[np.ndarray, " C"]:
  """Bytes that each character takes in UTF-8."""
  return 1 + (code_C > 0x7F).astype(np.int64) + (code_C > 0x7FF) + (code_C > 0xFFFF)
