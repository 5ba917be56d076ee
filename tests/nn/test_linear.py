"""Dense layers by parts of their columns, and the two ways of a norm's mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.nn import norms
from looped_lm.nn.linear import Linear


@pytest.mark.parametrize("columns", [slice(None, 3), slice(3, None)])
def test_a_part_of_the_columns_is_that_part_of_the_product(columns):
  x = jax.random.normal(jax.random.key(0), (2, 5, 4))
  linear = Linear(8, jax.nn.initializers.normal(1.0), use_bias=True)
  variables = linear.init(jax.random.key(1), x)
  variables = jax.tree.map(lambda leaf: leaf + jnp.arange(8.0), variables)
  whole = linear.apply(variables, x)
  np.testing.assert_allclose(linear.apply(variables, x, columns), whole[..., columns], rtol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_norms_are_their_formulas(backend, monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: backend)
  x = 3.0 + np.random.default_rng(0).standard_normal((4, 7, 160))
  centred = x - x.mean(axis=-1, keepdims=True)
  layer = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
  rms = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-5)
  np.testing.assert_allclose(norms.layer_norm(jnp.float32(x), 1e-5), layer, rtol=0, atol=2e-6)
  np.testing.assert_allclose(norms.rms_norm(jnp.float32(x), 1e-5), rms, rtol=0, atol=2e-6)
