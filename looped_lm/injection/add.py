"""Additive injection: Looped GPT-BERT's z_{t+1} = F(x + z_t).

Source: Looped GPT-BERT, arXiv 2609.09691. The state grows about linearly with the loops, because F
contains the identity path.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float


class Injection(nn.Module):
  """z_0 = 0; z_{t+1} = F(e + z_t).

  Attributes:
    embed_dim: D.
  """

  embed_dim: int

  def prepare(self, e_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """What the loops need of e, computed once."""
    return e_BTD

  def start(self, e_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """The state before the first loop."""
    return jnp.zeros_like(e_BTD)

  def enter(
    self, h_BTD: Float[Array, "B T D"], anchor: Float[Array, "B T D"]
  ) -> Float[Array, "B T D"]:
    """What the core reads in a loop."""
    return anchor + h_BTD

  def update(
    self,
    h_BTD: Float[Array, "B T D"],
    anchor: Float[Array, "B T D"],
    out_BTD: Float[Array, "B T D"],
  ) -> Float[Array, "B T D"]:
    """The next state, from the core's output."""
    return out_BTD

  def leave(self, h_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """What the coda reads."""
    return h_BTD
