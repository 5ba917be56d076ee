"""Data parallelism by `jax.pmap`: every device holds the whole state."""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from looped_lm.train.parallel import rows
from looped_lm.types import Batch, State

_AXIS = "devices"


class Pmap:
  """Data parallelism: `jax.pmap` over all devices of all processes, state replicated.

  The state has no device axis (`in_axes` and `out_axes` are None), which is right only because
  every gradient and figure is summed over the devices inside the step; `diverged` finds out where
  one was not.
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
    rows.check(batch_size, parts=jax.device_count(), micro_batches=micro_batches)

  def check_eval_batch(self, batch_size: int) -> None:
    """The same for batches of evaluation."""
    rows.check_eval(batch_size, parts=jax.device_count())

  def check_model(self, settings: Mapping[str, Any]) -> None:
    """Nothing of a model is split."""
    del settings

  def create(self, make_state: Callable[..., Any], *arguments: Any) -> Any:
    """Computes a state and puts it on every local device."""
    return self.replicate(jax.jit(make_state)(*arguments))

  def replicate(self, tree: Any) -> Any:
    """Puts a tree on every local device."""
    return jax.device_put(tree, NamedSharding(self._local_mesh, PartitionSpec()))

  def split(self, batch: Any) -> Any:
    """Splits this process's rows over its devices: a batch, or any tree of arrays by row."""
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

  def lower_step(self, train_step: Callable[..., Any], state: State, batch: Batch) -> Any:
    """Lowers the step for the shapes of a state and of the whole batch; nothing is allocated."""

    def by_device(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
      rows_each = x.shape[0] // jax.device_count()
      return jax.ShapeDtypeStruct((len(self._local), rows_each, *x.shape[1:]), x.dtype)

    return self.compile_step(train_step).lower(state, jax.tree.map(by_device, batch))

  def compile_sums(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles (params, batch) -> sums, added over all devices."""

    def summed(params: Any, batch: Batch) -> Any:
      return jax.lax.psum(function(params, batch), _AXIS)

    return jax.pmap(summed, axis_name=_AXIS, in_axes=(None, 0), out_axes=None)

  def compile_rows(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles (params, rows) -> a figure per row; every process gets those of all rows, in order.

    Each process gives its own rows, as `split` places them.
    """

    def gathered(params: Any, rows: Any) -> Any:
      return jax.tree.map(
        lambda x: jax.lax.all_gather(x, _AXIS, tiled=True), function(params, rows)
      )

    return jax.pmap(gathered, axis_name=_AXIS, in_axes=(None, 0), out_axes=None)

  def one_copy(self, tree: Any) -> Any:
    """A replicated tree as it lies on one local device, for what is too small to split."""
    return jax.tree.map(lambda x: x.addressable_shards[0].data, tree)

  def laid(self, tree: Any, *axes: str | None) -> Any:
    """Nothing of generated text is split: it comes from one whole copy."""
    del axes
    return tree

  def diverged(self, state: State) -> str | None:
    """Names the first part of the state that is not the same on all devices, bit for bit.

    Every process must call it. A sum per leaf is compared, not the leaf: two different leaves have
    the same sum by accident once in 2³².
    """
    sums_ZN = np.asarray(self._sums(state, jnp.arange(len(self._local))))
    (differs_N,) = np.nonzero((sums_ZN != sums_ZN[:1]).any(axis=0))
    if not differs_N.size:
      return None
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(state)]
    return f"state{paths[differs_N[0]]}" + (
      f" and of {differs_N.size - 1} other arrays" if differs_N.size > 1 else ""
    )

  @functools.cached_property
  def _sums(self) -> Callable[..., Any]:
    """(state, one number per local device) -> [devices, leaves], on every device."""

    def sums(state: State, _: Any) -> jax.Array:
      sums_N = jnp.stack([_fingerprint(x) for x in jax.tree.leaves(state)])
      return jax.lax.all_gather(sums_N, _AXIS)

    return jax.pmap(sums, axis_name=_AXIS, in_axes=(None, 0), out_axes=None)

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

  def from_saved(self, tree: Any) -> Any:
    """The inverse of `to_saved`, for a state or a part of one."""
    if jax.process_count() == 1:
      return self.replicate(tree)
    return _relabel(tree, self._local_mesh)


def _fingerprint(x: jax.Array) -> jax.Array:
  """The sum, modulo 2³², of every entry's bits and place, mixed.

  The mixing is what counts: a plain weighted sum is blind to one change made in all places of an
  array whose size is a power of two. Source: the finaliser of MurmurHash3.
  """
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
  bits = bits.reshape(-1).astype(jnp.uint32)
  bits = bits + jax.lax.iota(jnp.uint32, bits.size) * jnp.uint32(0x9E3779B9)
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
  return (bits ^ (bits >> 16)).sum(dtype=jnp.uint32)


def _relabel(tree: Any, mesh: Mesh) -> Any:
  """Says of the same replicated buffers that they belong to another mesh; nothing is copied."""
  sharding = NamedSharding(mesh, PartitionSpec())
  return jax.tree.map(
    lambda x: jax.make_array_from_single_device_arrays(
      x.shape, sharding, [shard.data for shard in x.addressable_shards]
    ),
    tree,
  )
