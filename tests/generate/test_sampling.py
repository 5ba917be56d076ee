import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.generate.sampling import Sampling, choose, kept

P = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
LOGITS = jnp.log(jnp.asarray(P, jnp.float32))[None]
NONE_SEEN = jnp.zeros((1, 5), bool)


def staying(**settings):
  return np.isfinite(np.asarray(kept(LOGITS, Sampling(**settings))[0])).tolist()


@pytest.mark.parametrize(
  ("settings", "number"),
  [
    ({}, 5),
    ({"top_k": 2}, 2),
    ({"top_k": 9}, 5),
    ({"top_p": 0.4}, 1),
    ({"top_p": 0.6}, 2),
    ({"top_p": 0.71}, 3),
    ({"min_p": 0.35}, 2),
    ({"min_p": 0.25}, 3),
    ({"top_k": 3, "min_p": 0.35}, 2),
    # The cut by probability is of what top-k left: 0.59, 0.24, 0.18.
    ({"top_k": 3, "top_p": 0.8}, 2),
  ],
)
def test_a_cut_keeps_the_likeliest(settings, number):
  assert staying(**settings) == [True] * number + [False] * (5 - number)


def test_a_cut_does_not_depend_on_the_order_of_the_vocabulary():
  order = np.array([3, 0, 4, 2, 1])
  logits = LOGITS[:, order]
  got = np.isfinite(np.asarray(kept(logits, Sampling(top_p=0.6))[0]))
  assert set(order[got]) == {0, 1}


def test_greedy_takes_the_likeliest_and_needs_no_key():
  key = jax.random.split(jax.random.key(0), 1)
  assert int(choose(LOGITS, NONE_SEEN, key, Sampling(temperature=0.0))[0]) == 0


def test_the_penalty_divides_what_is_positive_and_multiplies_what_is_negative():
  logits = jnp.asarray([[2.0, 1.5, -1.0, -1.2]])
  seen = jnp.asarray([[True, False, True, False]])
  key = jax.random.split(jax.random.key(0), 1)
  greedy = Sampling(temperature=0.0, repetition_penalty=1.5)
  assert int(choose(logits, seen, key, greedy)[0]) == 1  # 2 / 1.5 < 1.5.
  assert int(choose(-logits, ~seen, key, greedy)[0]) == 2  # 1 stays ahead of 1.2 / 1.5.
  assert int(choose(-logits, NONE_SEEN[:, :4], key, greedy)[0]) == 3


@pytest.mark.parametrize(("temperature", "power"), [(1.0, 1.0), (0.5, 2.0)])
def test_draws_follow_the_probabilities(temperature, power):
  number = 20_000
  keys = jax.random.split(jax.random.key(1), number)
  draw = jax.jit(lambda logits, seen, keys: choose(logits, seen, keys, sampling))
  sampling = Sampling(temperature=temperature)
  rows = jnp.broadcast_to(LOGITS, (number, 5))
  got = np.bincount(draw(rows, jnp.zeros((number, 5), bool), keys), minlength=5) / number
  want = P**power / (P**power).sum()
  np.testing.assert_allclose(got, want, atol=4 * np.sqrt(0.25 / number))


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"temperature": -0.1}, r"generate.temperature=-0.1 must be at least 0"),
    ({"top_k": -1}, r"generate.top_k=-1"),
    ({"top_p": 0.0}, r"generate.top_p=0.0 must lie in \(0, 1\]"),
    ({"min_p": 1.0}, r"generate.min_p=1.0 must lie in \[0, 1\)"),
    ({"repetition_penalty": 0.0}, r"generate.repetition_penalty=0.0"),
  ],
)
def test_a_wrong_setting_is_named(settings, message):
  with pytest.raises(UserError, match=message):
    Sampling(**settings)
