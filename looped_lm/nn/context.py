"""What every layer of one forward pass shares."""

import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from looped_lm.nn import dropout
from looped_lm.nn.cache import Chunk


@struct.dataclass
class Context:
  """Computed once per step, outside the loop.

  Attributes:
    see_BTS: True where the query may see the key.
    tokens_BT: The tokens read.
    shared: What the block's `Shared` module made, or None.
    key: The step's key for draws that all rows share; None without randomness.
    keys_B: One key per row; None without randomness.
    loop_B: Inside the recurrence, how many loops each row has behind it; None outside.
    chunk: Where keys and values are kept for later tokens; None where all is read at once.
    longest_distance: Relative distances beyond it read as it; None lets all be what they are.
    read_BK: Positions that the next layer puts out; None puts all out.
  """

  see_BTS: Bool[Array, "B T S"]
  tokens_BT: Int[Array, "B T"]
  shared: Any
  key: Key[Array, ""] | None
  keys_B: Key[Array, " B"] | None
  loop_B: Int[Array, " B"] | None = None
  chunk: Chunk | None = None
  longest_distance: int | None = struct.field(pytree_node=False, default=None)
  read_BK: Int[Array, "B K"] | None = None

  def in_loop(self, loop: Int[Array, ""] | Int[Array, " B"]) -> "Context":
    """The context of one loop: the same, with fresh row keys.

    Args:
      loop: How many loops are behind, for all rows or for each.
    """
    loop_B = jnp.broadcast_to(loop, self.tokens_BT.shape[:1])
    keys_B = None if self.keys_B is None else dropout.loop_keys(self.keys_B, loop_B + 1)
    return dataclasses.replace(self, keys_B=keys_B, loop_B=loop_B)

  def reading(self, read_BK: Int[Array, "B K"] | None) -> "Context":
    """The same, for a layer that puts out these positions."""
    return dataclasses.replace(self, read_BK=read_BK)

  def picked(self, tree: Any) -> Any:
    """Arrays [B, T, …] at the positions that are put out: [B, K, …]."""
    if self.read_BK is None:
      return tree
    rows_B = jnp.arange(self.read_BK.shape[0])
    return jax.tree.map(lambda x: x[rows_B[:, None], self.read_BK], tree)
