"""LAMB by hand, the decayed group, and the schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.models import looped
from looped_lm.optim import adamw, lamb, masks, schedules

HYPER = {"weight_decay": 0.1, "b1": 0.9, "b2": 0.98, "eps": 1e-8, "clip_norm": 2.0}


def one_step(optimizer, params, grads, rate):
  tx = optimizer.build(lambda count: rate)
  updates, _ = tx.update(grads, tx.init(params), params)
  return jax.tree.map(jnp.add, params, updates)


def test_lamb_by_hand():
  params = {"kernel": jnp.array([3.0, 4.0]), "bias": jnp.array([2.0])}
  grads = {"kernel": jnp.array([0.6, -0.6]), "bias": jnp.array([0.3])}
  new = one_step(lamb.Optimizer(**HYPER), params, grads, 0.01)
  # The first Adam update is the gradient's sign. Kernel: decayed, then scaled to ‖w‖ = 5.
  update = np.array([1.0, -1.0]) + 0.1 * np.array([3.0, 4.0])
  expected = np.array([3.0, 4.0]) - 0.01 * 5.0 / np.linalg.norm(update) * update
  np.testing.assert_allclose(new["kernel"], expected, rtol=1e-6)
  # Bias: plain Adam at the full rate, no decay.
  np.testing.assert_allclose(new["bias"], 2.0 - 0.01, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [lamb.Optimizer(**HYPER), adamw.Optimizer(**HYPER)])
def test_a_large_gradient_is_clipped_before_the_moments(optimizer):
  tx = optimizer.build(lambda count: 0.01)
  params = {"bias": jnp.array([5.0])}
  state = tx.init(params)
  for gradient in (100.0, 2.0):
    updates, state = tx.update({"bias": jnp.array([gradient])}, state, params)
  # Cut to 2, both gradients are the same, and Adam's update is their sign.
  np.testing.assert_allclose(updates["bias"], -0.01, rtol=1e-5)


def test_lamb_leaves_a_zero_tensor_at_ratio_one():
  params = {"kernel": jnp.zeros(2), "other": {"kernel": jnp.ones(2)}}
  grads = {"kernel": jnp.array([30.0, -40.0]), "other": {"kernel": jnp.zeros(2)}}
  new = one_step(lamb.Optimizer(**HYPER), params, grads, 0.01)
  np.testing.assert_allclose(new["kernel"], [-0.01, 0.01], rtol=1e-6)


def test_adamw_decays_the_same_group():
  params = {"kernel": jnp.array([3.0]), "bias": jnp.array([1.0])}
  grads = {"kernel": jnp.array([0.5]), "bias": jnp.array([0.5])}
  new = one_step(adamw.Optimizer(**HYPER), params, grads, 0.01)
  np.testing.assert_allclose(new["kernel"], 3.0 - 0.01 * (1.0 + 0.3), rtol=1e-6)
  np.testing.assert_allclose(new["bias"], 0.99, rtol=1e-6)


def test_the_decayed_group_is_the_references(tiny_config):
  model = looped.build(tiny_config()["model"], vocab_size=50)
  decayed = masks.decayed(jax.eval_shape(model.init, jax.random.key(0)))
  names = {
    "/".join(key.key for key in path): flag
    for path, flag in jax.tree_util.tree_leaves_with_path(decayed)
  }
  assert names["embed/embedding"]
  assert names["shared/positions/embedding"]
  assert names["core/layers_0/mix_mlp/alpha"]
  assert names["injection/B"]
  plain = {name.rsplit("/", 1)[1] for name, flag in names.items() if not flag}
  assert plain == {"bias", "scale", "A_log", "dt_bias"}


def test_the_papers_schedule():
  schedule = schedules.warmup_cosine(
    learning_rate=0.0141,
    warmup_fraction=0.016,
    decay_fraction=2600 / 4080,
    floor_fraction=0.1,
    total_steps=4080,
  )
  for step, expected in {0: 0.0, 65: 0.0141, 2600: 0.00141, 4079: 0.00141}.items():
    np.testing.assert_allclose(schedule(step), expected, rtol=1e-6)
  assert float(schedule(1)) == pytest.approx(0.0141 / 65, rel=1e-5)
  assert float(schedule(1300)) > float(schedule(1301)) > 0.00141


@pytest.mark.parametrize(
  ("warmup", "decay", "floor"),
  [(0.5, 0.4, 0.1), (-0.1, 1.0, 0.1), (0.0, 1.1, 0.1), (0.0, 1.0, 2.0)],
)
def test_fractions_that_cannot_work_are_named(warmup, decay, floor):
  with pytest.raises(UserError, match=r"optim\."):
    schedules.warmup_cosine(
      learning_rate=1.0,
      warmup_fraction=warmup,
      decay_fraction=decay,
      floor_fraction=floor,
      total_steps=100,
    )
