"""Dropout whose draws do not depend on the batch's layout."""

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm.nn import dropout


def test_rate_and_scale():
  keys_B = jax.random.split(jax.random.key(0), 4)
  dropped = dropout.dropout(jnp.ones((4, 5000)), 0.25, keys_B, site=3)
  assert abs(float((dropped == 0).mean()) - 0.25) < 0.01
  np.testing.assert_allclose(np.unique(dropped), [0.0, 1 / 0.75], rtol=1e-6)


def test_a_row_draws_the_same_alone_and_in_company():
  key, rows = jax.random.key(1), jnp.arange(6)
  x = jnp.ones((6, 50))
  together = dropout.dropout(x, 0.5, dropout.row_keys(key, rows), site=1)
  alone = dropout.dropout(x[4:5], 0.5, dropout.row_keys(key, rows[4:5]), site=1)
  np.testing.assert_array_equal(together[4:5], alone)
  assert not (together[0] == together[1]).all()


def test_sites_and_loops_draw_apart_and_no_key_means_no_dropout():
  keys_B = dropout.row_keys(jax.random.key(1), jnp.arange(2))
  x = jnp.ones((2, 50))
  draws = [dropout.dropout(x, 0.5, keys_B, site=site) for site in (0, 1)]
  draws += [dropout.dropout(x, 0.5, dropout.loop_keys(keys_B, jnp.ones(2, jnp.int32)), site=0)]
  assert len({draw.tobytes() for draw in map(np.asarray, draws)}) == 3
  np.testing.assert_array_equal(dropout.dropout(x, 0.5, None, site=0), x)


def test_no_two_places_share_a_site():
  sites = [dropout.layer_site(layer, place) for layer in range(3) for place in range(4)]
  assert len({dropout.EMBED, dropout.HEAD, *sites}) == 14
