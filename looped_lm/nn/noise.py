"""Gaussian noise with explicit keys: one key per row, as for dropout."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

# Places of a loop where noise is drawn; apart from the sites of dropout.
STATE, ENTER, GATE = 2**30, 2**30 + 1, 2**30 + 2


def normal(
  keys_B: Key[Array, " B"], shape: tuple[int, ...], *, site: int, dtype: jnp.dtype
) -> Float[Array, "B ..."]:
  """A standard normal draw of the given shape per row."""
  return _draw(lambda key: jax.random.normal(key, shape, dtype), keys_B, site)


def cut_normal(
  keys_B: Key[Array, " B"], shape: tuple[int, ...], *, site: int, dtype: jnp.dtype
) -> Float[Array, "B ..."]:
  """A normal draw per row, cut at three standard deviations."""
  return _draw(lambda key: jax.random.truncated_normal(key, -3, 3, shape, dtype), keys_B, site)


def _draw(draw, keys_B: Key[Array, " B"], site: int) -> Float[Array, "B ..."]:
  keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, site)
  return jax.vmap(draw)(keys_B)
