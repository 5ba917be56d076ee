"""The names of our parameters in PyTorch: one table, read in both directions.

A parameter's path is its name, with dots: `core/layers_0/qk/kernel` is `model.core.0.qk.weight`.
Kernels are [in, out] here and [out, in] there.
"""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

import jax
import numpy as np

from looped_lm.errors import UserError
from looped_lm.types import Params

# The end of a path, what stands there in its place, and whether the matrix is transposed. The first
# that fits is taken; a path that none fits keeps its name.
_ENDS = (
  ("embed/embedding", "embed/tokens/weight", False),
  ("embed/projection", "embed/projection/weight", True),
  ("embed/position", "embed/positions/weight", False),
  ("value_embedding/embedding", "value_embedding/tokens/weight", False),
  ("value_embedding/gate", "value_embedding/gate/weight", True),
  ("injection/kernel", "injection/project/weight", True),
  ("injection/project_kernel", "injection/project/weight", True),
  ("injection/project_bias", "injection/project/bias", False),
  ("injection/gate_kernel", "injection/gate_in/weight", True),
  ("injection/gate_hidden_bias", "injection/gate_in/bias", False),
  ("injection/gate_out_kernel", "injection/gate_out/weight", True),
  ("injection/gate_out_bias", "injection/gate_out/bias", False),
  ("head/norm/scale", "norm_head/weight", False),
  ("head/norm/bias", "norm_head/bias", False),
  ("head/bias", "head/decoder/bias", False),
  ("head/table", "head/decoder/weight", False),
  ("kernel", "weight", True),
  ("scale", "weight", False),
)
# What belongs to the read-out and not to the model that AutoModel loads.
_READ_OUT = "head."
TIED = "head.decoder.weight"
TABLE = "model.embed.tokens.weight"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """One parameter.

  Attributes:
    path: Where it is in our tree.
    name: What it is called in PyTorch.
    is_transposed: Whether the matrix is the other way round there.
    shape: Its shape there.
  """

  path: tuple[str, ...]
  name: str
  is_transposed: bool
  shape: tuple[int, ...]


def table(params: Params) -> list[Entry]:
  """The entries of all parameters, of arrays or of their shapes."""
  entries = []
  for key_path, leaf in jax.tree_util.tree_leaves_with_path(params):
    path = tuple(key.key for key in key_path)
    name, is_transposed = _name("/".join(path))
    shape = tuple(leaf.shape[::-1] if is_transposed else leaf.shape)
    entries.append(Entry(path=path, name=name, is_transposed=is_transposed, shape=shape))
  assert len({entry.name for entry in entries}) == len(entries)
  return entries


def to_tensors(params: Params) -> dict[str, np.ndarray]:
  """Our parameters under their PyTorch names, in PyTorch layout. A tied table is there once."""
  tensors = {}
  for entry, leaf in zip(table(params), jax.tree.leaves(params), strict=True):
    array = np.asarray(leaf)
    tensors[entry.name] = np.ascontiguousarray(array.T if entry.is_transposed else array)
  return tensors


def to_params(tensors: Mapping[str, np.ndarray], like: Params) -> Params:
  """Our parameters from tensors under PyTorch names.

  Args:
    tensors: By name.
    like: Parameters, or their shapes, of the model they shall fit.

  Raises:
    UserError: Tensors are missing, left over or of another shape; all are named.
  """
  entries = table(like)
  left = set(tensors) - {entry.name for entry in entries}
  if TIED in left and np.array_equal(tensors[TIED], tensors.get(TABLE, ())):
    left.discard(TIED)  # The token table again.
  check(
    missing=[entry.name for entry in entries if entry.name not in tensors],
    unexpected=left,
    shapes={
      entry.name: (tensors[entry.name].shape, entry.shape)
      for entry in entries
      if entry.name in tensors and tensors[entry.name].shape != entry.shape
    },
  )
  leaves = [
    tensors[entry.name].T if entry.is_transposed else tensors[entry.name] for entry in entries
  ]
  return jax.tree.unflatten(jax.tree.structure(like), leaves)


def check(*, missing: Any, unexpected: Any, shapes: Mapping[str, tuple[Any, Any]]) -> None:
  """Raises a UserError that names every tensor that does not fit.

  Args:
    missing: Names that the model has and the weights have not.
    unexpected: Names that the weights have and the model has not.
    shapes: Of the others, name -> (shape in the weights, shape in the model), where they differ.
  """
  wrong = []
  if missing:
    wrong.append(f"missing {sorted(missing)}")
  if unexpected:
    wrong.append(f"unexpected {sorted(unexpected)}")
  if shapes:
    shown = [f"{n} {list(s)} instead of {list(e)}" for n, (s, e) in sorted(shapes.items())]
    wrong.append(f"of another shape {', '.join(shown)}")
  if wrong:
    raise UserError(f"The weights do not fit the model: {'; '.join(wrong)}.")


def _name(path: str) -> tuple[str, bool]:
  is_transposed = False
  for end, other, transposed in _ENDS:
    if path == end or path.endswith("/" + end):
      path, is_transposed = path.removesuffix(end) + other, transposed
      break
  name = re.sub(r"\blayers_(\d+)\b", r"\1", path).replace("/", ".")
  return name if name.startswith(_READ_OUT) else "model." + name, is_transposed
