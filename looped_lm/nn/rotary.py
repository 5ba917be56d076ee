"""Rotary positions (RoPE), on interleaved pairs of channels.

Source: Su et al., 2021 (RoFormer). Pair i of a head, channels 2i and 2i + 1, turns by
t · theta^(-2i / H) at position t. Some implementations pair channel i with i + H / 2 instead: the
same model up to a permutation of channels, but not the same numbers for the same weights.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from looped_lm.nn.precision import widen


def angles(length: int, head_dim: int, *, theta: float) -> Float[np.ndarray, "T P"]:
  """Radians by which each of the H / 2 pairs turns at positions 0 .. length - 1."""
  frequency_P = theta ** (-np.arange(0, head_dim, 2) / head_dim)
  return np.arange(length)[:, None] * frequency_P[None, :]


def rotate(
  x_BTNH: Float[Array, "B T N H"],
  *,
  theta: float,
  position_BT: Int[Array, "B T"] | None = None,
  num_positions: int = 0,
) -> Float[Array, "B T N H"]:
  """Turns queries or keys by their positions, in at least float32.

  Args:
    x_BTNH: H even.
    theta: Base of the frequencies; larger reaches farther.
    position_BT: Their positions, or None for 0 .. T - 1.
    num_positions: With positions: all are below it.
  """
  x_BTNH = widen(x_BTNH)
  # Made with numpy in float64: in float32, an angle of a far position has lost its last digits.
  length = x_BTNH.shape[1] if position_BT is None else num_positions
  angle_TP = angles(length, x_BTNH.shape[-1], theta=theta)
  cos_T1P = jnp.asarray(np.cos(angle_TP)[:, None], x_BTNH.dtype)
  sin_T1P = jnp.asarray(np.sin(angle_TP)[:, None], x_BTNH.dtype)
  if position_BT is not None:
    cos_T1P, sin_T1P = cos_T1P[position_BT], sin_T1P[position_BT]
  even, odd = x_BTNH[..., 0::2], x_BTNH[..., 1::2]
  turned = jnp.stack([even * cos_T1P - odd * sin_T1P, odd * cos_T1P + even * sin_T1P], axis=-1)
  return turned.reshape(x_BTNH.shape)
