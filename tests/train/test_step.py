"""The step: the same on one device and on four, in one piece and in parts."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from looped_lm import jobs
from looped_lm.train import parallel, step


@pytest.fixture(scope="module")
def experiment(tiny_config):
  config = tiny_config()
  config["train"]["total_steps"] = 8
  return jobs.build(config)


def make_step(experiment, micro_batches=1):
  train = experiment.config["train"] | {"micro_batches": micro_batches}
  config = {**experiment.config, "train": train}
  return dataclasses.replace(experiment, config=config).train_step()


def run(experiment, compiled, *, split, state=None):
  state, losses = state or experiment.initial_state(), []
  for number in range(8):
    state, figures = compiled(state, split(experiment.pipeline.batch_at(number)))
    losses.append(float(figures["loss_nats"][0]))
  return state, np.array(losses), figures


@pytest.fixture(scope="module")
def single(experiment):
  return run(experiment, jax.jit(make_step(experiment)), split=lambda batch: batch)


@pytest.mark.slow
def test_one_device_equals_four_with_dropout(experiment, single):
  strategy = experiment.strategy
  assert jax.device_count() == 4
  state, losses, figures = run(
    experiment, strategy.compile_step(make_step(experiment)), split=strategy.split
  )
  np.testing.assert_allclose(losses, single[1], atol=1e-5)
  for name, (total, weight) in single[2].items():
    np.testing.assert_allclose(figures[name][1], weight, rtol=1e-6)
    np.testing.assert_allclose(figures[name][0], total, rtol=2e-3)
  # Every device holds the same parameters, bit for bit.
  for leaf in jax.tree.leaves(state.params):
    shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
    assert all((shard == shards[0]).all() for shard in shards)


def mesh(experiment, **sizes):
  return parallel.make(experiment.config["parallel"] | {"strategy": "mesh"} | sizes)


@pytest.mark.parametrize(
  ("sizes", "micro_batches"),
  [
    # All axes at once, and one by one.
    pytest.param({"fsdp": 2, "tensor": 2}, 1, marks=pytest.mark.slow),
    pytest.param({}, 1, marks=pytest.mark.nightly),
    pytest.param({"fsdp": 4}, 1, marks=pytest.mark.nightly),
    pytest.param({"tensor": 2}, 1, marks=pytest.mark.nightly),
    pytest.param({"fsdp": 2}, 2, marks=pytest.mark.nightly),
  ],
  ids=str,
)
def test_one_device_equals_a_mesh_with_dropout(experiment, single, sizes, micro_batches):
  strategy = mesh(experiment, **sizes)
  placed = dataclasses.replace(experiment, strategy=strategy)
  compiled = strategy.compile_step(make_step(experiment, micro_batches))
  state, losses, _ = run(experiment, compiled, split=strategy.split, state=placed.create_state())
  # Products split over `tensor` are summed in another order, so the last digits of 6.6 nats differ.
  tolerance = {"atol": 2e-5 if "tensor" in sizes else 1e-5}
  np.testing.assert_allclose(losses, single[1], **tolerance)
  for ours, theirs in zip(
    jax.tree.leaves(state.params), jax.tree.leaves(single[0].params), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, atol=2e-4)
  # State goes out as it lies in checkpoints, so that no step compiles anew.
  like = jax.tree.leaves(strategy.like_saved(experiment.abstract_state()))
  for ours, wanted in zip(jax.tree.leaves(state), like, strict=True):
    assert ours.sharding.is_equivalent_to(wanted.sharding, ours.ndim)


def test_a_device_that_differs_is_found_and_named(experiment):
  """The fault of pmap: what was not summed over the devices is different on each of them."""
  strategy, state = experiment.strategy, experiment.initial_state()

  def faulty(state, batch, *, axis_name):
    params = dict(state.params)
    odd = (jax.lax.axis_index(axis_name) == 2).astype("float32")
    params["injection"] = params["injection"] | {"A_log": state.params["injection"]["A_log"] + odd}
    return state.replace(params=params), {}

  batch = strategy.split(experiment.pipeline.batch_at(0))
  placed = strategy.replicate(state)
  assert strategy.diverged(placed) is None
  state, _ = strategy.compile_step(faulty)(placed, batch)
  assert strategy.diverged(state) == "state.params['injection']['A_log']"


@pytest.mark.slow
def test_two_accumulated_half_batches_equal_one(experiment):
  """Loss and gradients; after one step of plain descent the parameters differ as gradients do."""
  batch = experiment.pipeline.batch_at(0)
  results = []
  for micro_batches in (1, 2):
    train_step = step.make_train_step(
      model=experiment.model,
      objective=experiment.objective,
      tx=optax.sgd(1.0),
      schedule=lambda count: 1.0,
      total_steps=8,
      micro_batches=micro_batches,
      ema_decay=0.0,
    )
    state = experiment.initial_state()
    state = state.replace(opt_state=optax.sgd(1.0).init(state.params), ema=None)
    results.append(jax.jit(train_step)(state, batch))
  (ours, our_figures), (theirs, their_figures) = results
  for a, b in zip(jax.tree.leaves(ours.params), jax.tree.leaves(theirs.params), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
  for name in ("loss_nats", "grad_norm"):
    np.testing.assert_allclose(our_figures[name][0], their_figures[name][0], atol=1e-5)


def test_the_loss_mixes_the_means_of_both_modes(experiment, single):
  _, losses, figures = single
  objective = experiment.config["objective"]

  def mean(name):
    total, weight = figures[name]
    return float(total) / float(weight)

  def cost(mode):
    return mean(f"{mode}/loss_nats") + objective["z_loss_weight"] * mean(f"{mode}/z_loss")

  r = objective["mntp_fraction"]
  assert losses[-1] == pytest.approx(r * cost("mntp") + (1 - r) * cost("clm"), rel=1e-5)
  # The modes hold different numbers of tokens, so one mean over all would be another figure.
  assert figures["mntp/loss_nats"][1] < 0.8 * r * figures["clm/loss_nats"][1]


def test_the_average_follows_the_parameters(experiment, single):
  state = single[0]
  start = experiment.initial_state()
  for name in ("B", "dt_bias"):
    now, average = state.params["injection"][name], state.ema["injection"][name]
    began = start.params["injection"][name]
    moved = np.abs(now - began).max()
    assert 0 < np.abs(average - began).max() < 0.02 * moved


def test_steps_do_not_repeat_their_draws(experiment):
  state = experiment.initial_state()
  batch = experiment.pipeline.batch_at(0)
  draw = jax.jit(lambda key: experiment.objective.draw(batch, key=key, progress=0.0))
  keys = [jax.random.fold_in(state.key, number) for number in (0, 1)]
  tokens = [np.asarray(draw(key).inputs.tokens_BT) for key in keys]
  assert (tokens[0] != tokens[1]).any()


@pytest.mark.slow
def test_a_step_that_jumps_is_left_out_and_logged(experiment):
  """On four devices, from a state that has seen nothing and from one that has seen lower losses."""
  config = {
    **experiment.config,
    "train": experiment.config["train"] | {"skip_sigmas": 6.0},
    "optim": experiment.config["optim"] | {"warmup_fraction": 0.0},
  }
  experiment = dataclasses.replace(experiment, config=config)
  strategy, compiled = experiment.strategy, experiment.strategy.compile_step(make_step(experiment))
  for seen, skipped in ((0, False), (64, True)):
    state = experiment.initial_state()
    lower = state.opt_state.seen_2W + 0.01
    opt_state = state.opt_state._replace(seen_2W=lower, steps=state.opt_state.steps + seen)
    before = jax.tree.map(np.array, state.params)
    batch = strategy.split(experiment.pipeline.batch_at(0))
    after, figures = compiled(strategy.replicate(state.replace(opt_state=opt_state)), batch)
    assert float(figures["skipped"][0]) == skipped
    same = jax.tree.map(lambda a, b: bool((a == b).all()), before, after.params)
    assert all(jax.tree.leaves(same)) is skipped
    assert int(after.step) == 1
    assert int(after.opt_state.steps) == seen + 1


@pytest.mark.nightly
def test_sampled_depth_is_the_same_on_four_devices_and_in_parts(tiny_config):
  """Rows of different depth, dropout on; every device and micro-batch has its own longest row."""
  config = tiny_config()
  config["train"] |= {"total_steps": 3, "micro_batches": 1}
  config["model"] |= {"embed_dim": 16, "remat": "none"}
  config["model"]["block"] |= {"mlp_dim": 16}
  config["model"]["depth"] |= {"name": "poisson", "mean_loops": 4.0, "max_loops": 9}
  config["model"]["depth"] |= {"grad_loops": 2, "curriculum": "linear"}
  experiment = jobs.build(config)

  def losses(micro_batches, compile_step, split):
    train_step = step.make_train_step(
      model=experiment.model,
      objective=experiment.objective,
      tx=experiment.tx,
      schedule=experiment.schedule,
      total_steps=experiment.total_steps,
      micro_batches=micro_batches,
      ema_decay=0.0,
    )
    compiled, state, rows = compile_step(train_step), experiment.initial_state(), []
    for number in range(3):
      state, figures = compiled(state, split(experiment.pipeline.batch_at(number)))
      rows.append({name: float(total / weight) for name, (total, weight) in figures.items()})
    if compile_step is jax.jit:
      assert compiled._cache_size() == 1
    return rows

  strategy = experiment.strategy
  single = losses(1, jax.jit, lambda batch: batch)
  spread = losses(2, strategy.compile_step, strategy.split)
  for ours, theirs in zip(single, spread, strict=True):
    assert ours["loss_nats"] == pytest.approx(theirs["loss_nats"], abs=1e-5)
    assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    for name in ("loops/mean", "loops/max"):
      assert ours[name] == theirs[name]
  assert 1.0 <= single[0]["loops/mean"] < single[2]["loops/mean"] < single[2]["loops/max"] <= 9
