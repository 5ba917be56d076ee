"""Attention over every pair."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.attention.dense import Attention, visible_softmax
from looped_lm.nn.loops import REMAT


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


def test_the_derivative_of_the_softmax_is_that_of_its_formula():
  rng = np.random.default_rng(0)
  score, t = (jnp.asarray(rng.normal(size=(2, 3, 3)), jnp.float32) for _ in range(2))
  see = jnp.array([[True, False, False], [True, True, True], [False, True, True]])

  def formula(score):
    e = jnp.where(see, jnp.exp(score), 0.0)
    return e / e.sum(axis=-1, keepdims=True)

  forward, reverse = {}, {}
  for name, function in (("ours", lambda x: visible_softmax(x, see)), ("formula", formula)):
    forward[name] = jax.jvp(function, (score,), (t,))
    reverse[name] = jax.vjp(function, score)[1](t)
  for mode in (forward, reverse):
    for ours, wanted in zip(mode["ours"], mode["formula"], strict=True):
      np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("remat", "times"), [("none", 1), ("attention", 1), ("dots", 2)])
def test_the_backward_pass_makes_probabilities_again_where_they_are_not_kept(remat, times):
  see = jnp.tril(jnp.ones((1, 3, 3), bool))

  def loss(x):
    return jnp.square(Attention()(x, x, x, see, scale=0.5)).sum()

  if remat != "none":
    loss = jax.checkpoint(loss, policy=REMAT[remat])
  program = jax.make_jaxpr(jax.grad(loss))(jnp.ones((1, 3, 2, 4)))
  assert str(program).count("= exp ") == times
  # Queries times keys, and probabilities times values: forward, twice backward, and again.
  assert str(program).count("= dot_general") == 2 * (2 + times)
