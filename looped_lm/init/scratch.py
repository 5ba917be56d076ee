"""Random initial parameters, as each part of the model draws its own."""

import dataclasses

import jax

from looped_lm.types import Model, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Init:
  """Starts from nothing."""

  def params(self, model: Model, key: jax.Array) -> Params:
    """The parameters before the first step."""
    return model.init(key)
