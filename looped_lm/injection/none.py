"""No injection: the core is simply applied again to its own output, starting from e."""

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float


class Injection(nn.Module):
  """h_0 = e; h_{r+1} = F(h_r). With one loop this is the plain stack.

  Attributes:
    embed_dim: D.
  """

  embed_dim: int

  def prepare(self, e_BTD: Float[Array, "B T D"]) -> Any:
    """What the loops need of e, computed once."""
    return None

  def start(self, e_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """The state before the first loop."""
    return e_BTD

  def enter(self, h_BTD: Float[Array, "B T D"], anchor: Any) -> Float[Array, "B T D"]:
    """What the core reads in a loop."""
    return h_BTD

  def update(
    self, h_BTD: Float[Array, "B T D"], anchor: Any, out_BTD: Float[Array, "B T D"]
  ) -> Float[Array, "B T D"]:
    """The next state, from the core's output."""
    return out_BTD

  def leave(self, h_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """What the coda reads."""
    return h_BTD
