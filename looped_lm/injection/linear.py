"""Concat injection: h_{r+1} = F(W [h_r ; e]).

Source: Huginn, arXiv 2502.05171 (its adapter), and the models that Parcae is compared with.
Nothing bounds W's part for the state, so a high learning rate can make the loop expand.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.errors import UserError
from looped_lm.nn import initial
from looped_lm.nn.precision import narrow, widen
from looped_lm.nn.states import RecurrentState
from looped_lm.types import Params


class Injection(RecurrentState):
  """h_0 = 0; h_{r+1} = F(h_r W_h + e W_e), W = [W_h ; W_e] one [2 D, D] kernel.

  Attributes:
    kernel_init: Initialiser of W, a key of `nn.initial.INITIALIZERS`.
    kernel_std: Standard deviation of its entries.
    compute_dtype: Of the matrix products.
  """

  kernel_init: str = "truncated_normal"
  kernel_std: float = 0.0
  compute_dtype: str = "float32"

  def setup(self):
    init = initial.weights(self.kernel_init, self.kernel_std)
    self.kernel = self.param("kernel", init, (2 * self.embed_dim, self.embed_dim))

  def prepare(self, e_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """e W_e."""
    return self._times(e_BTD, self.kernel[self.embed_dim :])

  def enter(self, h_BTD, anchor, *, loop_B, keys_B) -> Float[Array, "B T D"]:
    return self._times(h_BTD, self.kernel[: self.embed_dim]) + anchor

  def _times(self, x_BTD: jax.Array, kernel_DC: jax.Array) -> Float[Array, "B T C"]:
    x_BTD, kernel_DC = narrow(x_BTD, self.compute_dtype), narrow(kernel_DC, self.compute_dtype)
    return widen(x_BTD @ kernel_DC)


def check(settings: Mapping[str, Any]) -> None:
  """Raises a UserError for an initialiser that cannot work."""
  if settings.get("kernel_std", 0.0) <= 0:
    raise UserError(
      f"model.injection.kernel_std={settings.get('kernel_std', 0.0)} must be above 0: with "
      "a matrix of zeros the core would read nothing."
    )
  initial.check({"kernel_init": "truncated_normal", **settings}, "kernel", where="model.injection")


def diagnostics(params: Params) -> dict[str, Float[Array, ""]]:
  """Norms of the two halves of W, and an upper estimate of the state half's spectral radius.

  The estimate is ‖W_h^16‖^(1/16) in Frobenius norm, which bounds the radius from above and is close
  to it; W_h is not normal, so its largest singular value can be much larger.
  """
  kernel = widen(params["kernel"])
  half = kernel.shape[1]
  state_DD = kernel[:half]
  power, log_norm = state_DD, jnp.zeros(())
  for doubling in range(4):
    norm = jnp.linalg.norm(power)
    log_norm = log_norm + jnp.log(norm) / 2**doubling
    power = (power / norm) @ (power / norm)
  log_norm = log_norm + jnp.log(jnp.linalg.norm(power)) / 2**4
  return {
    "rho_bound": jnp.exp(log_norm),
    "state_norm": jnp.linalg.norm(state_DD),
    "input_norm": jnp.linalg.norm(kernel[half:]),
  }


def forward_macs_per_token(settings: Mapping[str, Any], *, embed_dim: int, num_loops: int) -> int:
  """e W_e once, h W_h in every loop."""
  return (1 + num_loops) * embed_dim**2
