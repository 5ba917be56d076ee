"""The linear head and the token embedding's options, by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm.nn.embed import Embed
from looped_lm.nn.heads import LinearHead
from looped_lm.nn.recurrence import sinusoid

RNG = np.random.default_rng(0)
HIDDEN = jnp.asarray(RNG.normal(size=(1, 3, 4)), jnp.float32)
TABLE = jnp.asarray(RNG.normal(size=(7, 4)), jnp.float32)


def rms(x):
  return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5)


def test_a_tied_head_scales_and_caps():
  head = LinearHead(norm="rms", logit_scale=3.0, softcap=2.0)
  scale = np.array([1.0, 2.0, 0.5, 1.5], np.float32)
  logits = head.apply({"params": {"norm": {"scale": scale}}}, HIDDEN, TABLE, None)
  raw = 3.0 * (rms(np.asarray(HIDDEN)) * scale) @ np.asarray(TABLE).T
  np.testing.assert_allclose(logits, 2.0 * np.tanh(raw / 2.0), rtol=1e-4, atol=1e-5)
  assert float(jnp.abs(logits).max()) <= 2.0


def test_an_untied_head_has_a_table_of_its_own_and_may_factorise_it():
  head = LinearHead(norm="none", tied=False, factor_dim=2, kernel_std=0.1)
  logits, variables = head.init_with_output(jax.random.key(0), HIDDEN, TABLE, None)
  params = variables["params"]
  assert jax.tree.map(jnp.shape, params) == {"down": {"kernel": (4, 2)}, "table": (7, 2)}
  expected = HIDDEN @ params["down"]["kernel"] @ params["table"].T
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)


def test_a_factorised_embedding_is_its_table():
  embed = Embed(vocab_size=7, embed_dim=4, factor_dim=2, scale=3.0)
  tokens = jnp.array([[1, 5, 5]])
  vectors, variables = embed.init_with_output(jax.random.key(0), tokens, None)
  assert variables["params"]["embedding"].shape == (7, 2)
  table = embed.apply(variables, method="table")
  np.testing.assert_allclose(vectors, 3.0 * table[tokens], rtol=1e-5)


def test_positions_are_added_by_column():
  tokens = jnp.array([[1, 1, 1]])
  learned = Embed(vocab_size=7, embed_dim=4, positions="learned", max_positions=5)
  vectors, variables = learned.init_with_output(jax.random.key(0), tokens, None)
  params = variables["params"]
  expected = params["embedding"][1] + params["position"][:3]
  np.testing.assert_allclose(vectors[0], expected, rtol=1e-5)
  waves = Embed(vocab_size=7, embed_dim=4, positions="sinusoidal")
  vectors = waves.apply({"params": {"embedding": jnp.zeros((7, 4))}}, tokens, None)
  t = np.arange(3)
  by_hand = np.stack([np.sin(t), np.sin(t / 100), np.cos(t), np.cos(t / 100)], axis=-1)
  np.testing.assert_allclose(vectors[0], by_hand, atol=1e-6)
  np.testing.assert_allclose(sinusoid(jnp.array([2]), 4, jnp.float32)[0], by_hand[2], atol=1e-6)
