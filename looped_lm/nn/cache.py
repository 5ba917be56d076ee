"""Keys and values of what was already read, so that a new token costs one token's work.

Every attention layer of the core runs once per loop, and each run has keys and values of its own. A
policy says in which slot of a layer's cache a loop keeps its own, and so how many slots there are:

| policy | slots | a later token's loop r reads |
|---|---|---|
| full | R | what loop r left: the same numbers as reading everything at once |
| last | 1 | what the last loop left |
| every | k | what the latest loop r' with r' ≡ r (mod k) left (Huginn's budget of k) |
| mean | 1 | the mean over the loops |

Only "full" is exact. The others save memory, and lose little where training drew the depth.
Within the chunk that is being read, keys and values are always those of the running loop.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import struct
import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import numpy as np

from looped_lm.errors import UserError

POLICIES = ("full", "last", "every", "mean")
# The Flax collections: keys and values, and what depends on the parameters alone.
COLLECTION = "cache"
FIXED = "fixed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """Where loops keep their keys and values.

  Attributes:
    name: One of `POLICIES`.
    budget: k of "every"; 0 for the others.
  """

  name: str = "full"
  budget: int = 0

  def __post_init__(self):
    if self.name not in POLICIES:
      raise UserError(f"generate.cache={self.name!r} is none of {list(POLICIES)}.")
    if (self.name == "every") != (self.budget > 0):
      raise UserError(
        f"generate.cache_budget={self.budget} must be at least 1 for cache='every' and 0 for the "
        f"others; cache={self.name!r}."
      )

  def slots(self, num_loops: int) -> int:
    """Slots of a layer of the core."""
    return {"full": num_loops, "every": min(self.budget, num_loops)}.get(self.name, 1)

  def slot(self, loop: Int[Array, ""]) -> Int[Array, ""]:
    """The slot of one loop."""
    if self.name == "full":
      return loop
    return loop % self.budget if self.name == "every" else jnp.zeros_like(loop)


@struct.dataclass
class Chunk:
  """Tokens that are read after others, and where their keys and values go.

  Attributes:
    start: Place of the chunk's first token in the cache.
    position_BT: Each token's position in its own text, from 0; anything for padding.
    writes_BT: Tokens whose keys and values are their own now; the others keep those of
      `previous_slot`. None: all tokens.
    slot: Which slot this run of the layer reads and writes.
    previous_slot: Which slot the tokens that do not write keep.
    runs: How many runs are already averaged in the slot; None or 0 replaces what is there.
    num_slots: Slots of the layer's cache.
    capacity: Places of the cache.
  """

  start: Int[Array, ""]
  position_BT: Int[Array, "B T"]
  writes_BT: Bool[Array, "B T"] | None
  slot: Int[Array, ""]
  previous_slot: Int[Array, ""]
  runs: Int[Array, ""] | None
  num_slots: int = struct.field(pytree_node=False)
  capacity: int = struct.field(pytree_node=False)


class Memory(nn.Module):
  """A layer's keys and values; it has no parameters."""

  @nn.compact
  def __call__(
    self,
    chunk: Chunk | None,
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
  ) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"]]:
    """Takes in a chunk's keys and values.

    Args:
      chunk: Where they go; None without a cache.
      k_BTKH: The chunk's keys.
      v_BTKH: Its values.

    Returns:
      The keys and values of everything read so far; without a cache, those given.
    """
    if chunk is None:
      return k_BTKH, v_BTKH
    return self._extend("keys", chunk, k_BTKH), self._extend("values", chunk, v_BTKH)

  def _extend(
    self, name: str, chunk: Chunk, new_BTKH: Float[Array, "B T K H"]
  ) -> Float[Array, "B S K H"]:
    # Kept by head, as the products take them: turning them there would copy all that was read.
    new_BKTH = new_BTKH.swapaxes(1, 2)
    batch, heads, length, head_dim = new_BKTH.shape
    shape = (chunk.num_slots, batch, heads, chunk.capacity, head_dim)
    dtype = new_BKTH.dtype
    store = self.variable(COLLECTION, name, jnp.zeros, shape, _as_bits(new_BKTH).dtype)

    def place(slot: jax.Array) -> tuple[Any, ...]:
      # All of one type, also where x64 makes literals wider.
      zero = jnp.zeros_like(chunk.start)
      return (slot.astype(zero.dtype), zero, zero, chunk.start, zero)

    if chunk.writes_BT is None and chunk.runs is None:
      # Nothing is read before it is written, which spares XLA a copy of the whole cache.
      new_1BKTH = _as_bits(new_BKTH)[None]
      store.value = jax.lax.dynamic_update_slice(store.value, new_1BKTH, place(chunk.slot))
      all_BKSH = jax.lax.dynamic_index_in_dim(store.value, chunk.slot, keepdims=False)
      return _from_bits(all_BKSH, dtype).swapaxes(1, 2)
    size = (1, batch, heads, length, head_dim)
    old_BKTH = jax.lax.dynamic_slice(store.value, place(chunk.previous_slot), size)[0]
    old_BKTH = _from_bits(old_BKTH, dtype)
    writes = True if chunk.writes_BT is None else chunk.writes_BT[:, None, :, None]
    now_BKTH = kept_BKTH = jnp.where(writes, new_BKTH, old_BKTH)
    if chunk.runs is not None:
      # Of a mean, what is kept is not what this loop reads of the chunk itself.
      mean_BKTH = old_BKTH + (new_BKTH - old_BKTH) / (chunk.runs + 1).astype(new_BKTH.dtype)
      kept_BKTH = jnp.where(writes & (chunk.runs > 0), mean_BKTH, now_BKTH)
    kept_1BKTH = _as_bits(kept_BKTH)[None]
    store.value = jax.lax.dynamic_update_slice(store.value, kept_1BKTH, place(chunk.slot))
    all_BKSH = jax.lax.dynamic_index_in_dim(store.value, chunk.slot, keepdims=False)
    all_BKSH = _from_bits(all_BKSH, dtype)
    all_BKSH = jax.lax.dynamic_update_slice(all_BKSH, now_BKTH, place(chunk.slot)[1:])
    return all_BKSH.swapaxes(1, 2)


