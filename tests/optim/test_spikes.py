"""Steps that jump are left out, and nothing else changes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from looped_lm.optim import spikes
from looped_lm.train.checkpoint import Checkpoints
from looped_lm.types import State

SIGMAS = 6.0


@pytest.fixture(scope="module")
def adam():
  """The rule around an optimiser, its step compiled once."""
  tx = spikes.skip(optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(rate)), sigmas=SIGMAS)
  return tx, jax.jit(lambda grads, state, loss: tx.update(grads, state, loss=loss))


def rate(count):
  return 1.0 + count


def ordinary(number):
  """Loss and gradient of a step, a little different every time."""
  wave = float(np.sin(number))
  return 3.0 + 0.1 * wave, {"w": jnp.array([1.0 + 0.1 * wave, 0.0])}


def run(adam, steps, state=None):
  """Takes the steps (loss, gradient), and gives each one's update and what follows."""
  tx, update = adam
  state, updates = state or tx.init({"w": jnp.zeros(2)}), []
  for loss, grads in steps:
    update_now, state = update(grads, state, jnp.float32(loss))
    updates.append(np.asarray(update_now["w"]))
  return updates, state


@functools.cache
def after(adam, count):
  """The state after so many ordinary steps."""
  begun = 64 if count > 64 else 0
  state = after(adam, begun) if begun else None
  return run(adam, [ordinary(number) for number in range(begun, count)], state)[1]


@pytest.mark.parametrize(
  ("loss", "grads"),
  [(9.0, ordinary(64)[1]), (ordinary(64)[0], {"w": jnp.array([9.0, 0.0])})],
  ids=["loss", "gradient"],
)
def test_a_jump_changes_nothing_but_the_count(adam, loss, grads):
  before = after(adam, 64)
  (update,), state = run(adam, [(loss, grads)], before)
  assert bool(state.skipped)
  np.testing.assert_array_equal(update, 0.0)
  (adam_before, rate_before), (adam_now, rate_now) = before.inner, state.inner
  np.testing.assert_array_equal(adam_now.mu["w"], adam_before.mu["w"])
  np.testing.assert_array_equal(adam_now.nu["w"], adam_before.nu["w"])
  # The learning rate is that of the step, whatever was left out before.
  assert int(rate_now.count) == int(rate_before.count) + 1 == 65
  (update,), state = run(adam, [ordinary(65)], state)
  assert not bool(state.skipped)
  assert update[0] > 0


def test_without_a_jump_the_optimiser_is_as_it_was(adam):
  plain = optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(rate))
  state, expected, step = plain.init({"w": jnp.zeros(2)}), [], jax.jit(plain.update)
  for number in range(70):
    update, state = step(ordinary(number)[1], state)
    expected.append(update["w"])
  updates, _ = run(adam, [ordinary(number) for number in range(70)])
  np.testing.assert_allclose(updates, expected, rtol=1e-6)


def test_the_limit_is_deviations_of_the_last_steps_above_their_mean(adam):
  """Of 128 steps, so of 150 the first 22 no longer count."""
  state = after(adam, 150)
  losses = np.array([ordinary(number)[0] for number in range(22, 150)])
  limit = losses.mean() + SIGMAS * losses.std(ddof=1)
  for loss, skipped in ((limit - 1e-3, False), (limit + 1e-3, True), (0.0, False)):
    assert bool(run(adam, [(loss, ordinary(150)[1])], state)[1].skipped) is skipped


def test_64_steps_must_have_been_seen(adam):
  for count, skipped in ((63, False), (64, True)):
    assert bool(run(adam, [(99.0, ordinary(0)[1])], after(adam, count))[1].skipped) is skipped


def test_a_lasting_change_is_no_jump_for_long(adam):
  steps = [(9.0 + 0.1 * np.sin(number), ordinary(number)[1]) for number in range(128)]
  state, skipped = after(adam, 128), []
  for each in steps:
    state = run(adam, [each], state)[1]
    skipped.append(bool(state.skipped))
  assert skipped[0]
  assert not any(skipped[20:])


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_what_is_not_finite_is_left_to_the_run(adam, loss):
  (update,), state = run(adam, [(loss, {"w": jnp.array([np.nan, 0.0])})], after(adam, 64))
  assert not bool(state.skipped)
  assert np.isnan(update[0])


def test_figures_are_there_with_the_rule_alone(adam):
  state = after(adam, 64)
  assert spikes.figures(state) == {"skipped": (0.0, 1.0)}
  assert spikes.figures(run(adam, [(99.0, ordinary(0)[1])], state)[1]) == {"skipped": (1.0, 1.0)}
  assert spikes.figures(optax.sgd(1.0).init({"w": jnp.zeros(2)})) == {}


def test_a_checkpoint_keeps_what_the_rule_remembers(adam, tmp_path):
  opt_state = after(adam, 64)
  params = {"w": jnp.zeros(2)}
  state = State(
    step=jnp.int32(64), params=params, ema=None, opt_state=opt_state, key=jax.random.key(0)
  )
  with Checkpoints(str(tmp_path), keep_latest=1, config={}) as checkpoints:
    checkpoints.save(state, data={"next_step": 64})
  like = jax.eval_shape(lambda: state)
  with Checkpoints(str(tmp_path), keep_latest=1, config={}) as checkpoints:
    restored, _ = checkpoints.restore(like)
  for each in (9.0, ordinary(64)[0]):
    (ours,), now = run(adam, [(each, ordinary(64)[1])], restored.opt_state)
    (theirs,), then = run(adam, [(each, ordinary(64)[1])], opt_state)
    assert bool(now.skipped) == bool(then.skipped) == (each == 9.0)
    np.testing.assert_array_equal(ours, theirs)
