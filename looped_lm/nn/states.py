"""The recurrent state and its protocol: what an injection does before, in and after the loops."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from looped_lm.errors import UserError
from looped_lm.nn import noise

STATE_INITS = ("zero", "prelude", "truncated_normal")
State = Any  # [B, T, D], or more lanes of it: [B, T, n, D].


class RecurrentState(nn.Module):
  """How a state starts, meets the prelude's output e, changes and is read. Injections build on it.

  As it stands the core reads the state alone and its output is the next state.

  Attributes:
    embed_dim: D.
    state_init: The state before the first loop: "zero", "prelude" (e itself) or "truncated_normal"
      (noise cut at three standard deviations, from a key of its own; zero where there is no key).
    state_std: Standard deviation of that noise.
  """

  embed_dim: int
  state_init: str = "zero"
  state_std: float = 0.0

  def prepare(self, e_BTD: Float[Array, "B T D"]) -> Any:
    """What the loops need of e, computed once."""
    return None

  def start(self, e_BTD: Float[Array, "B T D"], *, keys_B: Key[Array, " B"] | None) -> State:
    """The state before the first loop.

    Args:
      e_BTD: The prelude's output.
      keys_B: The rows' keys, or None for no noise.
    """
    if self.state_init == "prelude":
      return e_BTD
    if self.state_init == "zero" or keys_B is None:
      return jnp.zeros_like(e_BTD)
    draw = noise.cut_normal(keys_B, e_BTD.shape[1:], site=noise.STATE, dtype=e_BTD.dtype)
    return self.state_std * draw

  def enter(
    self,
    h_BTD: State,
    anchor: Any,
    *,
    loop_B: Int[Array, " B"],
    keys_B: Key[Array, " B"] | None,
  ) -> Float[Array, "B T D"]:
    """What the core reads in a loop.

    Args:
      h_BTD: The state.
      anchor: From `prepare`.
      loop_B: How many loops each row has behind it.
      keys_B: The rows' keys in this loop, or None for no noise.
    """
    return h_BTD

  def update(
    self,
    h_BTD: State,
    anchor: Any,
    out_BTD: Float[Array, "B T D"],
    *,
    loop_B: Int[Array, " B"],
    keys_B: Key[Array, " B"] | None,
  ) -> State:
    """The next state, from the core's output."""
    return out_BTD

  def leave(self, h_BTD: State) -> Float[Array, "B T D"]:
    """The state as one stream, for the coda."""
    return h_BTD


def check(settings: Mapping[str, Any]) -> None:
  """Checks how the state starts.

  Raises:
    UserError: No such start, or noise without a size.
  """
  kind, std = settings.get("state_init", "zero"), settings.get("state_std", 0.0)
  if kind not in STATE_INITS:
    raise UserError(f"model.injection.state_init={kind!r} is none of {list(STATE_INITS)}.")
  if (kind == "truncated_normal") != (std > 0):
    raise UserError(
      f"model.injection.state_std={std} must be above 0 for state_init='truncated_normal' and 0 "
      f"for the others; state_init={kind!r}."
    )