def _as_bits(x: jax.Array) -> jax.Array:
  """What is stored: 16-bit floats as whole numbers, because XLA:CPU would widen all of a store."""
  return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype.itemsize == 2 else x


def _from_bits(x: jax.Array, dtype: Any) -> jax.Array:
  return jax.lax.bitcast_convert_type(x, dtype) if x.dtype == jnp.uint16 else x


class Kept(nn.Module):
  """A layer's part of `FIXED`: made with the cache and read with every chunk."""

  @nn.compact
  def __call__(self, chunk: Chunk | None, make: Callable[[], Any]) -> Any:
    """What `make` gives: now, without a cache, or when the cache was made."""
    return make() if chunk is None else self.variable(FIXED, "value", make).value


def settle(cache: Any, chunk_start: Int[Array, ""], length: int, last_slot: Int[Array, ""]) -> Any:
  """Copies a chunk's entries in one slot to all slots behind it.

  Args:
    cache: Of some layers; every leaf is [slots, B, K, S, H].
    chunk_start: Place of the chunk's first token.
    length: T.
    last_slot: The last slot that was written.
  """
  zero = jnp.zeros_like(chunk_start)
  place = (zero, zero, zero, chunk_start, zero)

  def leaf(store: jax.Array) -> jax.Array:
    slots, batch, heads, _, head_dim = store.shape
    size = (slots, batch, heads, length, head_dim)
    part = jax.lax.dynamic_slice(store, place, size)
    behind = (jnp.arange(slots) > last_slot).reshape(-1, 1, 1, 1, 1)
    part = jnp.where(behind, jax.lax.dynamic_index_in_dim(part, last_slot), part)
    return jax.lax.dynamic_update_slice(store, part, place)

  return jax.tree.map(leaf, cache)


def num_bytes(past: Any) -> int:
  """What the keys and values of a cache, or its shapes, take."""
  stored = jax.tree.leaves(past[COLLECTION])
  return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in stored)
