"""Dense layers by parts of their columns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.nn.linear import Linear


@pytest.mark.parametrize("columns", [slice(None, 3), slice(3, None)])
def test_a_part_of_the_columns_is_that_part_of_the_product(columns):
  x = jax.random.normal(jax.random.key(0), (2, 5, 4))
  linear = Linear(8, jax.nn.initializers.normal(1.0), use_bias=True)
  variables = linear.init(jax.random.key(1), x)
  variables = jax.tree.map(lambda leaf: leaf + jnp.arange(8.0), variables)
  whole = linear.apply(variables, x)
  np.testing.assert_allclose(linear.apply(variables, x, columns), whole[..., columns], rtol=1e-6)
