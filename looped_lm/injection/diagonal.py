"""Parcae's stable injection: h ← exp(ΔA) ∘ h + ΔB e, then the core.

Source: Parcae, arXiv 2604.12946. The decay exp(ΔA) lies in (0, 1) for any parameter values, so the
linear part of the loop is a contraction. It is serial: the core reads the injected state and keeps
its own residual path; it does not run beside the block.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.nn.precision import widen
from looped_lm.types import Params

# Δ₀ = -ln √(1/5), so that exp(Δ₀ A) = √(1/5) with A = -1.
_INITIAL_STEP = 0.5 * math.log(5.0)


def _inverse_softplus(key, shape, dtype=jnp.float32):
  del key
  return jnp.full(shape, math.log(math.expm1(_INITIAL_STEP)), dtype)


def _identity(key, shape, dtype=jnp.float32):
  del key
  return jnp.eye(*shape, dtype=dtype)


class Injection(nn.Module):
  """h_0 = 0; h_{r+1} = F(exp(ΔA) ∘ h_r + ΔB e), A = -exp(A_log), Δ = softplus(dt_bias).

  Attributes:
    embed_dim: D.
  """

  embed_dim: int

  def setup(self):
    self.A_log = self.param("A_log", nn.initializers.zeros, (self.embed_dim,))
    self.dt_bias = self.param("dt_bias", _inverse_softplus, (self.embed_dim,))
    self.B = self.param("B", _identity, (self.embed_dim, self.embed_dim))

  def prepare(
    self, e_BTD: Float[Array, "B T D"]
  ) -> tuple[Float[Array, " D"], Float[Array, "B T D"]]:
    """The decay exp(ΔA) and the drive ΔB e, computed once. B is [D_out, D_in], as in the paper."""
    step_D = jax.nn.softplus(widen(self.dt_bias))
    drive_BTD = step_D * jnp.einsum("BTD,CD->BTC", widen(e_BTD), widen(self.B))
    return decay(self.A_log, self.dt_bias), drive_BTD

  def start(self, e_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """The state before the first loop."""
    return jnp.zeros_like(e_BTD)

  def enter(
    self,
    h_BTD: Float[Array, "B T D"],
    anchor: tuple[Float[Array, " D"], Float[Array, "B T D"]],
  ) -> Float[Array, "B T D"]:
    """What the core reads in a loop."""
    decay_D, drive_BTD = anchor
    return decay_D * h_BTD + drive_BTD

  def update(
    self,
    h_BTD: Float[Array, "B T D"],
    anchor: tuple[Float[Array, " D"], Float[Array, "B T D"]],
    out_BTD: Float[Array, "B T D"],
  ) -> Float[Array, "B T D"]:
    """The next state, from the core's output."""
    return out_BTD

  def leave(self, h_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """What the coda reads."""
    return h_BTD


def decay(A_log: Float[Array, " D"], dt_bias: Float[Array, " D"]) -> Float[Array, " D"]:
  """exp(ΔA): per channel, what one loop keeps of the state; its maximum is the spectral radius."""
  return jnp.exp(-jax.nn.softplus(widen(dt_bias)) * jnp.exp(widen(A_log)))


def diagnostics(params: Params) -> dict[str, Float[Array, ""]]:
  """Spectral radius and mean of the decay, and the largest step size."""
  decay_D = decay(params["A_log"], params["dt_bias"])
  return {
    "rho_max": decay_D.max(),
    "rho_mean": decay_D.mean(),
    "step_max": jax.nn.softplus(params["dt_bias"]).max(),
  }
