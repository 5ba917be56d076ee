"""Every pair is computed."""

from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from looped_lm.nn.precision import accumulator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
  """softmax(scale · (q kᵀ + bias)) v over the visible keys.

  A query that may see nothing (padding) gets zeros and passes no gradient, never NaN.
  """

  def __call__(
    self,
    q_BTNH: Float[Array, "B T N H"],
    k_BSNH: Float[Array, "B S N H"],
    v_BSNH: Float[Array, "B S N H"],
    see_BTS: Bool[Array, "B T S"],
    bias_BNTS: Float[Array, "B N T S"] | None = None,
    *,
    scale: float,
    dropout: Callable[[jax.Array], jax.Array] = lambda p_BNTS: p_BNTS,
  ) -> Float[Array, "B T N H"]:
    """Attends.

    Args:
      q_BTNH: Queries.
      k_BSNH: Keys, one per query head.
      v_BSNH: Values.
      see_BTS: True where the query may see the key.
      bias_BNTS: Added to the products before scaling.
      scale: Factor on the scores.
      dropout: Applied to the probabilities; whoever draws attention maps sees them there.
    """
    score_BNTS = jnp.einsum(
      "BTNH,BSNH->BNTS", q_BTNH, k_BSNH, preferred_element_type=accumulator(q_BTNH)
    )
    if bias_BNTS is not None:
      score_BNTS = score_BNTS + bias_BNTS
    see_B1TS = see_BTS[:, None]
    score_BNTS = jnp.where(see_B1TS, score_BNTS * scale, jnp.finfo(score_BNTS.dtype).min)
    p_BNTS = dropout(jnp.where(see_B1TS, jax.nn.softmax(score_BNTS, axis=-1), 0.0))
    return jnp.einsum("BNTS,BSNH->BTNH", p_BNTS.astype(v_BSNH.dtype), v_BSNH)
