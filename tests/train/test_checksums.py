"""A file of a checkpoint that is not what was written is named, and its content never used."""

import json
import os

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.train import checkpoint, checksums
from looped_lm.train.checkpoint import Checkpoints
from looped_lm.types import State


def make_state(step):
  params = {"kernel": jax.random.normal(jax.random.key(step), (128, 128))}
  return State(
    step=jnp.int32(step), params=params, ema=None, opt_state={"mu": params}, key=jax.random.key(0)
  )


LIKE = jax.eval_shape(lambda: make_state(0))


def opened(directory):
  return Checkpoints(str(directory), keep_latest=3, config={})


@pytest.fixture
def directory(tmp_path):
  with opened(tmp_path / "checkpoints") as checkpoints:
    for step in (3, 6, 9):
      checkpoints.save(make_state(step), data={"next_step": step})
  return tmp_path / "checkpoints"


def largest(folder):
  paths = [os.path.join(root, name) for root, _, files in os.walk(folder) for name in files]
  return max(paths, key=os.path.getsize)


def flip(path, place=-9):
  with open(path, "rb") as file:
    content = bytearray(file.read())
  content[place] ^= 4
  with open(path, "wb") as file:
    file.write(content)


@pytest.mark.parametrize("item", ["params", "opt"])
def test_a_flipped_bit_is_found_and_the_checkpoint_before_offered(directory, item):
  path = largest(directory / "9" / item)
  flip(path, os.path.getsize(path) // 2)
  name = os.path.relpath(path, directory / "9")
  with opened(directory) as checkpoints, pytest.raises(UserError) as error:
    checkpoints.restore(LIKE)
  assert f"the checksum of {name} is not that of what was written" in str(error.value)
  assert f"move {directory / '9'} away to go on from step 6" in str(error.value)
  assert "\n" not in str(error.value)
  (directory / "9").rename(directory.parent / "9")
  with opened(directory) as checkpoints:
    state, data = checkpoints.restore(LIKE)
  np.testing.assert_array_equal(state.params["kernel"], make_state(6).params["kernel"])
  assert data == {"next_step": 6}


def test_the_checkpoint_that_is_offered_is_whole(directory):
  for step in ("9", "6"):
    flip(largest(directory / step / "params"))
  with opened(directory) as checkpoints, pytest.raises(UserError) as error:
    checkpoints.restore(LIKE)
  both = f"move {directory / '6'} and {directory / '9'} away to go on from step 3"
  assert both in str(error.value)
  flip(largest(directory / "3" / "params"))
  with opened(directory) as checkpoints, pytest.raises(UserError, match="there is no earlier one"):
    checkpoints.restore(LIKE)


def test_what_is_not_read_is_not_looked_at(directory):
  flip(largest(directory / "9" / "opt"))
  got = checkpoint.restore_params(str(directory), LIKE.params)
  np.testing.assert_array_equal(got["kernel"], make_state(9).params["kernel"])
  flip(largest(directory / "9" / "params"))
  with pytest.raises(UserError, match=r"the checksum of params/"):
    checkpoint.restore_params(str(directory), LIKE.params)


def test_a_checkpoint_of_an_earlier_version_is_read_as_it_is(directory):
  os.remove(directory / "9" / checksums.NAME)
  with opened(directory) as checkpoints:
    with pytest.raises(UserError, match=r"checksums\.json is missing"):
      checkpoints.restore(LIKE)
    layout = directory / "9" / "layout" / "metadata"
    text = json.loads(layout.read_text())
    del text["has_checksums"]
    layout.write_text(json.dumps(text))
    assert int(checkpoints.restore(LIKE)[0].step) == 9


def test_a_folder_without_its_sums_has_no_name(directory, monkeypatch):
  """They are written before the folder counts as complete."""

  def fails(*arguments):
    raise OSError(28, "No space left on device")

  with opened(directory) as checkpoints:
    monkeypatch.setattr(checksums, "_sum", fails)
    checkpoints.save(make_state(12), data={})
    with pytest.raises(UserError, match=r"No room .* checkpoint 12"):
      checkpoints.wait()
  assert sorted(os.listdir(directory)) == ["12.orbax-checkpoint-tmp", "3", "6", "9"]


def test_processes_share_the_large_files(directory, monkeypatch):
  folder = epath.Path(directory / "9")
  damaged = largest(folder / "params")
  flip(damaged)
  items = ("params", "opt", "data", "layout")
  monkeypatch.setattr(jax, "process_count", lambda: 2)

  def finds(process):
    monkeypatch.setattr(jax, "process_index", lambda: process)
    return checksums.problem(folder, items, required=True) is not None

  assert [finds(0), finds(1)] == [True, True]
  monkeypatch.setattr(checksums, "_SMALL_BYTES", os.path.getsize(damaged))
  assert sorted([finds(0), finds(1)]) == [False, True]
