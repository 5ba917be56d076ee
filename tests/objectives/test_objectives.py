"""What is predicted where, and how much it weighs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.objectives import clm, hybrid, mntp
from looped_lm.types import Batch, Vocabulary

VOCABULARY = Vocabulary(size=200, num_special=16, bos_id=1, pad_id=3, mask_id=4)
MASKING = {"mask_rate_start": 0.30, "mask_rate_end": 0.15}
KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def batch():
  """Eight rows of `<s>` + 9 tokens, `<s>` + 7 tokens, and two pads."""
  tokens = np.random.default_rng(0).integers(16, 200, (8, 20)).astype(np.int32)
  segments = np.array([[1] * 10 + [2] * 8 + [0] * 2] * 8, np.int32)
  tokens[:, [0, 10]] = 1
  tokens[:, 18:] = 3
  return Batch(
    tokens_BT=jnp.asarray(tokens),
    segments_BT=jnp.asarray(segments),
    row_B=jnp.arange(8, dtype=jnp.int32),
  )


def make_hybrid(fraction, *, token_weighted=False):
  return hybrid.Objective(
    vocabulary=VOCABULARY,
    z_loss_weight=1e-4,
    mntp_fraction=fraction,
    token_weighted=token_weighted,
    **MASKING,
  )


def draw(objective, batch, progress):
  return jax.jit(lambda batch: objective.draw(batch, key=KEY, progress=progress))(batch)


def test_clm_supervises_every_token_once_and_never_the_start(batch):
  task = draw(clm.Objective(vocabulary=VOCABULARY, z_loss_weight=0.0), batch, 0.0)
  #             <s> a … a(9)   last   <s> b … b(7) last pads
  expected = [1] * 9 + [0] + [1] * 7 + [0] + [0, 0]
  np.testing.assert_array_equal(task.weight_BT, [expected] * 8)
  supervised = np.asarray(task.weight_BT) > 0
  targets = np.asarray(task.targets_BT)
  assert targets[supervised].min() >= 16
  # Each of the row's 16 tokens is a target exactly once.
  np.testing.assert_array_equal(
    targets[0][supervised[0]], np.delete(batch.tokens_BT[0], [0, 10, 18, 19])
  )


def test_mntp_predicts_the_original_token_one_position_earlier(batch):
  objective = mntp.Objective(vocabulary=VOCABULARY, z_loss_weight=0.0, **MASKING)
  task = draw(objective, batch, 0.0)
  supervised = np.asarray(task.weight_BT) > 0
  original = np.asarray(batch.tokens_BT)
  read = np.asarray(task.inputs.tokens_BT)
  for row, position in zip(*np.nonzero(supervised), strict=True):
    assert task.targets_BT[row, position] == original[row, position + 1]
    assert original[row, position + 1] >= 16
  # Whatever was changed is predicted; specials and pads are as they were.
  changed_rows, changed = np.nonzero(read != original)
  assert supervised[changed_rows, changed - 1].all()
  assert (read[original < 16] == original[original < 16]).all()
  assert not supervised[:, [9, 17, 18, 19]].any()


def test_the_mask_rate_falls_along_the_run(batch):
  objective = mntp.Objective(vocabulary=VOCABULARY, z_loss_weight=0.0, **MASKING)
  many = jax.tree.map(lambda x: jnp.tile(x, (100,) + (1,) * (x.ndim - 1)), batch)
  many = many.replace(row_B=jnp.arange(800, dtype=jnp.int32))
  draw = jax.jit(lambda progress: objective.draw(many, key=KEY, progress=progress).weight_BT.sum())
  # Every piece has a masked token at least, so short pieces fall by less than half.
  assert draw(0.0) > 1.3 * draw(1.0)


@pytest.mark.parametrize(
  ("fraction", "picture"),
  [
    (0.0, "........"),
    (0.25, "...m...m"),
    (0.5, ".m.m.m.m"),
    (1 / 3, "..m..m.."),
    (1.0, "mmmmmmmm"),
  ],
)
def test_masked_rows_spread_evenly(batch, fraction, picture):
  masked = make_hybrid(fraction).is_masked(batch.row_B)
  assert "".join("m" if m else "." for m in masked) == picture


def test_hybrid_rows_are_those_of_the_pure_objectives(batch):
  task = draw(make_hybrid(0.5), batch, 0.5)
  causal = draw(clm.Objective(vocabulary=VOCABULARY, z_loss_weight=0.0), batch, 0.5)
  masked = draw(mntp.Objective(vocabulary=VOCABULARY, z_loss_weight=0.0, **MASKING), batch, 0.5)
  for row in range(8):
    source = masked if row % 2 else causal
    np.testing.assert_array_equal(task.inputs.tokens_BT[row], source.inputs.tokens_BT[row])
    np.testing.assert_array_equal(task.inputs.order_BT[row], source.inputs.order_BT[row])
    np.testing.assert_array_equal(task.weight_BT[row], source.weight_BT[row])


def test_hybrid_weighs_means_by_r_and_uses_the_totals_of_the_whole_step(batch):
  objective = make_hybrid(0.25)
  task = draw(objective, batch, 0.0)
  raw = np.asarray(task.weight_BT)
  masked = np.asarray(objective.is_masked(batch.row_B))
  # Two devices with the same rows: totals are twice this device's.
  weighed = np.asarray(objective.weigh(task, total=lambda x: 2 * x).weight_BT)
  np.testing.assert_allclose(weighed[masked].sum(), 0.25 / 2, rtol=1e-6)
  np.testing.assert_allclose(weighed[~masked].sum(), 0.75 / 2, rtol=1e-6)
  equal = make_hybrid(0.25, token_weighted=True).weigh(task, total=lambda x: 2 * x)
  np.testing.assert_array_equal(equal.weight_BT, raw)


@pytest.mark.parametrize("fraction", [-0.1, 1.5, 0.123456789])
def test_a_fraction_that_cannot_work_is_named(fraction):
  with pytest.raises(UserError, match=f"mntp_fraction={fraction}"):
    make_hybrid(fraction)
