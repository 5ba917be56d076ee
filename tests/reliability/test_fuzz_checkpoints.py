"""Whatever becomes of a checkpoint's files: the state that was saved, or one line that says why."""

import os
import shutil

import hypothesis
from hypothesis import example, given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.train import checkpoint
from looped_lm.train.checkpoint import Checkpoints
from looped_lm.types import State

STEPS = (3, 6)
CONFIG = {"seed": 1}


def make_state(step):
  params = {
    "kernel": jax.random.normal(jax.random.key(step), (128, 128)),
    "bias": jnp.ones(3) * step,
  }
  return State(
    step=jnp.int32(step),
    params=params,
    ema=jax.tree.map(lambda x: x / 2, params),
    opt_state={"mu": params},
    key=jax.random.key(step),
  )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A folder of two checkpoints, and what they hold."""
  folder = tmp_path_factory.mktemp("whole")
  with Checkpoints(
    str(folder / "checkpoints"), keep_latest=2, best_metric="loss", config=CONFIG
  ) as checkpoints:
    for step in STEPS:
      checkpoints.save(make_state(step), data={"next_step": step}, metrics={"loss": 1.0 / step})
  return folder / "checkpoints", {step: make_state(step) for step in STEPS}


LIKE = jax.eval_shape(lambda: make_state(0))


def remove(path, part, content):
  os.remove(path)


def truncate(path, part, content):
  os.truncate(path, int(os.path.getsize(path) * part))


def flip(path, part, content):
  with open(path, "r+b") as file:
    old = bytearray(file.read())
    if old:
      old[int(len(old) * part)] ^= 1 << len(content) % 8
    file.seek(0)
    file.write(old)


def flip_numbers(path, part, content):
  """A bit of a number, which no format would miss: in the largest file of the latest parameters."""
  files = files_of(os.path.join(path.partition("/checkpoints/")[0], "checkpoints", "6", "params"))
  if files:
    flip(max(files, key=os.path.getsize), part, content)


def scribble(path, part, content):
  with open(path, "r+b") as file:
    file.seek(int(os.path.getsize(path) * part))
    file.write(content)


def lengthen(path, part, content):
  with open(path, "ab") as file:
    file.write(content)


def replace(path, part, content):
  with open(path, "wb") as file:
    file.write(content)


def remove_folder(path, part, content):
  shutil.rmtree(os.path.dirname(path))


def make_folder(path, part, content):
  os.remove(path)
  os.mkdir(path)


def add(path, part, content):
  """A file of a name that means something beside or inside the checkpoint."""
  names = ("7", "notes.txt", "9.orbax-checkpoint-tmp", "params", "_CHECKPOINT_METADATA", "010")
  folder = os.path.dirname(path) if part < 0.5 else os.path.dirname(os.path.dirname(path))
  target = os.path.join(folder, names[len(content) % len(names)])
  if not os.path.exists(target):
    with open(target, "wb") as file:
      file.write(content)


DAMAGES = (
  remove,
  truncate,
  flip,
  flip_numbers,
  scribble,
  lengthen,
  replace,
  remove_folder,
  make_folder,
  add,
)
DAMAGE = st.tuples(
  st.sampled_from(DAMAGES),
  st.integers(0, 10**6),
  st.floats(0, 1, exclude_max=True),
  st.binary(min_size=1, max_size=9),
)


def files_of(folder):
  return sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)


def or_one_line(read):
  try:
    return read()
  except UserError as error:
    said = str(error)
  assert "\n" not in said
  return None


def assert_equal(a, b):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
      x, y = jax.random.key_data(x), jax.random.key_data(y)
    np.testing.assert_array_equal(x, y)


def run_again(folder):
  with Checkpoints(folder, keep_latest=2, best_metric="loss", config=CONFIG) as checkpoints:
    return checkpoints.restore(LIKE)


def steps_of(folder):
  return [step for step in STEPS if (folder / str(step)).is_dir()]


def params(which):
  return lambda folder: checkpoint.restore_params(folder, LIKE.params, which=which)


READERS = {
  "resume": run_again,
  "params": params("params"),
  "best": params("best"),
  "ema": params("ema"),
  "config": checkpoint.saved_config,
}


# Shrinking a case of a second takes minutes; the case says enough as it is.
@hypothesis.settings(phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@given(
  damages=st.lists(DAMAGE, min_size=1, max_size=2),
  reader=st.sampled_from(["resume", *READERS]),
)
@example([(flip_numbers, 0, 0.5, b"a")], "params")
@example([(flip_numbers, 0, 0.7, b"a")], "resume")
def test_the_state_that_was_saved_or_one_line(whole, tmp_path_factory, damages, reader):
  original, states = whole
  folder = tmp_path_factory.mktemp("damaged") / "checkpoints"
  shutil.copytree(original, folder)
  for damage, number, part, content in damages:
    if files := files_of(folder):
      damage(files[number % len(files)], part, content)

  got = or_one_line(lambda: READERS[reader](str(folder)))
  if got is None:
    return
  if reader == "resume":
    state, data = got
    assert_equal(state, states[int(state.step)])
    assert data == {"next_step": int(state.step)}
  elif reader == "config":
    assert got == CONFIG
  else:
    item = "ema" if reader == "ema" else "params"
    step = int(got["bias"][0] * (2 if item == "ema" else 1))
    assert_equal(got, getattr(states[step], item))
    # The later one has the lower loss, unless its score is gone.
    scored = [s for s in STEPS if (folder / str(s) / "metrics" / "metrics").exists()]
    assert step == max(scored if reader == "best" else steps_of(folder))
