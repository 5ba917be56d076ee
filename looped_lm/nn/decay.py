"""A diagonal linear recurrence in continuous time, and its step: always a contraction."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.nn.precision import widen

# Below this, log(softplus(x)) is x to the last digit, and softplus would underflow.
_SMALL = -30.0


def step(dt_bias: Float[Array, " D"]) -> Float[Array, " D"]:
  """Δ = softplus(dt_bias)."""
  return jax.nn.softplus(widen(dt_bias))


def exponent(A_log: Float[Array, " D"], dt_bias: Float[Array, " D"]) -> Float[Array, " D"]:
  """-ΔA = Δ exp(A_log), by the logarithm of Δ: neither 0 · ∞ nor an underflow in between."""
  dt_bias = widen(dt_bias)
  log_step = jnp.log(jax.nn.softplus(jnp.maximum(dt_bias, _SMALL)))
  log_step = jnp.where(dt_bias < _SMALL, dt_bias, log_step)
  return jnp.exp(widen(A_log) + log_step)


def decay(A_log: Float[Array, " D"], dt_bias: Float[Array, " D"]) -> Float[Array, " D"]:
  """exp(ΔA), A = -exp(A_log): what one loop keeps of each channel.

  Its maximum is the spectral radius, below 1 for any parameters. In floating point exp(-x) is 1 for
  small x, so the largest number below 1 is the bound.
  """
  kept = jnp.exp(-exponent(A_log, dt_bias))
  return jnp.minimum(kept, jnp.asarray(1.0 - jnp.finfo(kept.dtype).epsneg, kept.dtype))


def held_step(A_log: Float[Array, " D"], dt_bias: Float[Array, " D"]) -> Float[Array, " D"]:
  """(exp(ΔA) - 1) / A: what a drive held constant over the step adds up to; Δ where A is small."""
  x = exponent(A_log, dt_bias)
  small = jnp.minimum(x, 1.0)
  safe = jnp.where(small > 0, small, 1.0)
  held_small = step(dt_bias) * jnp.where(small > 0, -jnp.expm1(-safe) / safe, 1.0)
  # Where Δ A is large, Δ times a tiny fraction would lose it all.
  held_large = -jnp.expm1(-x) * jnp.exp(-widen(A_log))
  return jnp.where(x > 1.0, held_large, held_small)


def figures(A_log: Float[Array, " D"], dt_bias: Float[Array, " D"]) -> dict[str, jax.Array]:
  """Spectral radius and mean of the decay, and the largest step size."""
  kept = decay(A_log, dt_bias)
  return {"rho_max": kept.max(), "rho_mean": kept.mean(), "step_max": step(dt_bias).max()}
