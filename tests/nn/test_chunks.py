"""The head in chunks: the numbers of all positions at once, and no more work than is supervised.

What guards what; each fault was seeded once and made these tests fail:

| fault | fails |
|---|---|
| the last chunk is not run | `…numbers_of_all_at_once` |
| positions stay where they are | `…numbers_of_all_at_once` |
| all chunks are run | `…only_chunks_with_something_to_do…` |
| figures come back in another order | `…numbers_of_all_at_once` |
| the gradient by the scale, or its factor, is left out | `…numbers_of_all_at_once` |
| all rows are one group on a mesh | `…no_position_leaves_its_device` |
| logits of all positions | `…never_in_memory` |
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.models import looped
from looped_lm.nn import chunks
from looped_lm.nn.token_loss import token_figures
from looped_lm.objectives import clm, hybrid
from looped_lm.types import Batch, Vocabulary

ROWS, LENGTH, DIM, VOCAB = 4, 6, 5, 11


def cost(weights, x, targets):
  table_VF, bias_V = weights
  nats, z, _ = token_figures(x @ table_VF.T + bias_V, targets)
  return nats + 0.1 * z, {"nats": nats, "ran": jnp.ones_like(nats)}


def problem(rows=ROWS, length=LENGTH, vocab=VOCAB):
  rng = np.random.default_rng(0)
  weights = (rng.normal(size=(vocab, DIM)), rng.normal(size=vocab))
  x_BTF = rng.normal(size=(rows, length, DIM))
  targets_BT = rng.integers(0, vocab, (rows, length))
  scale_BT = rng.uniform(0.5, 2.0, (rows, length))
  return jax.tree.map(jnp.asarray, (weights, x_BTF, targets_BT, scale_BT))


def with_gradients(**settings):
  """(weights, x, targets, scale, counts) -> ((sum, figures), gradients)."""

  def total(weights, x_BTF, targets_BT, scale_BT, counts_BT):
    scale_BT = jnp.where(counts_BT, scale_BT, 0)
    found = chunks.weighted_sum(cost, weights, x_BTF, targets_BT, scale_BT, counts_BT, **settings)
    return 3.0 * found[0], found[1]

  return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 3), has_aux=True))


def some(*, count):
  """So many positions, at random places."""
  counts = np.zeros(ROWS * LENGTH, bool)
  counts[np.random.default_rng(count).permutation(ROWS * LENGTH)[:count]] = True
  return jnp.asarray(counts.reshape(ROWS, LENGTH))


@pytest.mark.parametrize(
  ("chunk_tokens", "row_groups"), [(6, 1), (7, 1), (4, 2), (5, 2), (1, 4), (100, 1)]
)
def test_chunks_have_the_numbers_of_all_at_once(x64, chunk_tokens, row_groups):
  ours = with_gradients(chunk_tokens=chunk_tokens, row_groups=row_groups)
  theirs = with_gradients(chunk_tokens=0)
  for count in (0, 1, 6, 7, 13, ROWS * LENGTH):
    counts_BT = some(count=count)
    (value, figures), gradients = ours(*problem(), counts_BT)
    (expected, reference), theirs_by = theirs(*problem(), counts_BT)
    assert value == pytest.approx(float(expected), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(figures["nats"][counts_BT], reference["nats"][counts_BT], rtol=1e-12)
    for mine, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(theirs_by), strict=True):
      np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-12)


def test_only_chunks_with_something_to_do_are_run():
  run = with_gradients(chunk_tokens=5)
  for count in (0, 1, 5, 6, 24):
    (_, figures), _ = run(*problem(), some(count=count))
    # 24 positions are padded to 25, the last of which is nobody's.
    assert figures["ran"].sum() == min(24, -(-count // 5) * 5)


def compiled(rows, length, vocab, *, sharding=None, **settings):
  weights, *by_position = problem(rows, length, vocab)
  by_position.append(jnp.ones((rows, length), bool))
  if sharding is not None:
    by_position = jax.device_put(by_position, sharding)
    weights = jax.device_put(weights, NamedSharding(sharding.mesh, PartitionSpec()))
  return with_gradients(**settings).lower(weights, *by_position).compile()


def test_logits_of_all_positions_are_never_in_memory():
  """Compiled temporaries do not grow by tokens times vocabulary."""

  def size(rows, chunk_tokens):
    program = compiled(rows, 64, 1000, chunk_tokens=chunk_tokens)
    return program.memory_analysis().temp_size_in_bytes

  logits = 64 * 1000 * 4  # Of one row.
  assert size(16, 0) - size(4, 0) >= 12 * logits
  assert size(16, 32) - size(4, 32) < 0.1 * 12 * logits
  # Two or three arrays of a chunk's logits and the gradient of the table.
  assert size(16, 32) < 4 * logits


def test_no_position_leaves_its_device():
  """On a mesh each device orders its own rows, and the table's gradient is summed once."""
  mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  sharding = NamedSharding(mesh, PartitionSpec("data"))
  text = compiled(8, 16, 50, sharding=sharding, chunk_tokens=8, row_groups=4).as_text()
  assert "all-gather" not in text
  loops = re.findall(r"body=%?([\w.\-]+)", text)
  assert loops
  for name in loops:
    body = text[text.index(f"%{name} ") :].split("\n}\n")[0]
    assert "all-reduce" not in body


