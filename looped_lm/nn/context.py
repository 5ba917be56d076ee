"""What every layer of one forward pass shares."""

import dataclasses
from typing import Any

from flax import struct
from jaxtyping import Array, Bool, Int, Key

from looped_lm.nn import dropout


@struct.dataclass
class Context:
  """Computed once per step, outside the loop.

  Attributes:
    see_BTS: True where the query may see the key.
    tokens_BT: The tokens read.
    shared: What the block's `Shared` module made, or None.
    key: The step's key for draws that all rows share; None without randomness.
    keys_B: One key per row; None without randomness.
    loop: Inside the loop, how many loops lie behind: a number, or one per row where rows begin at
      different times. None outside it.
  """

  see_BTS: Bool[Array, "B T S"]
  tokens_BT: Int[Array, "B T"]
  shared: Any
  key: Key[Array, ""] | None
  keys_B: Key[Array, " B"] | None
  loop: Int[Array, ""] | Int[Array, " B"] | None = None

  def in_loop(self, loop: Int[Array, ""] | Int[Array, " B"]) -> "Context":
    """The context of one loop (0-based): the same, with its number and fresh row keys."""
    keys_B = None if self.keys_B is None else dropout.loop_keys(self.keys_B, loop + 1)
    return dataclasses.replace(self, keys_B=keys_B, loop=loop)
