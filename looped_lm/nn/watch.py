"""What a forward pass shows of its inside, to those who ask.

A module offers an array; whoever calls `Model.encode` with `watch` gets it, one per loop where it
was offered inside the recurrence. Where nobody asks, offering does nothing and leaves no trace in
the program.
"""

from typing import Any

import flax.linen as nn
import jax

# Attention probabilities, [B, N, T, S], before dropout, of the core's layers and of the others.
# Names end in the layer's physical index.
ATTENTION, ATTENTION_OUTSIDE = "attention", "attention_outside"
# A figure of every token in a loop, [B, T, ...], e.g. how far a gate is open; named as it is to be
# logged.
FIGURES = "figures"
# What the recurrence stacks over its loops. It would slice whatever these held before it, so the
# layers outside have a collection of their own.
IN_LOOPS = (ATTENTION, FIGURES)


def offer(module: nn.Module, collection: str, name: str, array: jax.Array) -> None:
  """Offers an array, computed anyway, under a name that is new within the module."""
  module.sow(collection, name, array, init_fn=_nothing, reduce_fn=_latest)


def _nothing() -> Any:
  return None


def _latest(_: Any, new: Any) -> Any:
  return new


def offer_attention(
  module: nn.Module, p_BNTS: jax.Array, *, layer_index: int, in_loop: bool
) -> None:
  """Offers a layer's probabilities."""
  offer(module, ATTENTION if in_loop else ATTENTION_OUTSIDE, f"layer_{layer_index}", p_BNTS)


def collected(variables: Any, collection: str) -> dict[str, jax.Array]:
  """The arrays of one collection: path of the module and name -> array."""
  found = {}
  for path, array in jax.tree_util.tree_leaves_with_path(variables.get(collection, {})):
    found["/".join(str(part.key) for part in path)] = array
  return found
