"""A weighted sum of costs over positions, worked off in chunks of them.

Positions that count come first, so that chunks without any are never run and the work falls with
the share that is supervised. What a chunk needs in between, its logits above all, is gone before
the next one begins: nothing of size [tokens, V] is ever whole in memory.

Differs from what is usual: the sum's gradient is taken chunk by chunk while the chunk is at hand,
and only scaled in the backward pass. That costs three products per position where making the logits
again would cost four, and allows a loop whose length is known only when it runs.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Figures = Mapping[str, Float[Array, " C"]]
# (weights, x_CF, targets_C) -> the cost of each position, and other figures without gradient.
Cost = Callable[[Any, jax.Array, jax.Array], tuple[Float[Array, " C"], Figures]]


def weighted_sum(
  cost: Cost,
  weights: Any,
  x_BTF: Float[Array, "B T F"],
  targets_BT: Int[Array, "B T"],
  scale_BT: Float[Array, "B T"],
  counts_BT: Bool[Array, "B T"],
  *,
  chunk_tokens: int,
  row_groups: int = 1,
) -> tuple[Float[Array, ""], Mapping[str, Float[Array, "B T"]]]:
  """Σ scale · cost over the positions that count, and the figures of each position.

  Args:
    cost: Of positions in any arrangement; must not depend on their place.
    weights: What `cost` is given first; any tree of arrays.
    x_BTF: Of each position.
    targets_BT: Of each position.
    scale_BT: Of each position; must be 0 where a position does not count.
    counts_BT: Which positions count.
    chunk_tokens: Positions of a chunk; 0 takes all at once, whether they count or not.
    row_groups: Groups of neighbouring rows that lie on different devices of one program. Each takes
      a chunk of its own at a time, so that no position leaves its device.

  Returns:
    The sum, and the figures: no gradient goes through them, and they are anything where a position
    does not count.
  """
  num_positions = targets_BT.size // row_groups
  if chunk_tokens == 0 or num_positions <= chunk_tokens:
    cost_BT, figures = cost(weights, x_BTF, targets_BT)
    return (scale_BT * cost_BT).sum(), jax.lax.stop_gradient(figures)
  padding = -num_positions % chunk_tokens

  def grouped(x: jax.Array) -> jax.Array:
    x_GP = x.reshape(row_groups, num_positions, *x.shape[2:])
    return jnp.pad(x_GP, [(0, 0), (0, padding)] + [(0, 0)] * (x_GP.ndim - 2))

  counts_GP = grouped(counts_BT)
  order_GP = jnp.argsort(~counts_GP, axis=1, stable=True)
  moved = [_pick(grouped(x), order_GP) for x in (x_BTF, targets_BT, scale_BT)]
  # Groups go on together, for as long as the one with most to do.
  most = counts_GP.sum(axis=1).max()
  num_chunks = (most + chunk_tokens - 1) // chunk_tokens
  run = functools.partial(_sum_in_chunks, cost, chunk_tokens)
  sum_G, figures = jax.vmap(run, (None, 0, 0, 0, None))(weights, *moved, num_chunks)
  place_GP = jnp.argsort(order_GP, axis=1)
  return sum_G.sum(), {
    name: _pick(figure_GP, place_GP)[:, :num_positions].reshape(targets_BT.shape)
    for name, figure_GP in figures.items()
  }


@jax.vmap
def _pick(x_PF: Float[Array, "P ..."], order_P: Int[Array, " P"]) -> Float[Array, "P ..."]:
  """Brings into another order; saying that nothing is picked twice makes the gradient cheap."""
  return x_PF.at[order_P].get(unique_indices=True, mode="promise_in_bounds")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum_in_chunks(
  cost: Cost,
  size: int,
  weights: Any,
  x_PF: jax.Array,
  targets_P: jax.Array,
  scale_P: jax.Array,
  num_chunks: jax.Array,
) -> tuple[jax.Array, Figures]:
  """Σ scale · cost over the first chunks, and their figures."""

  def one(x_CF: jax.Array, targets_C: jax.Array, scale_C: jax.Array) -> tuple[Any, Any]:
    cost_C, figures = cost(weights, x_CF, targets_C)
    return (scale_C * cost_C).sum(), figures

  return _work_off(one, (x_PF, targets_P, scale_P), size, num_chunks)


def _forward(
  cost: Cost,
  size: int,
  weights: Any,
  x_PF: jax.Array,
  targets_P: jax.Array,
  scale_P: jax.Array,
  num_chunks: jax.Array,
) -> tuple[tuple[jax.Array, Figures], Any]:
  def one(x_CF: jax.Array, targets_C: jax.Array, scale_C: jax.Array) -> tuple[Any, Any]:
    def chunk_sum(weights: Any, x_CF: jax.Array) -> tuple[jax.Array, Any]:
      cost_C, figures = cost(weights, x_CF, targets_C)
      return (scale_C * cost_C).sum(), (cost_C, figures)

    (total, (cost_C, figures)), (by_weights, by_x_CF) = jax.value_and_grad(
      chunk_sum, argnums=(0, 1), has_aux=True
    )(weights, x_CF)
    return (total, by_weights), (by_x_CF, cost_C, figures)

  (total, by_weights), (by_x_PF, cost_P, figures) = _work_off(
    one, (x_PF, targets_P, scale_P), size, num_chunks
  )
  return (total, figures), (by_weights, by_x_PF, cost_P)


def _backward(cost: Cost, size: int, kept: Any, cotangents: Any) -> tuple[Any, ...]:
  del cost, size
  factor, _ = cotangents
  by_weights, by_x_PF, cost_P = jax.tree.map(lambda x: factor * x, kept)
  return by_weights, by_x_PF, None, cost_P, None


_sum_in_chunks.defvjp(_forward, _backward)


def _work_off(
  one: Callable[..., tuple[Any, Any]],
  arrays: tuple[jax.Array, ...],
  size: int,
  num_chunks: jax.Array,
) -> tuple[Any, Any]:
  """Runs `one` on chunk after chunk: adds the first of what it gives, joins the second.

  What belongs to chunks that are not run is 0.
  """
  length = arrays[0].shape[0]

  def part(number: jax.Array | int) -> list[jax.Array]:
    return [jax.lax.dynamic_slice_in_dim(x, number * size, size) for x in arrays]

  def add(number: jax.Array, sofar: tuple[Any, Any]) -> tuple[Any, Any]:
    added, joined = one(*part(number))
    return (
      jax.tree.map(jnp.add, sofar[0], added),
      jax.tree.map(
        lambda all_P, x_C: jax.lax.dynamic_update_slice_in_dim(all_P, x_C, number * size, 0),
        sofar[1],
        joined,
      ),
    )

  added, joined = jax.eval_shape(lambda: one(*part(0)))
  start = (
    jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), added),
    jax.tree.map(lambda x: jnp.zeros((length, *x.shape[1:]), x.dtype), joined),
  )
  return jax.lax.fori_loop(0, num_chunks, add, start)
