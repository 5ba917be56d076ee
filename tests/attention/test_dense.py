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


def test_scores_are_products_and_bias_times_the_scale():
  rng = np.random.default_rng(0)
  q, k, v = (jnp.asarray(rng.normal(size=(1, 3, 1, 4)), jnp.float32) for _ in range(3))
  bias = jnp.asarray(rng.normal(size=(1, 1, 3, 3)), jnp.float32)
  see = jnp.tril(jnp.ones((1, 3, 3), bool))
  ours = Attention()(q, k, v, see, bias, scale=0.3)
  for t in range(3):
    score = 0.3 * (np.asarray(k)[0, : t + 1, 0] @ np.asarray(q)[0, t, 0] + bias[0, 0, t, : t + 1])
    p = np.exp(score) / np.exp(score).sum()
    np.testing.assert_allclose(ours[0, t, 0], p @ np.asarray(v)[0, : t + 1, 0], atol=1e-6)
