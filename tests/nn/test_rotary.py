"""Rotary positions: what turns, by how much, and what attention sees of it."""

import jax.numpy as jnp
import numpy as np

from looped_lm.nn.rotary import rotate


def test_a_pair_turns_by_its_position():
  x_BTNH = jnp.zeros((1, 4, 1, 4)).at[..., 0].set(1.0)
  turned = np.asarray(rotate(x_BTNH, theta=100.0))[0, :, 0]
  # Channels 0 and 1 are the first pair; the second pair is untouched.
  expected = np.array([[np.cos(t), np.sin(t), 0, 0] for t in range(4)])
  np.testing.assert_allclose(turned, expected, atol=1e-6)


def test_the_second_pair_turns_more_slowly():
  x_BTNH = jnp.zeros((1, 4, 1, 4)).at[..., 2].set(1.0)
  turned = np.asarray(rotate(x_BTNH, theta=100.0))[0, 3, 0]
  np.testing.assert_allclose(turned, [0, 0, np.cos(0.3), np.sin(0.3)], atol=1e-6)


def test_products_depend_on_the_distance_alone():
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 8)).astype(np.float32)
  rows = [jnp.broadcast_to(x, (1, 12, 1, 8)) for x in (q, k)]
  turned_q, turned_k = (np.asarray(rotate(x, theta=10_000.0))[0, :, 0] for x in rows)
  score = turned_q @ turned_k.T
  np.testing.assert_allclose(score[5, 2], score[10, 7], rtol=1e-5)
  assert abs(score[5, 2] - score[5, 3]) > 1e-3
