"""Attention over every pair."""

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm.attention.dense import Attention


def test_a_query_that_sees_nothing_gives_zero_and_passes_no_gradient():
  x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 2, 4)), jnp.float32)
  see = jnp.array([[[True, False, False], [True, True, False], [False, False, False]]])

  def output(x):
    return Attention()(x, x, x, see, scale=0.5)

  assert (output(x)[0, 2] == 0).all()
  np.testing.assert_allclose(output(x)[0, 0], x[0, 0], rtol=1e-6)
  gradient = jax.grad(lambda x: jnp.square(output(x)).sum())(x)
  assert jnp.isfinite(gradient).all()
  assert (gradient[0, 2] == 0).all()