VOCABULARY = Vocabulary(size=60, num_special=16, bos_id=1, pad_id=3, mask_id=4)
SETTINGS = {"vocabulary": VOCABULARY, "z_loss_weight": 1e-3}


def both_ways(settings, objective):
  """Loss, metrics and gradients of a model in float64 and training: all at once, and in chunks."""
  model = looped.build(settings, vocab_size=60)
  params = jax.jit(model.init)(jax.random.key(0))
  params = jax.tree.map(
    lambda x: x.astype(jnp.float64) + 0.05 * np.random.default_rng(0).normal(size=x.shape), params
  )
  tokens_BT = jnp.asarray(np.random.default_rng(0).integers(16, 60, (4, 8)), jnp.int32)
  segments_BT = jnp.ones_like(tokens_BT).at[1:, 6:].set(0)
  batch = Batch(tokens_BT=tokens_BT, segments_BT=segments_BT, row_B=jnp.arange(4) + 3)
  task = objective.draw(batch, key=jax.random.key(1), progress=0.5)
  task = objective.weigh(task, total=lambda x: x)
  found = []
  for chunk_tokens in (0, 5):
    chunked = dataclasses.replace(objective, chunk_tokens=chunk_tokens)

    @jax.jit
    def value_and_grad(params, chunked=chunked):
      def loss(params):
        found = chunked.loss(model, params, task, key=jax.random.key(2))
        return found.sum_nats, found

      return jax.value_and_grad(loss, has_aux=True)(params)

    found.append(value_and_grad(params))
  return found


def assert_same(found):
  leaves = [jax.tree_util.tree_leaves_with_path(tree) for tree in found]
  for (path, whole), (_, ours) in zip(*leaves, strict=True):
    name = jax.tree_util.keystr(path)
    np.testing.assert_allclose(ours, whole, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.nightly
@pytest.mark.parametrize("mntp_fraction", [0.5, 1.0])
def test_loss_and_gradients_of_a_model_are_those_of_all_at_once(x64, tiny_config, mntp_fraction):
  settings = tiny_config()["model"]
  assert settings["head"]["dropout_rate"] > 0
  objective = hybrid.Objective(
    mntp_fraction=mntp_fraction,
    mask_rate_start=0.3,
    mask_rate_end=0.3,
    token_weighted=False,
    **SETTINGS,
  )
  found = both_ways(settings, objective)
  assert_same(found)
  (_, loss), _ = found[0]
  assert 0 < loss.metrics["mntp/loss_nats"][1] < 0.6 * mntp_fraction * 32


@pytest.mark.nightly
def test_the_loss_of_an_exit_gate_is_that_of_all_at_once(x64, tiny_config):
  settings = tiny_config()["model"] | {"exit_gate": True, "coda_layers": 1}
  assert_same(both_ways(settings, clm.Objective(exit_entropy_weight=0.1, **SETTINGS)))


@pytest.mark.nightly
def test_heads_of_other_kinds_are_those_of_all_at_once(x64, tiny_config):
  """A table of its own, factorised, with a softcap; and a tied one that is a product itself."""
  settings = tiny_config()["model"]
  own = {"name": "linear", "norm": "rms", "tied": False, "factor_dim": 8, "kernel_std": 0.1}
  own |= {"softcap": 5.0, "logit_scale": 2.0, "dropout_rate": 0.1}
  tied = {"name": "linear", "norm": "layer", "tied": True}
  factorised = settings["embed"] | {"factor_dim": 8}
  for changes in ({"head": own}, {"head": tied, "embed": factorised}):
    assert_same(both_ways(settings | changes, clm.Objective(**SETTINGS)))


def test_a_negative_size_is_refused():
  with pytest.raises(UserError, match=r"objective.chunk_tokens=-1 must be at least 0"):
    clm.Objective(chunk_tokens=-1, **SETTINGS)
