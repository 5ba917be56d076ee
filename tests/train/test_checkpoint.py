"""A checkpoint gives back what was saved, and a run never loses one in silence."""

import os
import shutil
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from looped_lm.errors import UserError
from looped_lm.train import checkpoint
from looped_lm.train.checkpoint import Checkpoints
from looped_lm.types import State

CONFIG = {"seed": 1, "data": {"paths": ("a", "b")}}


def make_state(step, *, width=4, ema=True, tx=None):
  params = {
    "core": {"layer_0": {"kernel": jax.random.normal(jax.random.key(step), (width, width))}},
    "embed": {"table": jnp.arange(8.0) + step},
  }
  tx = tx or optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
  return State(
    step=jnp.asarray(step, jnp.int32),
    params=params,
    ema=jax.tree.map(lambda x: x * 0.5, params) if ema else None,
    opt_state=tx.init(params),
    key=jax.random.key(7),
  )


def abstract(**kwargs):
  return jax.eval_shape(lambda: make_state(0, **kwargs))


def assert_equal(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
      x, y = jax.random.key_data(x), jax.random.key_data(y)
    np.testing.assert_array_equal(x, y)


def steps(directory):
  return sorted(int(name) for name in os.listdir(directory) if name.isdigit())


@pytest.fixture
def directory(tmp_path):
  return str(tmp_path / "checkpoints")


def save_all(directory, losses, **kwargs):
  kwargs = {"keep_latest": 2, "config": CONFIG} | kwargs
  with Checkpoints(directory, **kwargs) as checkpoints:
    for step, loss in losses.items():
      metrics = None if loss is None else {"loss": loss}
      checkpoints.save(make_state(step), data={"next_step": step}, metrics=metrics)


@pytest.mark.parametrize("ema", [True, False])
def test_everything_comes_back(directory, ema):
  state = make_state(3, ema=ema)
  with Checkpoints(directory, keep_latest=1, config=CONFIG) as checkpoints:
    assert checkpoints.latest_step() is None
    assert checkpoints.save(state, data={"next_step": 3})
  with Checkpoints(directory, keep_latest=1, config=CONFIG) as checkpoints:
    got, data = checkpoints.restore(abstract(ema=ema))
  assert_equal(got, state)
  assert data == {"next_step": 3}
  assert checkpoint.saved_config(directory) == {"seed": 1, "data": {"paths": ["a", "b"]}}


def test_saving_a_step_twice_does_nothing(directory):
  with Checkpoints(directory, keep_latest=2, config=CONFIG) as checkpoints:
    assert checkpoints.save(make_state(3), data={"next_step": 3})
    assert not checkpoints.save(make_state(3), data={"next_step": 99})
    checkpoints.wait()
    assert checkpoints.restore(abstract())[1] == {"next_step": 3}
  with Checkpoints(directory, keep_latest=2, config=CONFIG) as checkpoints:
    assert not checkpoints.save(make_state(3), data={"next_step": 99})


def test_an_older_step_is_saved_too(directory):
  """After going back to an earlier checkpoint nothing is skipped in silence."""
  save_all(directory, {5: None, 2: None})
  assert steps(directory) == [2, 5]


@pytest.mark.parametrize(
  ("losses", "kept", "best"),
  [
    ({1: 3.0, 2: 1.0, 3: 2.0, 4: 2.0}, [2, 3, 4], 2),
    ({1: 3.0, 2: None, 3: None, 4: None}, [1, 3, 4], 1),
    ({1: float("nan"), 2: 9.0, 3: float("nan"), 4: float("inf")}, [2, 3, 4], 2),
    ({1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}, [2, 3, 4], 2),
  ],
)
def test_the_latest_and_the_best_are_kept(directory, losses, kept, best):
  save_all(directory, losses, best_metric="loss")
  assert steps(directory) == kept
  with Checkpoints(directory, keep_latest=2, best_metric="loss", config=CONFIG) as checkpoints:
    assert checkpoints.best_step() == best
    assert checkpoints.latest_step() == 4


def test_the_best_may_be_the_highest(directory):
  losses = {1: 0.1, 2: 0.9, 3: 0.2, 4: 0.3}
  save_all(directory, losses, best_metric="loss", best_mode="max")
  assert steps(directory) == [2, 3, 4]


def test_parameters_are_read_alone(directory):
  save_all(directory, {1: 3.0, 2: 1.0, 3: 2.0}, best_metric="loss")
  params = abstract().params
  for which, want in [
    ("params", make_state(3).params),
    ("ema", make_state(3).ema),
    ("best", make_state(2).params),
    ("best_ema", make_state(2).ema),
  ]:
    assert_equal(checkpoint.restore_params(directory, params, which=which), want)
  workdir = os.path.dirname(directory)
  assert_equal(checkpoint.restore_params(workdir, params, step=2), make_state(2).params)


def test_parameters_may_change_their_precision(directory):
  save_all(directory, {1: None})
  half = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), abstract().params)
  got = checkpoint.restore_params(directory, half)
  assert got["core"]["layer_0"]["kernel"].dtype == jnp.bfloat16


