"""Relative distances in logarithmic buckets."""

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm.nn.positions import bucket_rows, bucket_table, disentangled_bias, one_query_bias


def test_the_published_table():
  table = bucket_table(512, num_buckets=32, max_distance=512)
  bucket = table[:, 0] - 31  # Distance r = query - 0.
  np.testing.assert_array_equal(bucket[:17], np.arange(17))
  # First distance of each bucket beyond 16, from the reference implementation.
  first = [17, 21, 26, 32, 41, 51, 64, 81, 102, 128, 162, 203, 256, 322, 406]
  for number, distance in enumerate(first, start=17):
    assert bucket[distance] == number
    assert bucket[distance - 1] == number - 1
  assert (table.min(), table.max()) == (0, 62)


def test_the_table_is_odd_and_far_distances_share_the_last_bucket():
  table = bucket_table(40, num_buckets=8, max_distance=16) - 7
  np.testing.assert_array_equal(table, -table.T)
  assert (table[:, 0][15:] == 7).all()


def test_both_lookups_give_the_definition():
  rng = np.random.default_rng(0)
  q, k = (jnp.asarray(rng.normal(size=(2, 12, 3, 4)), jnp.float32) for _ in range(2))
  rq, rk = (jnp.asarray(rng.normal(size=(15, 3, 4)), jnp.float32) for _ in range(2))
  table = bucket_table(12, num_buckets=8, max_distance=16)
  expected = jnp.einsum("BTNH,TSNH->BNTS", q, rk[table])
  expected += jnp.einsum("BSNH,TSNH->BNTS", k, rq[table])
  for lookup in ("one_hot", "gather"):
    ours = jax.jit(disentangled_bias, static_argnames="lookup")(q, k, rq, rk, table, lookup=lookup)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_one_query_s_terms_are_its_row_of_all():
  rng = np.random.default_rng(0)
  q, k = (jnp.asarray(rng.normal(size=(2, 12, 3, 4)), jnp.float32) for _ in range(2))
  rq, rk = (jnp.asarray(rng.normal(size=(15, 3, 4)), jnp.float32) for _ in range(2))
  table = bucket_table(12, num_buckets=8, max_distance=16)
  every = disentangled_bias(q, k, rq, rk, table, lookup="gather")
  by_place = (position[table[7]].swapaxes(0, 1) for position in (rq, rk))
  np.testing.assert_allclose(one_query_bias(q[:, 7:8], k, *by_place), every[:, :, 7:8], atol=1e-5)


def test_distances_beyond_the_longest_share_its_bucket_and_the_others_keep_theirs():
  sizes = {"num_buckets": 8, "max_distance": 240}
  r = np.arange(40)[:, None] - np.arange(40)[None, :]
  free, held = bucket_table(40, **sizes), bucket_table(40, **sizes, longest=15)
  near = np.abs(r) <= 15
  np.testing.assert_array_equal(held[near], free[near])
  assert set(held[r > 15]) == {free[15, 0]}
  assert set(held[r < -15]) == {free[0, 15]}
  assert free[16, 0] > free[15, 0]
  # Read through a cache, the same.
  rows = bucket_rows(jnp.int32(30), 4, 40, **sizes, longest=15)
  np.testing.assert_array_equal(rows, held[30:34])
