"""The drive's norm is the largest stretch of the prelude's output."""

import jax.numpy as jnp
import pytest

from looped_lm.injection import diagonal, diagonal_zoh
from looped_lm.nn.stable import drive_norm


def test_the_largest_stretch():
  swap = jnp.array([[0.0, 3.0], [1.0, 0.0]])
  assert float(drive_norm(swap, jnp.array([2.0, 5.0]))) == pytest.approx(6.0)


def test_each_injection_has_its_own_scale():
  params = {"A_log": jnp.zeros(2), "dt_bias": jnp.array([0.0, -1.0]), "B": jnp.eye(2)}
  step = float(jnp.log(2.0))
  assert float(diagonal.diagnostics(params)["drive_norm"]) == pytest.approx(step)
  # 1 − exp(−Δ) = 1/2 with A = −1.
  assert float(diagonal_zoh.diagnostics(params)["drive_norm"]) == pytest.approx(0.5)
