"""Files of tensors, read and written without PyTorch; a pickle with code is refused."""

import collections
import io
import os
import pickle
import sys
import types
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import tensor_files
from looped_lm.errors import UserError

TENSORS = {
  "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
  "b": np.array([1, 2, 3], np.int64),
  "half": np.array([[0.5], [2.0]], jnp.bfloat16),
  "scalar": np.array(7.0, np.float64),
  "empty": np.zeros((0, 4), np.float32),
}


def assert_same(ours, theirs):
  assert ours.keys() == theirs.keys()
  for name, array in theirs.items():
    assert ours[name].dtype == array.dtype, name
    np.testing.assert_array_equal(ours[name], array)


def test_safetensors_come_back_as_they_were(tmp_path):
  path = tmp_path / "x.safetensors"
  tensor_files.write_safetensors(path, TENSORS)
  assert_same(tensor_files.read(path), TENSORS)
  # The format: 8 bytes of length, JSON, data aligned to 8 bytes.
  data = path.read_bytes()
  length = int.from_bytes(data[:8], "little")
  assert length % 8 == 0
  assert len(data) == 8 + length + sum(array.nbytes for array in TENSORS.values())


@pytest.mark.parametrize("keep", [0, 5, 40, -3])
def test_a_cut_safetensors_file_is_named(tmp_path, keep):
  path = tmp_path / "x.safetensors"
  tensor_files.write_safetensors(path, TENSORS)
  path.write_bytes(path.read_bytes()[:keep])
  with pytest.raises(UserError, match=r"x.safetensors is no safetensors file, or a damaged one"):
    tensor_files.read(path)


@pytest.fixture
def save_like_torch(monkeypatch):
  """torch.save's zip format from numpy arrays: what a file holds, without PyTorch."""
  torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

  def _rebuild_tensor_v2(*arguments):
    raise AssertionError

  _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = (
    "torch._utils",
    "_rebuild_tensor_v2",
  )
  utils._rebuild_tensor_v2 = _rebuild_tensor_v2
  kinds = {"float32": "FloatStorage", "int64": "LongStorage", "bfloat16": "BFloat16Storage"}
  kinds |= {"float64": "DoubleStorage"}
  for kind in kinds.values():
    setattr(torch, kind, type(kind, (), {"__module__": "torch"}))
  monkeypatch.setitem(sys.modules, "torch", torch)
  monkeypatch.setitem(sys.modules, "torch._utils", utils)

  def save(path, content):
    storages = []

    class Storage:
      def __init__(self, array):
        self.array, self.key = array, str(len(storages))
        storages.append(self)

    class Pickler(pickle.Pickler):
      def persistent_id(self, obj):
        if isinstance(obj, Storage):
          kind = getattr(torch, kinds[str(obj.array.dtype)])
          return ("storage", kind, obj.key, "cpu", obj.array.size)
        return None

      def reducer_override(self, obj):
        if not isinstance(obj, np.ndarray):
          return NotImplemented
        # Stored column by column, so that the strides matter.
        strides = np.cumprod((1, *obj.shape[:-1])).tolist()[: obj.ndim]
        storage = Storage(obj.ravel(order="F"))
        return _rebuild_tensor_v2, (storage, 0, obj.shape, tuple(strides), False, {})

    file = io.BytesIO()
    Pickler(file, protocol=2).dump(content)
    with zipfile.ZipFile(path, "w") as archive:
      archive.writestr("archive/data.pkl", file.getvalue())
      for storage in storages:
        archive.writestr(f"archive/data/{storage.key}", storage.array.tobytes())

  return save


def test_a_torch_file_gives_its_tensors(tmp_path, save_like_torch):
  content = collections.OrderedDict(TENSORS)
  content._metadata = {"version": 1}  # As a module's state dict has it.
  save_like_torch(tmp_path / "x.bin", content)
  assert_same(tensor_files.read(tmp_path / "x.bin"), TENSORS)
  save_like_torch(tmp_path / "y.pt", {"state_dict": TENSORS, "step": 3})
  assert_same(tensor_files.read(tmp_path / "y.pt"), TENSORS)


class Evil:
  def __reduce__(self):
    return os.mkdir, ("was_here",)


def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with zipfile.ZipFile("x.bin", "w") as archive:
    archive.writestr("archive/data.pkl", pickle.dumps({"a": Evil()}))
  with pytest.raises(UserError, match=r"x.bin is a pickle that calls \w+.mkdir; .* is refused"):
    tensor_files.read("x.bin")
  assert not os.path.exists("was_here")


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"no zip", "is no file of torch.save"),
    (pickle.dumps({"a": Evil()}), "is no file of torch.save"),
    (b"", "is no file of torch.save"),
  ],
)
def test_other_files_are_refused(tmp_path, content, message):
  (tmp_path / "x.bin").write_bytes(content)
  with pytest.raises(UserError, match=message):
    tensor_files.read(tmp_path / "x.bin")


def test_more_than_tensors_and_tensors_beyond_their_storage_are_refused(tmp_path, save_like_torch):
  save_like_torch(tmp_path / "x.bin", {"a": TENSORS["b"], "optimizer": 3})
  with pytest.raises(UserError, match=r"holds more than tensors: \['optimizer'\]"):
    tensor_files.read(tmp_path / "x.bin")
  with pytest.raises(UserError, match="no such file"):
    tensor_files.read(tmp_path / "nothing.bin")
  with pytest.raises(ValueError, match="beyond its storage"):
    tensor_files._rebuild(np.zeros(3), 1, (3,), (1,))
