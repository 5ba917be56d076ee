"""Every pair is computed."""

from collections.abc import Callable
import dataclasses

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from looped_lm.nn import loops
from looped_lm.nn.precision import accumulator


@jax.custom_jvp
def visible_softmax(
  score: Float[Array, "... T S"], see: Bool[Array, "... T S"]
) -> Float[Array, "... T S"]:
  """Softmax over the visible keys; zeros where a query may see none.

  Its derivative is p · (t - Σ p t), so the backward pass needs p alone, under a name by which
  rematerialisation can keep it.
  """
  score = jnp.where(see, score, jnp.finfo(score.dtype).min)
  return jnp.where(see, jax.nn.softmax(score, axis=-1), 0.0)


@visible_softmax.defjvp
def _visible_softmax_jvp(primals, tangents):
  p = checkpoint_name(visible_softmax(*primals), loops.ATTENTION)
  return p, p * (tangents[0] - (p * tangents[0]).sum(axis=-1, keepdims=True))


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
    dtype = accumulator(q_BTNH)
    # XLA:CPU turns what is summed over on the left to the end and on the right to the front; of one
    # query's products the keys and values would be turned whole.
    one_query = q_BTNH.shape[1] == 1
    if one_query:
      score_BNS = jnp.einsum("BSNH,BNH->BNS", k_BSNH, q_BTNH[:, 0], preferred_element_type=dtype)
      score_BNTS = score_BNS[:, :, None]
    else:
      score_BNTS = jnp.einsum("BTNH,BSNH->BNTS", q_BTNH, k_BSNH, preferred_element_type=dtype)
    if bias_BNTS is not None:
      score_BNTS = score_BNTS + bias_BNTS
    p_BNTS = dropout(visible_softmax(score_BNTS * scale, see_BTS[:, None]))
    p_BNTS = p_BNTS.astype(v_BSNH.dtype)
    if one_query:
      c_BTNH = jnp.einsum("BNS,BSNH->BNH", p_BNTS[:, :, 0], v_BSNH)[:, None]
    else:
      c_BTNH = jnp.einsum("BNTS,BSNH->BTNH", p_BNTS, v_BSNH)
    return checkpoint_name(c_BTNH, loops.ATTENTION)
