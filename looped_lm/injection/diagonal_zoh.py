"""Parcae's stable injection with the exact hold: h ← exp(ΔA) ∘ h + (exp(ΔA) - 1) A⁻¹ B e.

Parcae (arXiv 2604.12946) takes Δ for the factor of B, which is Euler's step. If e is held constant
over the step, as it is, the exact factor is (1 - exp(ΔA)) / exp(A_log): it never exceeds Δ, and the
fixed point of the linear part is B e / exp(A_log) for any Δ.
"""

from jaxtyping import Array, Float

from looped_lm.nn import decay
from looped_lm.nn.stable import StableInjection, drive_norm
from looped_lm.types import Params


class Injection(StableInjection):
  """h_0 = 0; h_{r+1} = F(exp(ΔA) ∘ h_r + (exp(ΔA) - 1) A⁻¹ B e)."""

  def drive_scale(self) -> Float[Array, " D"]:
    return decay.held_step(self.A_log, self.dt_bias)


def diagnostics(params: Params) -> dict[str, Float[Array, ""]]:
  """Spectral radius and mean of the decay, the largest step size, and the drive's norm."""
  scale_D = decay.held_step(params["A_log"], params["dt_bias"])
  figures = decay.figures(params["A_log"], params["dt_bias"])
  return figures | {"drive_norm": drive_norm(params["B"], scale_D)}
