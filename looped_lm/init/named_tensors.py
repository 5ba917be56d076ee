"""Tensors by their names in a PyTorch implementation."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from looped_lm.errors import UserError

Tensors = Mapping[str, np.ndarray]


class Reader:
  """Hands tensors out by name and knows afterwards what was missing and what was left."""

  def __init__(self, tensors: Tensors):
    self._tensors = tensors
    self._left = set(tensors)
    self._missing: list[str] = []

  def take(self, name: str) -> Any:
    if name not in self._tensors:
      self._missing.append(name)
      return jnp.zeros(())
    self._left.discard(name)
    return jnp.asarray(self._tensors[name])

  def linear(self, name: str, *, bias: bool) -> dict[str, Any]:
    """A linear layer: our kernels are [in, out], theirs [out, in]."""
    weights = {"kernel": self.take(f"{name}.weight").T}
    return weights | {"bias": self.take(f"{name}.bias")} if bias else weights

  def ignore(self, name: str) -> None:
    self._left.discard(name)

  def finish(self) -> None:
    """Raises a UserError that names what was missing and what is left over."""
    if self._missing or self._left:
      raise UserError(
        f"The weights do not fit: missing {sorted(self._missing)}, unexpected {sorted(self._left)}."
      )
