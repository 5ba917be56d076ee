"""Initial weights by name, each with the standard deviation its entries shall have."""

from collections.abc import Callable, Mapping
import math
from typing import Any

from flax.linen import initializers
import jax
import jax.numpy as jnp

from looped_lm.errors import UserError

Initializer = initializers.Initializer


def _normal(std: float) -> Initializer:
  return initializers.normal(std)


def _truncated_normal(std: float) -> Initializer:
  def init(key, shape, dtype=jnp.float32):
    return std * jax.random.truncated_normal(key, -3.0, 3.0, shape, dtype)

  return init


def _orthogonal(std: float) -> Initializer:
  """Orthonormal rows or columns, whichever are fewer, scaled to entries of the given size."""

  def init(key, shape, dtype=jnp.float32):
    scale = std * math.sqrt(max(shape))
    return initializers.orthogonal(scale)(key, shape, dtype)

  return init


INITIALIZERS: dict[str, Callable[[float], Initializer]] = {
  "normal": _normal,
  "orthogonal": _orthogonal,
  "truncated_normal": _truncated_normal,  # Cut at three standard deviations.
}


def weights(name: str, std: float) -> Initializer:
  """The initialiser `name` for entries of standard deviation `std`; 0 gives zeros."""
  return INITIALIZERS[name](std) if std > 0 else initializers.zeros


def check(settings: Mapping[str, Any], prefix: str, *, where: str) -> None:
  """Checks the settings `<prefix>_init` and `<prefix>_std` of a part.

  Raises:
    UserError: No such initialiser, or a negative size.
  """
  name, std = settings[f"{prefix}_init"], settings[f"{prefix}_std"]
  if name not in INITIALIZERS:
    raise UserError(f"{where}.{prefix}_init={name!r} is none of {sorted(INITIALIZERS)}.")
  if std < 0:
    raise UserError(f"{where}.{prefix}_std={std} must be at least 0; 0 starts from zeros.")
