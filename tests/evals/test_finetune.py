"""Fine-tuning: the head and its token by hand, the loss of a batch, and what the devices change."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.evals import classifier, finetune
from looped_lm.evals.classifier import Rows
from looped_lm.evals.finetune import Recipe
from looped_lm.train.parallel.mesh import MeshStrategy

RECIPE = Recipe(
  learning_rate=1e-3,
  warmup_fraction=0.06,
  floor_fraction=0.1,
  weight_decay=0.01,
  b1=0.9,
  b2=0.999,
  dropout_rate=0.1,
  batch_size=8,
  epochs=3,
  token="last",
  visibility="causal",
  seed=42,
)
TEXTS = ["The cat sat.", "Who ran?", "The dogs did.", "A mouse saw the cats and a dog.", "The mat."]


def test_the_rate_rises_from_nothing_and_falls_to_a_tenth():
  recipe = dataclasses.replace(RECIPE, warmup_fraction=0.1)
  for step, factor in ((0, 0.0), (5, 0.5), (10, 1.0), (55, 0.55), (100, 0.1)):
    found = float(finetune.rate_at(step, recipe, total_steps=100))
    assert found == pytest.approx(1e-3 * factor, rel=1e-5), step
  assert float(finetune.rate_at(0, RECIPE, total_steps=1)) == pytest.approx(1e-3)


def test_the_head_by_hand():
  params = classifier.init_head(jax.random.key(0), 6, 3)
  bound = 1 / math.sqrt(6)
  for leaf in jax.tree.leaves(params):
    assert 0 < float(jnp.abs(leaf).max()) <= bound
  x_BD = np.random.default_rng(0).normal(size=(2, 6)) * 3 + 1

  def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

  hidden, out = (jax.tree.map(np.asarray, params[name]) for name in ("hidden", "out"))
  y = norm(x_BD) @ hidden["kernel"] + hidden["bias"]
  y = norm(y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2))))
  wanted = y @ out["kernel"] + out["bias"]
  found = classifier.apply_head(params, jnp.asarray(x_BD, jnp.float32), 0.5, None)
  np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def placed(ids, pad, *, length, side):
  """Rows of tokens with padding on one side."""
  tokens_BT, segments_BT = np.full((len(ids), length), pad), np.zeros((len(ids), length), int)
  for row, each in enumerate(ids):
    where = slice(0, len(each)) if side == "right" else slice(length - len(each), length)
    tokens_BT[row, where], segments_BT[row, where] = each, 1
  return Rows(
    tokens_BT=jnp.asarray(tokens_BT, jnp.int32),
    segments_BT=jnp.asarray(segments_BT, jnp.int32),
    row_B=jnp.arange(len(ids)),
    label_B=jnp.zeros(len(ids), jnp.int32),
    weight_B=jnp.ones(len(ids)),
  )


def spelled(spelling, texts=TEXTS):
  return [np.array([spelling.bos_id, *spelling.encode(text)], np.int32) for text in texts]


@pytest.mark.parametrize("visibility", ["causal", "bidirectional"])
@pytest.mark.parametrize("token", ["last", "first"])
def test_the_token_is_a_real_one_wherever_padding_stands(
  subject, by_hand, spelling, token, visibility
):
  ids, size = spelled(spelling), by_hand.vocabulary.size
  params = {
    "encoder": by_hand.params(),
    "classifier": classifier.init_head(jax.random.key(1), size, 2),
  }
  x_BD = np.stack(
    [
      by_hand.logits(params["encoder"], each, causal=visibility == "causal")[
        -1 if token == "last" else 0
      ]
      for each in ids
    ]
  )
  wanted = classifier.apply_head(params["classifier"], jnp.asarray(x_BD), 0.1, None)
  for length, side in ((24, "right"), (24, "left"), (32, "right")):
    rows = placed(ids, by_hand.vocabulary.pad_id, length=length, side=side)
    found = classifier.logits(
      subject.model, params, rows, token=token, visibility=visibility, dropout_rate=0.1
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def learned(subject, params, recipe, ids, labels, valid=None):
  said = list(
    finetune.finetune(
      subject,
      params,
      recipe,
      train=(ids, np.array(labels, np.int32)),
      valid=(ids, np.array(labels, np.int32)),
      num_classes=2,
      score=lambda predicted_N: float((predicted_N == np.array(labels)).mean()),
      name="set",
    )
  )
  return [epoch.train_loss_nats for epoch, _ in said], said[-1][1]


@pytest.fixture(scope="module")
def narrow(by_hand):
  """Tables of eight columns: the model by hand, and quick to learn."""
  own, seen = jax.random.normal(jax.random.key(0), (2, by_hand.vocabulary.size, 8))
  return {"own": own, "seen": seen}


def test_the_loss_is_the_mean_over_the_rows_of_the_set(subject, by_hand, spelling, narrow):
  """Five rows on four devices: three more fill the batch up and must not count."""
  ids, labels = spelled(spelling), [0, 1, 0, 1, 1]
  recipe = dataclasses.replace(RECIPE, dropout_rate=0.0, epochs=1, batch_size=32)
  losses, _ = learned(subject, narrow, recipe, ids, labels)
  key_head, _ = jax.random.split(jax.random.key(recipe.seed))
  tuned = {"encoder": narrow, "classifier": classifier.init_head(key_head, 8, 2)}
  rows = placed(ids, by_hand.vocabulary.pad_id, length=24, side="right")
  nats_BC = jax.nn.log_softmax(
    classifier.logits(
      subject.model, tuned, rows, token="last", visibility="causal", dropout_rate=0.1
    )
  )
  mean = -float(nats_BC[jnp.arange(5), jnp.array(labels)].mean())
  assert losses == [pytest.approx(mean, rel=1e-5)]


def test_a_seed_decides_all_and_the_model_stays_as_it_was(subject, spelling, narrow):
  ids, labels = spelled(spelling) * 3, [0, 1, 0, 1, 1] * 3
  recipe = dataclasses.replace(RECIPE, learning_rate=2e-2, epochs=5)
  before = jax.tree.map(np.array, narrow)
  first = learned(subject, narrow, recipe, ids, labels)
  again = learned(subject, narrow, recipe, ids, labels)
  assert first[0] == again[0]
  np.testing.assert_array_equal(first[1], again[1])
  jax.tree.map(np.testing.assert_array_equal, before, narrow)
  other = learned(subject, narrow, dataclasses.replace(recipe, seed=7), ids, labels)
  assert other[0] != first[0]
  assert first[0][-1] < first[0][0]


@pytest.mark.slow
def test_a_mesh_learns_the_same(subject, spelling, narrow):
  ids, labels = spelled(spelling) * 3, [0, 1, 0, 1, 1] * 3
  recipe = dataclasses.replace(RECIPE, learning_rate=2e-2, epochs=5)
  wanted = learned(subject, narrow, recipe, ids, labels)
  mesh = MeshStrategy(fsdp=2, tensor=1)
  split = dataclasses.replace(subject, strategy=mesh)
  found = learned(split, mesh.replicate(narrow), recipe, ids, labels)
  np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4)
  np.testing.assert_array_equal(found[1], wanted[1])
