"""The Gated Recurrent Transformer's loop: project [state ; anchor], run the core, blend by a gate.

Source: arXiv 2608.15062. The gate keeps: near 1 it copies the old state, and it starts at
σ(4) = 0.982. The blend is convex, so the state is bounded by the larger of its two parts.

Differs from the paper: it does not say how the gate's last matrix starts; here at zero, so that the
gate starts at exactly σ(bias). By default norm and noise are the paper's; `gate_norm` and
`gate_noise` have what the released code does instead.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.errors import UserError
from looped_lm.nn import noise, watch
from looped_lm.nn.norms import layer_norm
from looped_lm.nn.precision import narrow, widen
from looped_lm.nn.states import RecurrentState
from looped_lm.types import Params

_GATE_NORMS = ("separate", "concatenation")
_GATE_NOISES = ("channel", "token")


class Injection(RecurrentState):
  """x = W [h + ε ; e] + b; g = σ(MLP([N h ; N e]) / τ + ε'); h ← g h + (1 - g) F(x); h_0 = e.

  Attributes:
    state_init: As for all injections.
    noise_std: Of ε, fresh in every loop; the paper trains with 0.1.
    gate_noise_std: Of ε'; the paper trains with 0.1.
    gate_noise: A draw per "channel" (paper) or one per "token" (released code).
    gate_norm: Layer norms of h and e, "separate" (paper), or one of their "concatenation" (released
      code).
    gate_bias: Where the gate's logits start.
    temperature: τ.
    norm_eps: Of the gate's norms.
    kernel_std: Standard deviation of the initial weights, normal.
    compute_dtype: Of the matrix products.
  """

  state_init: str = "prelude"
  noise_std: float = 0.0
  gate_noise_std: float = 0.0
  gate_noise: str = "channel"
  gate_norm: str = "separate"
  gate_bias: float = 4.0
  temperature: float = 1.0
  norm_eps: float = 1e-5
  kernel_std: float = 0.02
  compute_dtype: str = "float32"

  def setup(self):
    D = self.embed_dim
    normal, zeros = nn.initializers.normal(self.kernel_std), nn.initializers.zeros
    self.project_kernel = self.param("project_kernel", normal, (2 * D, D))
    self.project_bias = self.param("project_bias", zeros, (D,))
    self.norm_scale = self.param("norm_scale", nn.initializers.ones, (2 * D,))
    self.gate_kernel = self.param("gate_kernel", normal, (2 * D, D))
    self.gate_hidden_bias = self.param("gate_hidden_bias", zeros, (D,))
    self.gate_out_kernel = self.param("gate_out_kernel", zeros, (D, D))
    bias = nn.initializers.constant(self.gate_bias)
    self.gate_out_bias = self.param("gate_out_bias", bias, (D,))

  def prepare(self, e_BTD: Float[Array, "B T D"]) -> "_Anchor":
    D = self.embed_dim
    projected = self._times(e_BTD, self.project_kernel[D:]) + widen(self.project_bias)
    gate = None
    if self.gate_norm == "separate":
      normed = layer_norm(e_BTD, self.norm_eps) * self.norm_scale[D:]
      gate = self._times(normed, self.gate_kernel[D:])
    return _Anchor(e_BTD=e_BTD, projected_BTD=projected, gate_BTD=gate)

  def enter(self, h_BTD, anchor, *, loop_B, keys_B) -> Float[Array, "B T D"]:
    if keys_B is not None and self.noise_std > 0:
      draw = noise.normal(keys_B, h_BTD.shape[1:], site=noise.ENTER, dtype=h_BTD.dtype)
      h_BTD = h_BTD + self.noise_std * draw
    return self._times(h_BTD, self.project_kernel[: self.embed_dim]) + anchor.projected_BTD

  def update(self, h_BTD, anchor, out_BTD, *, loop_B, keys_B) -> Float[Array, "B T D"]:
    logits_BTD = self.gate_logits(h_BTD, anchor)
    if keys_B is not None and self.gate_noise_std > 0:
      shape = h_BTD.shape[1:] if self.gate_noise == "channel" else (h_BTD.shape[1], 1)
      draw = noise.normal(keys_B, shape, site=noise.GATE, dtype=h_BTD.dtype)
      logits_BTD = logits_BTD + self.gate_noise_std * draw
    keep_BTD = jax.nn.sigmoid(logits_BTD)
    open_BTD = 1.0 - keep_BTD
    watch.offer(self, watch.FIGURES, "gate_openness", open_BTD)
    return keep_BTD * h_BTD + open_BTD * out_BTD

  def gate_logits(self, h_BTD: Float[Array, "B T D"], anchor: "_Anchor") -> Float[Array, "B T D"]:
    """What the gate is the sigmoid of, without noise; it sees the clean state and e."""
    D = self.embed_dim
    if anchor.gate_BTD is not None:
      normed = layer_norm(h_BTD, self.norm_eps) * self.norm_scale[:D]
      hidden = self._times(normed, self.gate_kernel[:D]) + anchor.gate_BTD
    else:
      both = jnp.concatenate([h_BTD, anchor.e_BTD], axis=-1)
      normed = layer_norm(both, self.norm_eps) * self.norm_scale
      hidden = self._times(normed, self.gate_kernel)
    hidden = jax.nn.silu(hidden + widen(self.gate_hidden_bias))
    out = self._times(hidden, self.gate_out_kernel) + widen(self.gate_out_bias)
    return out / self.temperature

  def _times(self, x: jax.Array, kernel: jax.Array) -> Float[Array, "B T C"]:
    return widen(narrow(x, self.compute_dtype) @ narrow(kernel, self.compute_dtype))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Anchor:
  """What of e the loops need: itself, through W, and its share of the gate's hidden layer."""

  e_BTD: Float[Array, "B T D"]
  projected_BTD: Float[Array, "B T D"]
  gate_BTD: Float[Array, "B T D"] | None


def check(settings: Mapping[str, Any]) -> None:
  """Checks the settings.

  Raises:
    UserError: A value that cannot work.
  """
  for name, known in {"gate_norm": _GATE_NORMS, "gate_noise": _GATE_NOISES}.items():
    if settings.get(name, known[0]) not in known:
      raise UserError(f"model.injection.{name}={settings[name]!r} is none of {list(known)}.")
  for name in ("noise_std", "gate_noise_std"):
    if settings.get(name, 0.0) < 0:
      raise UserError(f"model.injection.{name}={settings[name]} must be at least 0; 0 is off.")
  for name in ("temperature", "kernel_std"):
    if settings.get(name, 1.0) <= 0:
      raise UserError(f"model.injection.{name}={settings[name]} must be above 0.")


def diagnostics(params: Params) -> dict[str, Float[Array, ""]]:
  """What the gate keeps where its hidden layer says nothing, and the norms of W's halves."""
  keep_D = jax.nn.sigmoid(widen(params["gate_out_bias"]))
  kernel = widen(params["project_kernel"])
  half = kernel.shape[1]
  return {
    "keep_mean": keep_D.mean(),
    "keep_min": keep_D.min(),
    "state_norm": jnp.linalg.norm(kernel[:half]),
    "input_norm": jnp.linalg.norm(kernel[half:]),
  }


def forward_macs_per_token(settings: Mapping[str, Any], *, embed_dim: int, num_loops: int) -> int:
  """The projection and the gate per loop; their halves for e once, unless normed with h."""
  separate = settings.get("gate_norm", "separate") == "separate"
  once, loop = (2, 3) if separate else (1, 4)
  return (once + num_loops * loop) * embed_dim**2
