"""Parameters and FLOPs, from a config and the shapes of its parameters.

A FLOP count is twice the multiply-adds of the matrix products: projections, attention scores and
values, relative positions, read-out. Norms, activations, softmax and table look-ups are left out,
and so is what is done once per step instead of once per token (the position vectors' projections).

Training at a sampled depth costs less and more than its mean depth suggests: loops before the last
K have no backward pass, but all rows of a batch run as long as the longest one. Both are counted.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import jax

from looped_lm import plugins
from looped_lm.nn import depth as depths
from looped_lm.types import Model, Params

# The part of a layer that looks a token's values up and gates them; the gate is left out too.
_VALUES = "value_embedding"
# Arrays of two dimensions that no token's vector is multiplied with: per-loop tables.
_NO_PRODUCTS = ("embedding", "scale", "bias", "step_size")
# The backward pass takes two products for each of the forward pass.
_BACKWARD = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
  """How many parameters there are.

  Attributes:
    by_part: Per top-level part of the parameter tree, e.g. embed, core, head.
    total: All of them; a tied table counts once.
    non_embedding: Without the token embeddings and the tables of value embeddings.
    looped: Those of the core and the injection, used in every loop; without such tables.
  """

  by_part: Mapping[str, int]
  total: int
  non_embedding: int
  looped: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Macs:
  """Multiply-adds per token position, forward.

  Attributes:
    prelude: All prelude layers, and the projection of a factorised embedding.
    loop: One pass through the core.
    loop_attention: What of `loop` is no product with a weight matrix: scores, values, positions.
    injection: Products with the injection's matrices, all loops together.
    injection_loop: What of `injection` one loop takes; the rest is done once.
    coda: All coda layers, and the matrix in front of them.
    head: The read-out at one position, all vocabulary entries.
    num_loops: R.
  """

  prelude: float
  loop: float
  loop_attention: float
  injection: float
  injection_loop: float
  coda: float
  head: float
  num_loops: int

  @property
  def forward(self) -> float:
    """The whole forward pass."""
    loops = self.num_loops * self.loop
    return self.prelude + loops + self.injection + self.coda + self.head


def abstract_params(model: Model) -> Params:
  """Shapes of the parameters; nothing is computed."""
  return jax.eval_shape(model.init, jax.random.key(0))


def count_parameters(params: Params) -> Parameters:
  """Counts parameters, given arrays or shapes."""
  by_part = {part: _size(tree) for part, tree in params.items()}
  total = sum(by_part.values())
  looped = _leaves(params.get("core", {})) + _leaves(params.get("injection", {}))
  tables = sum(size for path, size in _leaves(params) if _is_table(path))
  return Parameters(
    by_part=by_part,
    total=total,
    non_embedding=total - by_part.get("embed", 0) - tables,
    looped=sum(size for path, size in looped if not _is_table(path)),
  )


def forward_macs(model: Mapping[str, Any], params: Params, *, seq_len: int) -> Macs:
  """Counts the multiply-adds of one token's forward pass.

  A block counts its own, by `forward_macs_per_token` in its file. An injection may too; else each
  of its matrices is applied once, outside the loop.

  Args:
    model: The `model` group of a config.
    params: Parameters or their shapes.
    seq_len: T; every query is scored against all T keys, as the program does.
  """
  block = plugins.load("blocks", model["block"]["name"])
  layer = block.forward_macs_per_token(
    _settings(model["block"]), embed_dim=model["embed_dim"], seq_len=seq_len
  )
  loop = model["core_layers"] * layer
  embed = params["embed"]["embedding"].shape[0] * model["embed_dim"]
  tied = model["head"].get("tied", True)
  return Macs(
    prelude=model["prelude_layers"] * layer + _size(params["embed"].get("projection", ())),
    loop=loop,
    loop_attention=loop - _matrices(params.get("core", {})),
    injection=_injected(model, params, num_loops=model["num_loops"]),
    injection_loop=_injected(model, params, num_loops=2) - _injected(model, params, num_loops=1),
    coda=model["coda_layers"] * layer + _matrices(params.get("recurrence", {})),
    head=_matrices(params["head"]) + (embed if tied else 0),
    num_loops=model["num_loops"],
  )


def forward_flops_per_token(model: Mapping[str, Any], params: Params, *, seq_len: int) -> float:
  """FLOPs of the forward pass per token position."""
  return 2 * forward_macs(model, params, seq_len=seq_len).forward


def executed_loops(model: Mapping[str, Any], *, rows: int) -> depths.Executed:
  """Mean loops of a training step, where so many rows go through a device at once."""
  settings = model.get("depth", {"name": "fixed"})
  return depths.make(settings, num_loops=model["num_loops"]).executed(rows)


def training_flops_per_token(
  model: Mapping[str, Any], params: Params, *, seq_len: int, rows: int = 1
) -> float:
  """FLOPs of forward, backward and what the backward pass recomputes, per token position.

  Full rematerialisation repeats the loops' forward pass; "dots" keeps the products with weight
  matrices and repeats attention alone; "attention" keeps that too. The optimiser is not counted:
  its cost is per step. Where depth is drawn this is a mean over draws and over the run.

  Args:
    model: The `model` group of a config.
    params: Parameters or their shapes.
    seq_len: T.
    rows: Rows that go through a device at once and wait for the longest of them; 1 counts the loops
      each row needs.
  """
  macs = forward_macs(model, params, seq_len=seq_len)
  again = {"dots": macs.loop_attention, "full": macs.loop}.get(model["remat"], 0.0)
  loops = executed_loops(model, rows=rows)
  loop = macs.loop + macs.injection_loop
  once = macs.forward - macs.num_loops * loop
  looped = loops.prefix * loop + loops.grad * ((1 + _BACKWARD) * loop + again)
  return 2 * ((1 + _BACKWARD) * once + looped)


def _injected(model: Mapping[str, Any], params: Params, *, num_loops: int) -> float:
  """Multiply-adds of the injection in so many loops."""
  injection = plugins.load("injection", model["injection"]["name"])
  if hasattr(injection, "forward_macs_per_token"):
    return injection.forward_macs_per_token(
      _settings(model["injection"]), embed_dim=model["embed_dim"], num_loops=num_loops
    )
  return _matrices(params.get("injection", {}))


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
  return {key: value for key, value in group.items() if key != "name"}


def _size(tree: Any) -> int:
  return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))


def _is_table(path: tuple[str, ...]) -> bool:
  """Whether a layer's parameter is a table looked up by token."""
  return path[-2:] == (_VALUES, "embedding")


def _leaves(tree: Any) -> list[tuple[tuple[str, ...], int]]:
  """Path and size of every array."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return [(tuple(key.key for key in path), math.prod(x.shape)) for path, x in leaves]


def _matrices(tree: Any) -> int:
  """Multiply-adds of one product with every matrix of a tree; look-ups and norms are none."""
  return sum(
    math.prod(x.shape)
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
    if len(x.shape) >= 2
    and path[-1].key not in _NO_PRODUCTS
    and _VALUES not in {key.key for key in path}
  )
