"""How many loops rows take: distributions, caps, curricula, and independence of the layout."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.nn import depth

KEY, ROWS = jax.random.key(7), jnp.arange(4000)
# Settings, and the mean without a cap, from the distributions' own formulas.
KINDS = [
  ({"name": "poisson", "mean_loops": 8.0, "max_loops": 60}, 8.0 + math.exp(-8.0)),
  ({"name": "poisson", "mean_loops": 1.0, "max_loops": 20}, 1.0 + math.exp(-1.0)),
  ({"name": "lognormal_poisson", "mean_loops": 8.0, "max_loops": 400, "log_std": 0.5}, 9.0),
  ({"name": "uniform", "max_loops": 6}, 3.5),
  ({"name": "uniform", "min_loops": 3, "max_loops": 6}, 4.5),
  # Σ t ln((t + 1) / t) over 1 .. n telescopes to n ln(n + 1) - ln n!.
  ({"name": "log_uniform", "max_loops": 30}, 30 - math.lgamma(31.0) / math.log(31.0)),
]


def make(settings, num_loops=8):
  return depth.make(settings, num_loops=num_loops)


def draw(settings, rows=ROWS, key=KEY, progress=1.0):
  sampler = make(settings)
  return np.asarray(jax.jit(lambda rows: sampler.draw(rows, key=key, progress=progress))(rows))


@pytest.mark.parametrize(
  ("settings", "mean"), KINDS, ids=lambda x: x["name"] if isinstance(x, dict) else ""
)
def test_means_are_those_of_the_distribution(settings, mean):
  loops = draw(settings)
  error = loops.std() / math.sqrt(len(loops))
  assert abs(loops.mean() - mean) < 4 * error
  assert make(settings).executed(1).mean == pytest.approx(mean, rel=1e-4)
  assert loops.min() >= settings.get("min_loops", 1)


def test_the_spread_of_the_rates_is_the_log_normal_s():
  """Var = μ + μ² (exp s² - 1): a Poisson's, and its rate's."""
  loops = draw({"name": "lognormal_poisson", "mean_loops": 8.0, "max_loops": 400, "log_std": 0.5})
  assert loops.var() == pytest.approx(8.0 + 64.0 * math.expm1(0.25), rel=0.15)


def test_every_doubling_of_a_log_uniform_is_as_likely():
  loops = draw({"name": "log_uniform", "max_loops": 15})
  share = [np.mean((loops >= low) & (loops < 2 * low)) for low in (1, 2, 4, 8)]
  np.testing.assert_allclose(share, 0.25, atol=4 * math.sqrt(0.25 * 0.75 / len(loops)))


@pytest.mark.parametrize("name", ["poisson", "lognormal_poisson"])
def test_the_cap_takes_the_tail_and_nothing_else(name):
  settings = {"name": name, "mean_loops": 5.0, "log_std": 0.5}
  free, capped = draw(settings | {"max_loops": 100}), draw(settings | {"max_loops": 6})
  np.testing.assert_array_equal(capped, np.minimum(free, 6))
  assert draw(settings | {"mean_loops": 1.0, "max_loops": 1}).max() == 1


@pytest.mark.parametrize(
  ("curriculum", "halfway"), [("none", 9.0), ("linear", 5.0), ("one_minus_sqrt", 9 - 8 * 0.5**0.5)]
)
def test_a_curriculum_moves_the_mean(curriculum, halfway):
  settings = {"name": "poisson", "mean_loops": 9.0, "max_loops": 60, "curriculum": curriculum}
  settings |= {"start_loops": 1.0, "curriculum_fraction": 0.5}
  for progress, mean in ((0.25, halfway), (0.5, 9.0), (1.0, 9.0)):
    loops = draw(settings, progress=progress)
    assert abs(loops.mean() - mean - math.exp(-mean)) < 4 * loops.std() / math.sqrt(len(loops))
  if curriculum != "none":
    assert draw(settings, progress=0.0).mean() == pytest.approx(1 + math.exp(-1), abs=0.05)


@pytest.mark.parametrize("name", ["uniform", "log_uniform"])
def test_a_curriculum_moves_the_upper_end(name):
  settings = {"name": name, "max_loops": 9, "curriculum": "linear"}
  assert [draw(settings, progress=p).max() for p in (0.0, 0.5, 1.0)] == [1, 5, 9]


def test_a_row_draws_the_same_in_any_company_and_steps_draw_apart():
  settings = {"name": "poisson", "mean_loops": 8.0, "max_loops": 60}
  together = draw(settings, rows=jnp.arange(12))
  np.testing.assert_array_equal(draw(settings, rows=jnp.array([7, 2])), together[[7, 2]])
  assert len(set(together)) > 1
  assert (draw(settings, key=jax.random.fold_in(KEY, 1)) != draw(settings)).mean() > 0.5


def test_per_batch_all_rows_of_all_devices_agree():
  settings = {"name": "uniform", "max_loops": 50, "per": "batch"}
  first, second = draw(settings, rows=jnp.array([3, 8]))
  assert first == second == draw(settings, rows=jnp.array([0]))[0]
  sampler, keys = make(settings), jax.random.split(KEY, 40)
  drawn = jax.vmap(lambda key: sampler.draw(jnp.arange(2), key=key, progress=1.0))(keys)
  assert len(set(np.asarray(drawn)[:, 0].tolist())) > 20


def test_what_a_batch_executes():
  """By simulation: a batch runs as long as its longest row, the last K loops with gradient."""
  settings = {"name": "poisson", "mean_loops": 8.0, "max_loops": 60, "grad_loops": 4}
  loops = draw(settings, rows=jnp.arange(16_000)).reshape(-1, 16)
  executed = make(settings).executed(16)
  assert executed.grad == 4
  assert executed.prefix == pytest.approx((loops.max(axis=1) - 4).mean(), rel=0.02)
  assert executed.prefix + executed.grad == pytest.approx(13.3, abs=0.1)  # As others simulated it.
  alone = make(settings).executed(1)
  assert alone.prefix == pytest.approx(np.maximum(loops - 4, 0).mean(), rel=0.02)
  assert alone.grad == pytest.approx(np.minimum(loops, 4).mean(), rel=0.02)
  # Rows that all take the same never wait, and skip what none of them takes.
  whole = make({"name": "uniform", "max_loops": 6, "per": "batch"}).executed(16)
  assert (whole.prefix, whole.grad) == (0.0, pytest.approx(3.5))
  half = make(settings | {"curriculum": "linear", "start_loops": 2.0}).executed(1)
  assert half.mean == pytest.approx(5.0, abs=0.1)
  fixed = make({"name": "fixed", "grad_loops": 3}).executed(16)
  assert (fixed.mean, fixed.prefix, fixed.grad) == (8, 5, 3)


def test_one_group_holds_the_settings_of_all():
  settings = {"mean_loops": 4.0, "max_loops": 9, "log_std": 0.5, "min_loops": 1, "per": "batch"}
  for name in depth.SAMPLERS:
    assert make({"name": name, **settings}).trained_loops == (8 if name == "fixed" else 9)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"name": "poison"}, "model.depth.name='poison' is none of .* Did you mean 'poisson'"),
    ({}, "model.depth.name=None is none of"),
    ({"name": "fixed", "grad_loops": 9}, r"grad_loops=9 must lie in \[1, model.num_loops=8\]"),
    ({"grad_loops": 21}, r"grad_loops=21 must lie in \[1, model.depth.max_loops=20\]"),
    ({"grad_loops": -1}, "grad_loops=-1 must lie in"),
    ({"max_loops": 0}, "max_loops=0 must be at least 1"),
    ({"mean_loops": 0.0}, r"mean_loops=0.0 must lie in \[1, model.depth.max_loops=20\]"),
    ({"mean_loops": 21.0}, "mean_loops=21.0 must lie in"),
    ({"per": "token"}, "per='token' is none of"),
    ({"curriculum": "cosine"}, "curriculum='cosine' is none of"),
    ({"start_loops": 0.5}, "start_loops=0.5 must lie in"),
    ({"curriculum_fraction": 0.0}, r"curriculum_fraction=0.0 must lie in \(0, 1\]"),
    ({"name": "lognormal_poisson"}, "'lognormal_poisson' needs model.depth.log_std"),
    ({"name": "lognormal_poisson", "log_std": 0.0}, "log_std=0.0 must lie in"),
    ({"name": "uniform", "min_loops": 0}, "min_loops=0 must lie in"),
    (
      {"name": "uniform", "min_loops": 3, "curriculum": "linear"},
      "start_loops=1.0 must be at least",
    ),
    ({"mean_lops": 3.0}, "mean_lops is not a setting.*Did you mean model.depth.mean_loops"),
  ],
)
def test_bad_settings_get_one_clear_line(settings, message):
  base = {"name": "poisson", "mean_loops": 8.0, "max_loops": 20} if settings else {}
  with pytest.raises(UserError, match=message) as error:
    make(base | settings)
  assert "\n" not in str(error.value)
