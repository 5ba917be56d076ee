"""How the step runs on devices: the only file that knows them.

A strategy places state and batches, compiles functions of them, and gives the state back in the
form that checkpoints keep. No strategy adds a device axis to the state.
"""

from collections.abc import Callable
import functools
import pathlib
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from looped_lm.errors import UserError
from looped_lm.types import Batch, State

_AXIS = "devices"


class Pmap:
  """Data parallelism: `jax.pmap` over all devices of all processes, state replicated.

  The state has no device axis (`in_axes` and `out_axes` are None), which is right only because
  every gradient and figure is summed over the devices inside the step.
  """

  def __init__(self) -> None:
    self._local = jax.local_devices()
    self._local_mesh = Mesh(np.array(self._local), (_AXIS,))
    self._global_mesh = Mesh(
      np.array([d for p in range(jax.process_count()) for d in jax.local_devices(p)]), (_AXIS,)
    )

  def check_batch(self, batch_size: int, *, micro_batches: int) -> None:
    """Checks that rows split evenly.

    Raises:
      UserError: They do not; names the nearest size that does.
    """
    unit = jax.device_count() * micro_batches
    if micro_batches < 1:
      raise UserError(f"train.micro_batches={micro_batches} must be at least 1.")
    if batch_size < unit or batch_size % unit:
      nearest = max(1, round(batch_size / unit)) * unit
      raise UserError(
        f"train.batch_size={batch_size} rows must be a multiple of {jax.device_count()} devices x "
        f"{micro_batches} micro-batches = {unit}; the nearest is {nearest}."
      )

  def replicate(self, tree: Any) -> Any:
    """Puts a tree on every local device."""
    return jax.device_put(tree, NamedSharding(self._local_mesh, PartitionSpec()))

  def split(self, batch: Batch) -> Batch:
    """Splits this process's rows over its devices."""
    count = len(self._local)
    sharding = NamedSharding(self._local_mesh, PartitionSpec(_AXIS))
    return jax.tree.map(
      lambda x: jax.device_put(np.asarray(x).reshape(count, -1, *x.shape[1:]), sharding), batch
    )

  def compile_step(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles (state, batch) -> (state, metrics); the state passed in is consumed."""
    return jax.pmap(
      functools.partial(train_step, axis_name=_AXIS),
      axis_name=_AXIS,
      in_axes=(None, 0),
      out_axes=(None, None),
      donate_argnums=(0,),
    )

  def compile_sums(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles (params, batch) -> sums, added over all devices."""

    def summed(params: Any, batch: Batch) -> Any:
      return jax.lax.psum(function(params, batch), _AXIS)

    return jax.pmap(summed, axis_name=_AXIS, in_axes=(None, 0), out_axes=None)

  def one_copy(self, tree: Any) -> Any:
    """A replicated tree as it lies on one local device, for what is too small to split."""
    return jax.tree.map(lambda x: x.addressable_shards[0].data, tree)

  def to_saved(self, state: State) -> State:
    """The state as checkpoints keep it: free of the layout it was trained on."""
    if jax.process_count() == 1:
      return jax.tree.map(lambda x: x.addressable_shards[0].data, state)
    return _relabel(state, self._global_mesh)

  def like_saved(self, state: State) -> State:
    """The abstract state to restore into: shapes, dtypes and where the arrays go."""
    if jax.process_count() == 1:
      where = jax.sharding.SingleDeviceSharding(self._local[0])
    else:
      where = NamedSharding(self._global_mesh, PartitionSpec())
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), state)

  def from_saved(self, state: State) -> State:
    """The inverse of `to_saved`."""
    if jax.process_count() == 1:
      return self.replicate(state)
    return _relabel(state, self._local_mesh)


def _relabel(tree: Any, mesh: Mesh) -> Any:
  """Says of the same replicated buffers that they belong to another mesh; nothing is copied."""
  sharding = NamedSharding(mesh, PartitionSpec())
  return jax.tree.map(
    lambda x: jax.make_array_from_single_device_arrays(
      x.shape, sharding, [shard.data for shard in x.addressable_shards]
    ),
    tree,
  )


def cache_programs(folder: pathlib.Path) -> None:
  """Keeps compiled programs for later runs, unless JAX was told where to keep them.

  Args:
    folder: Created readable by its owner alone: a cached program is code that is run.
  """
  if jax.config.values["jax_compilation_cache_dir"] is None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))


STRATEGIES = {"pmap": Pmap}


def make(settings: dict[str, Any]) -> Pmap:
  """Builds the strategy of the config's `parallel` group.

  Raises:
    UserError: There is no such strategy.
  """
  name = settings["strategy"]
  if name not in STRATEGIES:
    raise UserError(f"parallel.strategy={name!r} is none of {sorted(STRATEGIES)}.")
  return STRATEGIES[name]()
