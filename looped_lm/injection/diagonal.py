"""Parcae's stable injection: h ← exp(ΔA) ∘ h + ΔB e, then the core.

Source: Parcae, arXiv 2604.12946. The decay exp(ΔA) lies below 1 for any parameter values, so the
linear part of the loop is a contraction.
"""

from jaxtyping import Array, Float

from looped_lm.nn import decay
from looped_lm.nn.stable import StableInjection, drive_norm
from looped_lm.types import Params


class Injection(StableInjection):
  """h_0 = 0; h_{r+1} = F(exp(ΔA) ∘ h_r + ΔB e), A = -exp(A_log), Δ = softplus(dt_bias)."""

  def drive_scale(self) -> Float[Array, " D"]:
    return decay.step(self.dt_bias)


def diagnostics(params: Params) -> dict[str, Float[Array, ""]]:
  """Spectral radius and mean of the decay, the largest step size, and the drive's norm."""
  scale_D = decay.step(params["dt_bias"])
  figures = decay.figures(params["A_log"], params["dt_bias"])
  return figures | {"drive_norm": drive_norm(params["B"], scale_D)}
