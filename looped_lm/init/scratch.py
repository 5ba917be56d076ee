"""Random initial parameters, as each part of the model draws its own."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax

from looped_lm.types import Model, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Init:
  """Starts from nothing."""

  def load(self, model: Model, *, settings: Mapping[str, Any], tokenizer: Any) -> None:
    """Reads nothing."""

  def params(self, model: Model, key: jax.Array, loaded: None) -> Params:
    """The parameters before the first step."""
    return model.init(key)
