"""Reading and writing files of named tensors without PyTorch: safetensors, and torch.save's zip.

A torch file is a pickle, and a pickle may run code. The reader here knows the four or five names
that plain tensors need and refuses a file with any other.
"""

import collections
from collections.abc import Mapping
import io
import json
import os
import pathlib
import pickle
import struct
from typing import Any
import zipfile

import jax.numpy as jnp
import numpy as np

from looped_lm.errors import UserError

Tensors = dict[str, np.ndarray]
_BFLOAT16 = np.dtype(jnp.bfloat16)
_SAFE_DTYPES = {
  "BOOL": np.dtype(np.bool_),
  "U8": np.dtype(np.uint8),
  "I8": np.dtype(np.int8),
  "I16": np.dtype(np.int16),
  "I32": np.dtype(np.int32),
  "I64": np.dtype(np.int64),
  "F16": np.dtype(np.float16),
  "BF16": _BFLOAT16,
  "F32": np.dtype(np.float32),
  "F64": np.dtype(np.float64),
}
_SAFE_NAMES = {dtype: name for name, dtype in _SAFE_DTYPES.items()}
_TORCH_DTYPES = {
  "BoolStorage": np.dtype(np.bool_),
  "ByteStorage": np.dtype(np.uint8),
  "CharStorage": np.dtype(np.int8),
  "ShortStorage": np.dtype(np.int16),
  "IntStorage": np.dtype(np.int32),
  "LongStorage": np.dtype(np.int64),
  "HalfStorage": np.dtype(np.float16),
  "BFloat16Storage": _BFLOAT16,
  "FloatStorage": np.dtype(np.float32),
  "DoubleStorage": np.dtype(np.float64),
}


def write_safetensors(path: str | os.PathLike, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a safetensors file that PyTorch programs load.

  Format: the header's length in 8 bytes, the header in JSON (name -> dtype, shape, place), data.
  """
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  place = 0
  for name, array in tensors.items():
    header[name] = {
      "dtype": _SAFE_NAMES[array.dtype],
      "shape": list(array.shape),
      "data_offsets": [place, place + array.nbytes],
    }
    place += array.nbytes
  text = json.dumps(header).encode()
  text += b" " * (-len(text) % 8)  # So that the data are aligned.
  with open(path, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for array in tensors.values():
      file.write(np.ascontiguousarray(array).tobytes())


def read(path: str | os.PathLike) -> Tensors:
  """Reads a .safetensors file, or a .bin or .pt file of torch.save.

  Raises:
    UserError: There is no such file, it is damaged, or it holds more than tensors.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    raise UserError(f"{file}: no such file.")
  if file.suffix == ".safetensors":
    return _read_safetensors(file)
  return _read_torch(file)


def _read_safetensors(file: pathlib.Path) -> Tensors:
  data = np.memmap(file, mode="r") if file.stat().st_size else np.zeros(0, np.uint8)
  try:
    length = struct.unpack("<Q", data[:8].tobytes())[0]
    header = json.loads(data[8 : 8 + length].tobytes())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
      start, end = entry["data_offsets"]
      dtype = _SAFE_DTYPES[entry["dtype"]]
      raw = data[8 + length + start : 8 + length + end]
      tensors[name] = np.frombuffer(raw.tobytes(), dtype).reshape(entry["shape"])
  except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
    raise UserError(
      f"{file} is no safetensors file, or a damaged one ({error}); copy it again."
    ) from None
  return tensors


def _read_torch(file: pathlib.Path) -> Tensors:
  try:
    with zipfile.ZipFile(file) as archive:
      pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
      if len(pickles) != 1:
        raise UserError(f"{file} is a zip file, but not one of torch.save.")
      content = _Unpickler(archive, pickles[0], file).load()
  except zipfile.BadZipFile:
    raise UserError(
      f"{file} is no file of torch.save (in its zip format, since PyTorch 1.6) or a damaged one; "
      "save it again with a current PyTorch, or as safetensors."
    ) from None
  except (pickle.UnpicklingError, KeyError, EOFError, IndexError, TypeError, ValueError) as error:
    if isinstance(error, UserError):
      raise
    raise UserError(f"{file} cannot be read ({error}).") from None
  for key in ("state_dict", "model_state_dict", "model"):
    if isinstance(content, dict) and isinstance(content.get(key), dict):
      content = content[key]
  strays = [str(name) for name, value in dict(content).items() if not isinstance(value, np.ndarray)]
  if strays:
    raise UserError(f"{file} holds more than tensors: {strays[:8]}. Save the state dict alone.")
  return dict(content)


class _Unpickler(pickle.Unpickler):
  """Builds tensors as numpy arrays, and nothing else."""

  def __init__(self, archive: zipfile.ZipFile, name: str, file: pathlib.Path):
    super().__init__(io.BytesIO(archive.read(name)))
    self._archive, self._file = archive, file
    self._folder = name.removesuffix("data.pkl")

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) == ("collections", "OrderedDict"):
      return collections.OrderedDict
    if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
      return _rebuild
    if (module, name) == ("torch._utils", "_rebuild_parameter"):
      return lambda data, requires_grad, hooks: data
    if module == "torch" and name in _TORCH_DTYPES:
      return _TORCH_DTYPES[name]
    raise UserError(
      f"{self._file} is a pickle that calls {module}.{name}; a file that may run code is refused. "
      "Save the tensors alone, best as safetensors."
    )

  def persistent_load(self, pid: Any) -> np.ndarray:
    kind, dtype, key, _, _ = pid
    if kind != "storage":
      raise UserError(f"{self._file} refers to {kind!r}, which is no tensor.")
    return np.frombuffer(self._archive.read(f"{self._folder}data/{key}"), dtype)


def _rebuild(storage: np.ndarray, offset: int, shape: tuple, stride: tuple, *_: Any) -> np.ndarray:
  """A tensor's elements out of its storage; strides count elements."""
  last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
  if min((offset, *shape, *stride), default=0) < 0 or (0 not in shape and last >= storage.size):
    raise ValueError("a tensor reaches beyond its storage")
  return np.lib.stride_tricks.as_strided(
    storage[offset:], shape, [step * storage.itemsize for step in stride], writeable=False
  ).copy()
