"""Data, fully sharded and tensor parallelism by `jax.jit` over a mesh of devices.

The mesh has the axes data, fsdp and tensor. Rows are split over data and fsdp. State is split over
fsdp and tensor as `rules` say; every array is whole where an axis has size 1.

Differs from what is usual: parameters are gathered over fsdp once per step, not once per use. The
core of a looped model is used in every loop, and gathering it each time would multiply what the
devices send by R. The gradients are summed and split again right where they come about.

Where text is generated, no parameter is gathered at all: see `MeshStrategy.laid`.
"""

from collections.abc import Callable, Mapping
import functools
import math
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from looped_lm.errors import UserError
from looped_lm.train.parallel import rows, rules
from looped_lm.train.step import Placement
from looped_lm.types import Batch, State

_ROWS = (rules.DATA, rules.FSDP)
_PROCESS = "process"


class MeshStrategy:
  """Parallelism over a mesh; `jit` sees whole arrays and puts the communication in.

  Args:
    fsdp: Devices that the state is split over; they also split the rows.
    tensor: Devices that one row's products are split over; those of one host.

  Raises:
    UserError: The sizes do not fit the number of devices.
  """

  def __init__(self, *, fsdp: int, tensor: int) -> None:
    for name, size in (("fsdp", fsdp), ("tensor", tensor)):
      if size < 1:
        raise UserError(f"parallel.{name}={size} must be at least 1; 1 splits nothing.")
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    _check_sizes(fsdp, tensor, total=len(devices), local=jax.local_device_count())
    self.fsdp, self.tensor = fsdp, tensor
    self.data = len(devices) // (fsdp * tensor)
    shape = (self.data, fsdp, tensor)
    self.mesh = Mesh(np.array(devices).reshape(shape), (*_ROWS, rules.TENSOR))

  def check_batch(self, batch_size: int, *, micro_batches: int) -> None:
    """Checks that rows split evenly.

    Raises:
      UserError: They do not; names the nearest size that does.
    """
    rows.check(batch_size, parts=self.data * self.fsdp, micro_batches=micro_batches)

  def check_eval_batch(self, batch_size: int) -> None:
    """The same for batches of evaluation."""
    rows.check_eval(batch_size, parts=self.data * self.fsdp)

  def check_model(self, settings: Mapping[str, Any]) -> None:
    """Checks that the attention heads of a config's `model` group split over tensor.

    Raises:
      UserError: They do not: a head would be cut in two, and its parts fetched in every loop.
    """
    heads = rules.heads(settings)
    whole = math.gcd(*heads.values())
    for name, number in heads.items():
      if number % self.tensor:
        fits = _nearest(math.gcd(whole, jax.local_device_count()), self.tensor)
        raise UserError(
          f"parallel.tensor={self.tensor} must divide the attention heads, {name}={number}; the "
          f"nearest that does is {fits}."
        )

  def create(self, make_state: Callable[..., Any], *arguments: Any) -> Any:
    """Computes a state where it will lie; no device ever holds more than its part."""
    shardings = self._split_up(jax.eval_shape(make_state, *arguments))
    return jax.jit(make_state, out_shardings=shardings)(*arguments)

  def replicate(self, tree: Any) -> Any:
    """Puts a tree that this process holds where the mesh wants it."""
    return jax.tree.map(lambda x, where: jax.device_put(x, where), tree, self._split_up(tree))

  def split(self, batch: Any) -> Any:
    """Joins the rows of all processes to one array that is split over the mesh.

    Takes a batch, or any tree of arrays by row.
    """
    where = NamedSharding(self.mesh, PartitionSpec(_ROWS))
    return jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(where, np.asarray(x)), batch
    )

  def compile_step(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles (state, batch) -> (state, metrics); the state passed in is consumed."""
    compiled: list[Callable[..., Any]] = []  # Where the state lies is known at the first call.

    def step(state: State, batch: Batch) -> Any:
      if not compiled:
        compiled.append(self._placed(train_step, state))
      return compiled[0](state, batch)

    return step

  def lower_step(self, train_step: Callable[..., Any], state: State, batch: Batch) -> Any:
    """Lowers the step for the shapes of a state and of the whole batch; nothing is allocated."""
    where = NamedSharding(self.mesh, PartitionSpec(_ROWS))
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), batch)
    return self._placed(train_step, state).lower(self.like_saved(state), batch)

  def compile_sums(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles (params, batch) -> sums, added over all devices."""

    def summed(params: Any, batch: Batch) -> Any:
      return function(self._gathered(params), batch)

    return jax.jit(summed, out_shardings=NamedSharding(self.mesh, PartitionSpec()))

  def compile_rows(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles (params, rows) -> a figure per row; every process gets those of all rows, in order.

    Each process gives its own rows, as `split` places them.
    """

    def gathered(params: Any, rows: Any) -> Any:
      return function(self._gathered(params), rows)

    return jax.jit(gathered, out_shardings=NamedSharding(self.mesh, PartitionSpec()))

  def one_copy(self, tree: Any) -> Any:
    """A copy that is this process's own, split over its devices; every process calls it.

    Programs of it run in one process without the others.
    """
    count, local = jax.process_count(), jax.local_device_count()
    # The devices are in the order of their processes, and those of a row share one.
    grid = self.mesh.devices.reshape(count, local // self.tensor, self.tensor)
    each = Mesh(grid, (_PROCESS, rules.FSDP, rules.TENSOR))
    own = Mesh(grid[jax.process_index()], (rules.FSDP, rules.TENSOR))
    specs = rules.specs(tree, fsdp=local // self.tensor, tensor=self.tensor)
    shardings = jax.tree.map(lambda spec: NamedSharding(each, spec), specs)
    copies = jax.jit(lambda tree: tree, out_shardings=shardings)(tree)
    return jax.tree.map(
      lambda x, spec: jax.make_array_from_single_device_arrays(
        x.shape, NamedSharding(own, spec), [shard.data for shard in x.addressable_shards]
      ),
      copies,
      specs,
    )

  def laid(self, tree: Any, *axes: str | None) -> Any:
    """Says inside a program how the arrays of generated text lie.

    Rows are split over data alone, not over fsdp as in training: each device multiplies by the part
    of a parameter that it holds, and the products of a few tokens are summed. Were rows split over
    fsdp, parameters would be gathered for every token.

    Args:
      tree: Arrays of as many dimensions as are named, or more, which stay whole.
      axes: What each dimension counts: "rows", split over data; "heads", split over tensor; None,
        whole. One that does not divide stays whole.
    """
    split = {"rows": (rules.DATA, self.data), "heads": (rules.TENSOR, self.tensor)}

    def leaf(x: jax.Array) -> PartitionSpec:
      found = (split.get(axis or "", (None, 1)) for axis in axes)
      lengths = zip(found, x.shape, strict=False)
      return PartitionSpec(
        *(name if length % size == 0 else None for (name, size), length in lengths)
      )

    return self._constrained(tree, jax.tree.map(leaf, tree))

  def diverged(self, state: State) -> str | None:
    """None: the program sees one array, and no figure can be left unsummed."""
    del state

  def to_saved(self, state: State) -> State:
    """The state as checkpoints keep it; Orbax writes every part once."""
    return state

  def like_saved(self, state: State) -> State:
    """The abstract state to restore into: shapes, dtypes and where the arrays go."""
    return jax.tree.map(
      lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
      state,
      self._split_up(state),
    )

  def from_saved(self, tree: Any) -> Any:
    """The inverse of `to_saved`."""
    return tree

  def _placed(self, train_step: Callable[..., Any], state: State) -> Any:
    placement = Placement(
      gather=self._gathered,
      scatter=self._scattered,
      spread=self._spread,
      row_groups=self.data * self.fsdp,
    )
    return jax.jit(
      functools.partial(train_step, placement=placement),
      out_shardings=(self._split_up(state), NamedSharding(self.mesh, PartitionSpec())),
      donate_argnums=(0,),
    )

  def _split_up(self, tree: Any) -> Any:
    specs = rules.specs(tree, fsdp=self.fsdp, tensor=self.tensor)
    return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)

  def _gathered(self, params: Any) -> Any:
    """Parameters whole but for their split over tensor."""
    specs = rules.specs(params, fsdp=1, tensor=self.tensor)
    return self._constrained(params, specs)

  def _scattered(self, grads: Any) -> Any:
    """Gradients as the state lies."""
    specs = rules.specs(grads, fsdp=self.fsdp, tensor=self.tensor)
    return self._constrained(grads, specs)

  def _spread(self, parts: Any) -> Any:
    """Micro-batches, each over all devices: the first axis counts them, the second is rows."""
    spec = PartitionSpec(None, _ROWS)
    return self._constrained(parts, jax.tree.map(lambda _: spec, parts))

  def _constrained(self, tree: Any, specs: Any) -> Any:
    return jax.tree.map(
      lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec)),
      tree,
      specs,
    )


def _check_sizes(fsdp: int, tensor: int, *, total: int, local: int) -> None:
  if local % tensor:
    raise UserError(
      f"parallel.tensor={tensor} must divide the {local} devices of a process, which share rows; "
      f"the nearest is {_nearest(local, tensor)}."
    )
  if total % (fsdp * tensor):
    raise UserError(
      f"parallel.fsdp={fsdp} x parallel.tensor={tensor} must divide the {total} devices; the "
      f"nearest parallel.fsdp is {_nearest(total // tensor, fsdp)}."
    )


def _nearest(total: int, wanted: int) -> int:
  divisors = [n for n in range(1, total + 1) if math.gcd(n, total) == n]
  return min(divisors, key=lambda n: abs(n - wanted))
