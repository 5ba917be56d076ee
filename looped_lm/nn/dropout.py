"""Dropout with explicit keys: one key per row, so that no draw depends on the device layout.

A place where randomness enters has a number, its site: the same (seed, step, row, loop, site) gives
the same draw on any number of devices and after a resume.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

EMBED, HEAD = 0, 1
_FIRST_LAYER, _SITES_PER_LAYER = 2, 4


def layer_site(layer_index: int, place: int) -> int:
  """The site of the `place`-th draw (0 .. 3) of a physical layer."""
  assert 0 <= place < _SITES_PER_LAYER
  return _FIRST_LAYER + _SITES_PER_LAYER * layer_index + place


def row_keys(key: Key[Array, ""], row_B: Int[Array, " B"]) -> Key[Array, " B"]:
  """One key per row, from the step's key and the row's global index."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, row_B)


def loop_keys(keys_B: Key[Array, " B"], loop_B: Int[Array, " B"]) -> Key[Array, " B"]:
  """The rows' keys in one loop of the recurrence (1, 2, …; 0 is outside it)."""
  return jax.vmap(jax.random.fold_in)(keys_B, loop_B)


def dropout(
  x: Float[Array, "B ..."], rate: float, keys_B: Key[Array, " B"] | None, *, site: int
) -> Float[Array, "B ..."]:
  """Zeroes a fraction `rate` of the entries, row by row, and scales the rest up.

  Args:
    x: Any array with rows first.
    rate: In [0, 1); 0 does nothing.
    keys_B: One key per row; None switches dropout off.
    site: Which place of the model this is.
  """
  if keys_B is None or rate == 0.0:
    return x
  keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, site)
  keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - rate, x.shape[1:]))(keys_B)
  return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def step_dropout(
  x: Float[Array, "..."], rate: float, key: Key[Array, ""] | None, *, site: int
) -> Float[Array, "..."]:
  """Dropout of a tensor that all rows share: one draw per step."""
  if key is None or rate == 0.0:
    return x
  keep = jax.random.bernoulli(jax.random.fold_in(key, site), 1.0 - rate, x.shape)
  return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))
