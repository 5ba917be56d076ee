"""Hyper-connections at the loop boundary: several lanes of state, mixed around the shared core.

Source: hyper-connections (Zhu et al., arXiv 2409.19606), put around whole loops as in arXiv
2604.21106, which measures them to raise what a recurrence is worth from 0.46 to 0.65. All lanes
start as e, and e stays reachable because lanes are carried along.

Differs from the papers: the core's own residual path is counted once, by adding what the core
changed (F(x) - x) and not F(x). With one lane this starts as plain repetition.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from looped_lm.errors import UserError
from looped_lm.nn.norms import per_row, rms_norm
from looped_lm.nn.precision import widen
from looped_lm.nn.states import RecurrentState
from looped_lm.types import Params


def _first_lane(key, shape, dtype=jnp.float32):
  """The core reads the first lane."""
  del key
  return jnp.zeros(shape, dtype).at[..., 0].set(1.0)


def _identity(key, shape, dtype=jnp.float32):
  del key
  return jnp.broadcast_to(jnp.eye(shape[-1], dtype=dtype), shape)


def _ones(key, shape, dtype=jnp.float32):
  del key
  return jnp.ones(shape, dtype)


def _mean(key, shape, dtype=jnp.float32):
  del key
  return jnp.full(shape, 1.0 / shape[-1], dtype)


def _small(key, shape, dtype=jnp.float32):
  del key
  return jnp.full(shape, 0.01, dtype)


class Injection(RecurrentState):
  """x = Σ_i a_i h_i; h_i ← Σ_j M_ij h_j + b_i (F(x) - x); read out Σ_i c_i h_i.

  a, b and M have a learned part, and one that depends on the token: a small factor, starting at
  0.01, times tanh of a projection of the normalised lanes, whose weights start at zero.

  Attributes:
    state_init: As for all injections; every lane starts alike.
    num_lanes: n, at least 1; the paper has 2.
    num_loops: Loops with parameters of their own; deeper loops use the last one's, and 1 shares.
    dynamic: Whether the parts that depend on the token exist.
    norm_eps: Of the lanes' norm.
  """

  state_init: str = "prelude"
  num_lanes: int = 2
  num_loops: int = 1
  dynamic: bool = True
  norm_eps: float = 1e-5

  def setup(self):
    R, n, D = self.num_loops, self.num_lanes, self.embed_dim
    self.read = self.param("lane_read", _first_lane, (R, n))
    self.write = self.param("lane_write", _ones, (R, n))
    self.mix = self.param("lane_mix", _identity, (R, n, n))
    self.out = self.param("lane_out", _mean, (n,))
    if self.dynamic:
      zeros = jax.nn.initializers.zeros
      self.read_kernel = self.param("read_kernel", zeros, (R, D))
      self.write_kernel = self.param("write_kernel", zeros, (R, D))
      self.mix_kernel = self.param("mix_kernel", zeros, (R, D, n))
      self.dynamic_scale = self.param("dynamic_scale", _small, (R, 3))

  def start(self, e_BTD, *, keys_B) -> Float[Array, "B T n D"]:
    h_BTD = super().start(e_BTD, keys_B=keys_B)
    return jnp.repeat(h_BTD[:, :, None], self.num_lanes, axis=2)

  def enter(self, h_BTnD, anchor, *, loop_B, keys_B) -> Float[Array, "B T D"]:
    return self._read(h_BTnD, loop_B)

  def update(self, h_BTnD, anchor, out_BTD, *, loop_B, keys_B) -> Float[Array, "B T n D"]:
    change_BTD = out_BTD - self._read(h_BTnD, loop_B)
    write_BTn = per_row(widen(self.write), loop_B)[:, None]
    mix_BTnm = per_row(widen(self.mix), loop_B)[:, None]
    if self.dynamic:
      normed = rms_norm(h_BTnD, self.norm_eps)
      kernel_BDm = per_row(widen(self.mix_kernel), loop_B)
      write_BTn = write_BTn + self._scale(1, loop_B, 3) * jnp.tanh(
        jnp.einsum("BTnD,BD->BTn", normed, per_row(widen(self.write_kernel), loop_B))
      )
      mix_BTnm = mix_BTnm + self._scale(2, loop_B, 4) * jnp.tanh(
        jnp.einsum("BTnD,BDm->BTnm", normed, kernel_BDm)
      )
    mix_BTnm = jnp.broadcast_to(mix_BTnm, (*h_BTnD.shape[:3], self.num_lanes))
    mixed = jnp.einsum("BTnm,BTmD->BTnD", mix_BTnm, h_BTnD)
    return mixed + write_BTn[..., None] * change_BTD[:, :, None]

  def leave(self, h_BTnD) -> Float[Array, "B T D"]:
    return jnp.einsum("n,BTnD->BTD", widen(self.out), h_BTnD)

  def _read(self, h_BTnD: jax.Array, loop_B: jax.Array) -> Float[Array, "B T D"]:
    read_BTn = jnp.broadcast_to(per_row(widen(self.read), loop_B)[:, None], h_BTnD.shape[:3])
    if self.dynamic:
      normed = rms_norm(h_BTnD, self.norm_eps)
      read_BTn = read_BTn + self._scale(0, loop_B, 3) * jnp.tanh(
        jnp.einsum("BTnD,BD->BTn", normed, per_row(widen(self.read_kernel), loop_B))
      )
    return jnp.einsum("BTn,BTnD->BTD", read_BTn, h_BTnD)

  def _scale(self, which: int, loop_B: jax.Array, ndim: int) -> jax.Array:
    scale_B = per_row(widen(self.dynamic_scale), loop_B)[:, which]
    return scale_B.reshape(-1, *(1,) * (ndim - 1))


def check(settings: Mapping[str, Any]) -> None:
  """Raises a UserError for a number of lanes or loops that cannot work."""
  for name in ("num_lanes", "num_loops"):
    if settings.get(name, 1) < 1:
      raise UserError(f"model.injection.{name}={settings[name]} must be at least 1.")


def diagnostics(params: Params) -> dict[str, Float[Array, ""]]:
  """The largest singular value of the lanes' mixing, and how much of it is off the diagonal."""
  mix = widen(params["lane_mix"])
  off = mix * (1.0 - jnp.eye(mix.shape[-1]))
  return {
    "mix_norm": jnp.linalg.norm(mix, ord=2, axis=(-2, -1)).max(),
    "mix_off_diagonal": jnp.abs(off).max(),
    "write_max": jnp.abs(params["lane_write"]).max(),
  }


def forward_macs_per_token(settings: Mapping[str, Any], *, embed_dim: int, num_loops: int) -> int:
  """Per loop: two readings and writing (n D each), mixing (n² D), and the token-dependent parts."""
  lanes = settings.get("num_lanes", 2)
  loop = (3 * lanes + lanes**2) * embed_dim
  if settings.get("dynamic", True):
    loop += (3 * lanes + lanes**2) * embed_dim
  return num_loops * loop