def test_what_is_not_there_is_said(directory):
  with pytest.raises(UserError, match="does not exist"):
    checkpoint.restore_params(directory, abstract().params)
  with Checkpoints(directory, keep_latest=1, config=CONFIG) as checkpoints:
    with pytest.raises(UserError, match="no complete checkpoint"):
      checkpoints.restore(abstract())
    checkpoints.save(make_state(3, ema=False), data={})
  with pytest.raises(UserError, match=r"no checkpoint of step 2; it has \[3\]"):
    checkpoint.restore_params(directory, abstract().params, step=2)
  with pytest.raises(UserError, match="no average"):
    checkpoint.restore_params(directory, abstract().params, which="ema")
  with pytest.raises(UserError, match="finite score"):
    checkpoint.restore_params(directory, abstract().params, which="best")
  with pytest.raises(UserError, match="keep_latest=0"):
    Checkpoints(directory, keep_latest=0, config=CONFIG)


@pytest.mark.parametrize(
  ("like", "message"),
  [
    ({"width": 5}, r"has \[4, 4\] float32 at params\['core'\]\['layer_0'\]\['kernel'\].*\[5, 5\]"),
    ({"ema": False}, "has an average of the parameters and the run wants none"),
    ({"tx": optax.sgd(0.1, momentum=0.9)}, r"at opt\['opt_state'\]"),
  ],
)
def test_the_first_leaf_that_differs_is_named(directory, like, message):
  save_all(directory, {3: None})
  checkpoints = Checkpoints(directory, keep_latest=2, config=CONFIG)
  with checkpoints, pytest.raises(UserError, match=message):
    checkpoints.restore(abstract(**like))


