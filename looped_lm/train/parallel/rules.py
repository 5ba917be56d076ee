"""Which axis of the mesh each dimension of each array is split over.

Two steps. A table gives the dimensions of an array logical names by the end of its path, and the
names that stand in `TENSOR` are split over the axis "tensor" (columns of what widens, rows of what
narrows: one sum per half of a layer). Then the largest dimension left that divides evenly is split
over "fsdp". Optimiser state and averages end in the path of their parameter and lie as it does.
"""

from collections.abc import Mapping
import re
from typing import Any

import jax
from jax.sharding import PartitionSpec
import numpy as np

from looped_lm.errors import UserError

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"

# The end of a path -> the logical names of its dimensions. The first that matches counts.
TABLE = (
  (r"(embed|value_embedding)/embedding", ("vocab", "embed")),
  (r"head/table", ("vocab", "embed")),
  (r"head/bias", ("vocab",)),
  (r"(query|key|value|qk|vg)/kernel", ("embed", "heads")),
  (r"(query|key|value|qk|vg)/bias", ("heads",)),
  (r"(attend|layers_\d+)/out/kernel", ("heads", "embed")),
  (r"(feed|mlp)/up/kernel", ("embed", "mlp")),
  (r"(feed|mlp)/down/kernel", ("mlp", "embed")),
)
_SPLIT_BY_TENSOR = ("vocab", "heads", "mlp")
# Smaller arrays stay whole: to gather one takes longer than it frees memory worth having.
_SMALLEST = 1024


def specs(tree: Any, *, fsdp: int, tensor: int) -> Any:
  """Gives each array of a tree its PartitionSpec.

  Args:
    tree: A state or a part of one; arrays or their shapes.
    fsdp: Size of the axis "fsdp"; 1 splits nothing over it.
    tensor: Size of the axis "tensor".

  Raises:
    UserError: A dimension that the table splits over "tensor" does not divide evenly.
  """
  return jax.tree_util.tree_map_with_path(
    lambda path, x: spec(_name(path), np.shape(x), fsdp=fsdp, tensor=tensor), tree
  )


def spec(name: str, shape: tuple[int, ...], *, fsdp: int, tensor: int) -> PartitionSpec:
  """Gives the PartitionSpec of one array; see `specs`."""
  axes: list[str | None] = [None] * len(shape)
  if tensor > 1:
    for dimension, logical in enumerate(_logical(name, rank=len(shape))):
      # What is 1 was summed over, as NorMuon's second moments are, and stays whole.
      if logical not in _SPLIT_BY_TENSOR or shape[dimension] == 1:
        continue
      if shape[dimension] % tensor:
        raise UserError(
          f"parallel.tensor={tensor} does not divide the {shape[dimension]} of {logical!r} in "
          f"{name} {list(shape)}; the nearest that does is {_nearest(shape[dimension], tensor)}."
        )
      axes[dimension] = TENSOR
  if fsdp > 1 and np.prod(shape) >= _SMALLEST:
    free = [d for d, axis in enumerate(axes) if axis is None and shape[d] % fsdp == 0]
    if free:
      axes[max(free, key=lambda d: shape[d])] = FSDP
  return PartitionSpec(*axes)


def heads(model: Mapping[str, Any]) -> dict[str, int]:
  """Lists the numbers of heads in a config's `model` group: "model.block.num_heads" -> 6."""
  return {
    f"model.{group}.{field}": model[group][field]
    for group in ("block", "core_block")
    for field in ("num_heads", "num_kv_heads")
    if field in model.get(group, {})
  }


def _logical(name: str, *, rank: int) -> tuple[str | None, ...]:
  for pattern, names in TABLE:
    if re.search(f"(^|/){pattern}$", name) and len(names) == rank:
      return names
  return (None,) * rank


def _nearest(size: int, wanted: int) -> int:
  return min((n for n in range(1, size + 1) if size % n == 0), key=lambda n: abs(n - wanted))


def _name(path: tuple[Any, ...]) -> str:
  """Joins the names on a path: "opt_state/1/mu/core/layers_0/out/kernel"."""
  parts = []
  for entry in path:
    part = [getattr(entry, field, None) for field in ("key", "name", "idx")]
    parts += [str(value) for value in part if value is not None][:1]
  return "/".join(parts)
