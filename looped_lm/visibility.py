"""Who may look at whom.

One integer per token, its order, states every task's visibility: a query sees a key of the same
segment whose order is not later than its own.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def bidirectional(tokens_BT: Int[Array, "B T"]) -> Int[Array, "B T"]:
  """Gives all tokens one order: everybody sees everybody of the segment."""
  return jnp.zeros_like(tokens_BT)


def causal(tokens_BT: Int[Array, "B T"]) -> Int[Array, "B T"]:
  """Gives each token its turn: it sees itself and what came before."""
  return jnp.broadcast_to(jnp.arange(tokens_BT.shape[1], dtype=jnp.int32), tokens_BT.shape)


def visible(order_BT: Int[Array, "B T"], segments_BT: Int[Array, "B T"]) -> Bool[Array, "B T S"]:
  """True where the query (rows) may see the key (columns)."""
  earlier = order_BT[:, None, :] <= order_BT[:, :, None]
  same = segments_BT[:, None, :] == segments_BT[:, :, None]
  return earlier & same & (segments_BT[:, None, :] > 0)
