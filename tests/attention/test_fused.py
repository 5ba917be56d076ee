"""Fused attention has the numbers of the dense one, and says what it cannot do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.attention import dense, fused
from looped_lm.errors import UserError
from looped_lm.models import looped


@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_are_those_of_dense_attention(with_bias):
  rng = np.random.default_rng(0)
  q, k, v, cotangent = (jnp.asarray(rng.normal(size=(2, 5, 2, 8)), jnp.float32) for _ in range(4))
  bias = jnp.asarray(rng.normal(size=(2, 2, 5, 5)), jnp.float32) if with_bias else None
  see = jnp.tril(jnp.ones((2, 5, 5), bool)).at[1, :, :2].set(False)  # Two queries see nothing.
  results = []
  for attend in (dense.Attention(), fused.Attention()):
    out, back = jax.vjp(lambda *x, attend=attend: attend(*x[:3], see, *x[3:], scale=0.4), q, k, v)
    results.append((out, *back(cotangent)))
    if with_bias:
      out, back = jax.vjp(lambda bias, attend=attend: attend(q, k, v, see, bias, scale=0.4), bias)
      results[-1] += (out, *back(cotangent))
  for ours, wanted in zip(*results, strict=True):
    np.testing.assert_allclose(ours, wanted, atol=1e-6)
  assert not results[1][0][1, :2].any()


def test_dropped_probabilities_are_refused(tiny_config):
  settings = tiny_config()["model"] | {"attention": {"name": "fused"}}
  with pytest.raises(UserError, match=r"attention_dropout_rate=0.1 .*'fused'.*take 'dense'"):
    looped.build(settings, vocab_size=50)
  settings["block"] |= {"attention_dropout_rate": 0.0}
  looped.build(settings, vocab_size=50)


@pytest.mark.parametrize(
  ("implementation", "message"),
  [("flash", "none of"), ("cudnn", "needs an NVIDIA GPU, and this is 'cpu'")],
)
def test_an_implementation_that_is_not_there_is_refused(tiny_config, implementation, message):
  settings = tiny_config("parcae")["model"]
  settings["attention"] = {"name": "fused", "implementation": implementation}
  with pytest.raises(UserError, match=message):
    looped.build(settings, vocab_size=50)