def truncate(folder):
  for root, _, files in os.walk(os.path.join(folder, "params")):
    for name in files:
      path = os.path.join(root, name)
      os.truncate(path, os.path.getsize(path) // 2)


def remove_item(folder):
  shutil.rmtree(os.path.join(folder, "opt"))


def scribble(folder):
  with open(os.path.join(folder, "layout", "metadata"), "w") as file:
    file.write("{")


def foreign(folder):
  shutil.rmtree(folder)
  os.makedirs(folder)
  with open(os.path.join(folder, "model.bin"), "w") as file:
    file.write("not ours")


@pytest.mark.parametrize("damage", [truncate, remove_item, scribble, foreign])
def test_a_damaged_checkpoint_names_the_one_before(directory, damage):
  save_all(directory, {3: None, 6: None})
  damage(os.path.join(directory, "6"))
  checkpoints = Checkpoints(directory, keep_latest=2, config=CONFIG)
  with checkpoints, pytest.raises(UserError, match=r"Checkpoint 6 .* damaged or not ours") as error:
    checkpoints.restore(abstract())
  assert "go on from step 3" in str(error.value)
  assert "\n" not in str(error.value)
  shutil.rmtree(os.path.join(directory, "6"))
  with Checkpoints(directory, keep_latest=2, config=CONFIG) as checkpoints:
    assert_equal(checkpoints.restore(abstract())[0], make_state(3))


def test_a_half_written_checkpoint_is_ignored_and_removed(directory):
  save_all(directory, {3: None})
  left = os.path.join(directory, "5.orbax-checkpoint-tmp")
  shutil.copytree(os.path.join(directory, "3"), left)
  with Checkpoints(directory, keep_latest=2, config=CONFIG) as checkpoints:
    assert checkpoints.latest_step() == 3
    checkpoints.save(make_state(6), data={})
  assert not os.path.exists(left)
  assert steps(directory) == [3, 6]


def test_donating_the_saved_arrays_does_no_harm(directory):
  step = jax.jit(lambda s: jax.tree.map(lambda x: x * 2, s), donate_argnums=0)
  state = make_state(3)
  params = jax.tree.map(np.asarray, state.params)
  with Checkpoints(directory, keep_latest=2, config=CONFIG) as checkpoints:
    checkpoints.save(state, data={})
    step(state.params)
    assert_equal(checkpoints.restore(abstract(), step=3)[0].params, params)


def test_an_error_in_the_run_does_not_lose_the_checkpoint(directory):
  def run():
    with Checkpoints(directory, keep_latest=2, config=CONFIG) as checkpoints:
      checkpoints.save(make_state(3), data={})
      raise KeyError

  with pytest.raises(KeyError):
    run()
  assert steps(directory) == [3]


def test_a_full_disk_is_seen_before_writing(directory, monkeypatch):
  save_all(directory, {3: None})
  full = shutil._ntuple_diskusage(100, 100, 0)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
  checkpoints = Checkpoints(directory, keep_latest=2, config=CONFIG)
  with checkpoints, pytest.raises(UserError, match=r"No room .* checkpoint 6 .* one is step 3"):
    checkpoints.save(make_state(6), data={})
  assert steps(directory) == [3]


def run_python(code, *args, env=None):
  """Runs a script that may import this file as `cases`."""
  path = [os.path.dirname(__file__), os.getcwd()]
  env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path)} | (env or {})
  code = "import test_checkpoint as cases\n" + textwrap.dedent(code)
  return subprocess.run(
    [sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, timeout=120
  )


@pytest.mark.slow
def test_a_disk_that_fills_while_writing_leaves_the_last_good_checkpoint(directory):
  """A limit on the size of files stands for the full disk: writing fails half-way."""
  code = """
    import resource, sys
    from looped_lm.errors import UserError
    with cases.Checkpoints(sys.argv[1], keep_latest=2, config={}) as checkpoints:
      checkpoints.save(cases.make_state(3, width=128), data={})
      checkpoints.wait()
      resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
      try:
        checkpoints.save(cases.make_state(6, width=128), data={})
        checkpoints.wait()
      except UserError as error:
        print(error)
  """
  done = run_python(code, directory)
  assert done.returncode == 0, done.stderr
  assert "No room to write checkpoint 6" in done.stdout
  assert "last good one is step 3" in done.stdout
  assert steps(directory) == [3]
  with Checkpoints(directory, keep_latest=2, config=CONFIG) as checkpoints:
    assert_equal(checkpoints.restore(abstract(width=128))[0], make_state(3, width=128))


@pytest.mark.slow
def test_four_devices_restore_what_one_saved_and_back(directory):
  save_all(directory, {3: None})
  code = """
    import sys, jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    assert jax.device_count() == 4
    mesh = Mesh(np.array(jax.devices()), ("x",))
    def spread(x):
      spec = P("x") if x.ndim == 2 else P()
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
    like = jax.tree.map(spread, cases.abstract())
    with cases.Checkpoints(sys.argv[1], keep_latest=2, config={}) as checkpoints:
      state, data = checkpoints.restore(like)
      kernel = state.params["core"]["layer_0"]["kernel"]
      assert kernel.addressable_shards[0].data.shape == (1, 4), kernel.sharding
      assert state.key.sharding.is_fully_replicated and len(state.key.devices()) == 4
      cases.assert_equal(state, cases.make_state(3))
      checkpoints.save(state.replace(step=state.step + 1), data=data)
  """
  done = run_python(code, directory, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4"})
  assert done.returncode == 0, done.stderr
  with Checkpoints(directory, keep_latest=2, config=CONFIG) as checkpoints:
    got, data = checkpoints.restore(abstract())
  assert_equal(got.replace(step=got.step - 1), make_state(3))
  assert data == {"next_step": 3}
