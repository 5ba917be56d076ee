"""Parcae's stable injection, for any way to discretise its drive."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.nn.decay import decay
from looped_lm.nn.precision import widen
from looped_lm.nn.states import RecurrentState

# Δ₀ = -ln √(1/5), so that exp(Δ₀ A) = √(1/5) with A = -1.
_INITIAL_STEP = 0.5 * math.log(5.0)


def _inverse_softplus(key, shape, dtype=jnp.float32):
  del key
  return jnp.full(shape, math.log(math.expm1(_INITIAL_STEP)), dtype)


def _identity(key, shape, dtype=jnp.float32):
  del key
  return jnp.eye(*shape, dtype=dtype)


class StableInjection(RecurrentState):
  """h_{r+1} = F(exp(ΔA) ∘ h_r + s ∘ B e), A = -exp(A_log), Δ = softplus(dt_bias).

  It is serial: the core reads the injected state and keeps its own residual path; it does not run
  beside the core.
  """

  def setup(self):
    self.A_log = self.param("A_log", nn.initializers.zeros, (self.embed_dim,))
    self.dt_bias = self.param("dt_bias", _inverse_softplus, (self.embed_dim,))
    self.B = self.param("B", _identity, (self.embed_dim, self.embed_dim))

  def drive_scale(self) -> Float[Array, " D"]:
    """s: the factor on B e."""
    raise NotImplementedError

  def prepare(
    self, e_BTD: Float[Array, "B T D"]
  ) -> tuple[Float[Array, " D"], Float[Array, "B T D"]]:
    """The decay exp(ΔA) and the drive s ∘ B e. B is [D_out, D_in], as in the paper."""
    drive_BTD = jnp.einsum("BTD,CD->BTC", widen(e_BTD), widen(self.B))
    return decay(self.A_log, self.dt_bias), self.drive_scale() * drive_BTD

  def enter(self, h_BTD: jax.Array, anchor: Any, *, loop_B, keys_B) -> Float[Array, "B T D"]:
    decay_D, drive_BTD = anchor
    return decay_D * h_BTD + drive_BTD


def drive_norm(B_CD: Float[Array, "C D"], scale_C: Float[Array, " C"]) -> Float[Array, ""]:
  """‖diag(s) B‖₂: by how much the drive may stretch e at most."""
  return jnp.linalg.norm(widen(scale_C)[:, None] * widen(B_CD), ord=2)
