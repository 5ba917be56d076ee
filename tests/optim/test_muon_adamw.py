"""Muon and AdamW: who goes where, and two steps by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.models import looped
from looped_lm.optim import muon_adamw, schedules

HYPER = {
  "weight_decay": 0.2,
  "b1": 0.8,
  "b2": 0.95,
  "eps": 1e-10,
  "clip_norm": 1e9,
  "muon_momentum_steps": 2,
}


def test_the_layers_matrices_go_to_muon_and_nothing_else_does(tiny_config):
  model = looped.build(tiny_config("parcae", "tiny")["model"], vocab_size=50)
  labels = muon_adamw.route(jax.eval_shape(model.init, jax.random.key(0)))
  flat = {
    "/".join(key.key for key in path): label
    for path, label in jax.tree_util.tree_leaves_with_path(labels)
  }
  muon = {name for name, label in flat.items() if label == "muon"}
  parts = ("attend/query", "attend/key", "attend/value", "attend/out", "feed/up", "feed/down")
  layers = [f"{stack}/layers_{i}" for stack in ("prelude", "core", "coda") for i in range(2)]
  expected = {f"{layer}/{part}/kernel" for layer in layers for part in parts}
  expected |= {f"{stack}/layers_1/value_embedding/gate" for stack in ("prelude", "core", "coda")}
  assert muon == expected
  for name in ("embed/embedding", "injection/B", "recurrence/readout_matrix/kernel"):
    assert flat[name] == "adamw"


@pytest.mark.parametrize("shape", [(24, 24), (16, 48), (48, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape):
  x = np.random.default_rng(0).normal(size=shape)
  left, values, right = np.linalg.svd(x, full_matrices=False)
  x = np.float32(left * np.linspace(0.05, 3.0, len(values)) @ right)
  values = np.linalg.svd(muon_adamw.orthogonalize(x), compute_uv=False)
  assert values.min() > 0.8
  assert values.max() < 1.2


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_two_steps_by_hand(shape):
  """In the reference's layout, [outputs, inputs], and its order of operations."""
  rng = np.random.default_rng(0)
  weight, *grads = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
  tx = muon_adamw.Optimizer(**HYPER, muon_rate_factor=0.5).build(lambda count: 0.02)
  params = {"core": {"up": {"kernel": jnp.asarray(weight)}}, "norm": {"scale": jnp.ones(3)}}
  state = tx.init(params)
  for grad in grads:
    tree = {"core": {"up": {"kernel": jnp.asarray(grad)}}, "norm": {"scale": jnp.full(3, 2.0)}}
    updates, state = tx.update(tree, state, params)
    params = jax.tree.map(jnp.add, params, updates)

  p, m, v = weight.T.astype(np.float64), 0.0, 0.0
  rows, columns = p.shape
  axis = 1 if rows >= columns else 0
  for momentum, grad in zip((0.85, 0.90), grads, strict=True):
    g = grad.T.astype(np.float64)
    m = momentum * m + (1 - momentum) * g
    g = momentum * m + (1 - momentum) * g
    x = np.asarray(muon_adamw.orthogonalize(jnp.asarray(g, jnp.float32)), np.float64)
    mean = np.square(x).mean(axis, keepdims=True)
    v = 0.95 * v + 0.05 * mean
    scale = 1 / np.sqrt(np.maximum(v, 1e-10))
    before = np.sqrt(mean.sum() * p.shape[axis])
    after = np.sqrt((mean * p.shape[axis] * scale**2).sum())
    x = x * scale * before / after
    rate = 0.5 * 0.02 * max(1.0, rows / columns) ** 0.5
    p = p - rate * x - rate * 0.2 * p * (x * p >= 0)
  np.testing.assert_allclose(params["core"]["up"]["kernel"], p.T, rtol=2e-4, atol=1e-5)
  # AdamW: the sign at a constant gradient, no decay.
  np.testing.assert_allclose(params["norm"]["scale"], 1 - 2 * 0.02, rtol=1e-5)


def test_a_trapezoid():
  schedule = schedules.make(
    {
      "schedule": "trapezoid",
      "learning_rate": 0.1,
      "warmup_fraction": 0.1,
      "cooldown_fraction": 0.5,
      "floor_fraction": 0.0,
    },
    total_steps=100,
  )
  expected = {0: 0.0, 5: 0.05, 10: 0.1, 50: 0.1, 75: 0.05, 100: 0.0}
  for step, rate in expected.items():
    np.testing.assert_allclose(schedule(step), rate, atol=1e-8)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"schedule": "square"}, r"optim.schedule='square' is none of \['cosine', 'trapezoid'\]"),
    ({"cooldown_fraction": 0.8, "warmup_fraction": 0.3}, "together at most 1"),
    ({"floor_fraction": 2.0}, "floor_fraction=2.0"),
    ({"schedule": "cosine"}, r"missing are \['decay_fraction'\]"),
  ],
)
def test_schedules_that_cannot_work_are_named(changes, message):
  settings = {
    "schedule": "trapezoid",
    "learning_rate": 0.1,
    "warmup_fraction": 0.0,
    "cooldown_fraction": 0.5,
    "floor_fraction": 0.0,
  }
  with pytest.raises(UserError, match=message):
    schedules.make(settings | changes, total_steps=100)
