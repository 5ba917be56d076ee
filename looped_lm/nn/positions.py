"""Positions: relative distances in logarithmic buckets, disentangled from the content.

Source: DeBERTa's disentangled attention as GPT-BERT has it. One learned vector per bucket; near
distances have a bucket each, far ones share buckets whose width grows logarithmically.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from looped_lm.nn.linear import truncated_normal
from looped_lm.nn.norms import LayerNorm

LOOKUPS = ("one_hot", "gather")


def bucket_table(
  length: int, *, num_buckets: int, max_distance: int, longest: int | None = None
) -> Int[np.ndarray, "T S"]:
  """The row of the position table that each (query, key) pair uses.

  Args:
    length: T.
    num_buckets: K; the table has 2 K - 1 rows.
    max_distance: M; all distances from M - 1 on share the last bucket.
    longest: Distances beyond it read as it; None lets all be what they are.
  """
  r_TS = np.arange(length)[:, None] - np.arange(length)[None, :]
  return _buckets(r_TS, num_buckets, max_distance, longest)


def bucket_rows(
  start: Int[Array, ""],
  length: int,
  capacity: int,
  *,
  num_buckets: int,
  max_distance: int,
  longest: int | None = None,
) -> Int[Array, "T S"]:
  """The rows of `bucket_table` for queries at start .. start + T - 1 and keys at 0 .. S - 1.

  Args:
    start: Place of the first query, known only when the program runs.
    length: T.
    capacity: S.
    num_buckets: K.
    max_distance: M.
    longest: As in `bucket_table`.
  """
  bucket_r = _buckets(np.arange(1 - capacity, capacity), num_buckets, max_distance, longest)
  r_TS = start + jnp.arange(length)[:, None] - jnp.arange(capacity)[None, :]
  return jnp.asarray(bucket_r)[r_TS + capacity - 1]


def _buckets(
  r: Int[np.ndarray, "..."], num_buckets: int, max_distance: int, longest: int | None
) -> np.ndarray:
  """The rows for distances r = query - key.

  With mid = K // 2: |r| <= mid has its own bucket; beyond, the bucket is
  mid + ceil((mid - 1) ln(min(|r|, M - 1) / mid) / ln((M - 1) / mid)), with the sign of r. Made with
  numpy, because the last distance sits exactly on a step of the ceiling.
  """
  if longest is not None:
    r = np.clip(r, -longest, longest)
  mid = num_buckets // 2
  far = np.minimum(np.abs(r), max_distance - 1).clip(mid)
  steps = np.log(far / mid) / np.log((max_distance - 1) / mid) * (mid - 1)
  bucket = np.where(np.abs(r) <= mid, r, np.sign(r) * (mid + np.ceil(steps))).astype(np.int32)
  return bucket + num_buckets - 1


class RelativePositions(nn.Module):
  """The bucket vectors, normalised: γ · LN(P) + β, of shape [2 K - 1, D].

  Attributes:
    embed_dim: D.
    num_buckets: K.
    eps: Of the norm.
  """

  embed_dim: int
  num_buckets: int
  eps: float

  @nn.compact
  def __call__(self) -> Float[Array, "P D"]:
    shape = (2 * self.num_buckets - 1, self.embed_dim)
    table_PD = self.param("embedding", truncated_normal(self.embed_dim), shape)
    return LayerNorm(eps=self.eps, name="norm")(table_PD)


def disentangled_bias(
  q_BTNH: Float[Array, "B T N H"],
  k_BSNH: Float[Array, "B S N H"],
  position_q_PNH: Float[Array, "P N H"],
  position_k_PNH: Float[Array, "P N H"],
  bucket_TS: Int[np.ndarray, "T S"] | Int[Array, "T S"],
  *,
  lookup: str,
  read_BT: Int[Array, "B T"] | None = None,
) -> Float[Array, "B N T S"]:
  """q_i · rk_{b(i,j)} + k_j · rq_{b(i,j)}, the same bucket in both terms; not yet scaled.

  The products are taken per bucket and then looked up per pair, so no [T, S, D] tensor exists.

  Args:
    q_BTNH: Queries.
    k_BSNH: Keys.
    position_q_PNH: Bucket vectors through the layer's query projection.
    position_k_PNH: Bucket vectors through the layer's key projection.
    bucket_TS: From `bucket_table` or `bucket_rows`.
    lookup: "one_hot" (a matrix product; accelerators) or "gather".
    read_BT: Where each row's queries stand, in `bucket_TS`; None where they are all there are.
  """
  dtype = jnp.promote_types(q_BTNH.dtype, jnp.float32)
  if isinstance(bucket_TS, np.ndarray):
    # Short texts meet few of the buckets.
    met = slice(bucket_TS.min(), bucket_TS.max() + 1)
    position_q_PNH, position_k_PNH = position_q_PNH[met], position_k_PNH[met]
    bucket_TS = bucket_TS - bucket_TS.min()
  content_BNTP = jnp.einsum("BTNH,PNH->BNTP", q_BTNH, position_k_PNH, preferred_element_type=dtype)
  content_BNSP = jnp.einsum("BSNH,PNH->BNSP", k_BSNH, position_q_PNH, preferred_element_type=dtype)
  if lookup == "gather" or read_BT is not None:
    bucket_BTS = bucket_TS[None] if read_BT is None else jnp.asarray(bucket_TS)[read_BT]
    bucket_BNTS = bucket_BTS[:, None]
    to_key_BNTS = jnp.take_along_axis(content_BNTP, bucket_BNTS, axis=-1)
    to_query_BNST = jnp.take_along_axis(content_BNSP, bucket_BNTS.swapaxes(-1, -2), axis=-1)
    return to_key_BNTS + to_query_BNST.swapaxes(-1, -2)
  one_hot_TSP = jax.nn.one_hot(bucket_TS, position_k_PNH.shape[0], dtype=q_BTNH.dtype)
  return jnp.einsum(
    "BNTP,TSP->BNTS", content_BNTP.astype(q_BTNH.dtype), one_hot_TSP, preferred_element_type=dtype
  ) + jnp.einsum(
    "BNSP,TSP->BNTS", content_BNSP.astype(q_BTNH.dtype), one_hot_TSP, preferred_element_type=dtype
  )


def one_query_bias(
  q_B1NH: Float[Array, "B 1 N H"],
  k_BSNH: Float[Array, "B S N H"],
  position_q_NSH: Float[Array, "N S H"],
  position_k_NSH: Float[Array, "N S H"],
) -> Float[Array, "B N 1 S"]:
  """`disentangled_bias` of one query, which meets every key in one bucket.

  Args:
    q_B1NH: The query.
    k_BSNH: Keys.
    position_q_NSH: The vector of each key's bucket through the layer's query projection.
    position_k_NSH: The same through its key projection.
  """
  dtype = jnp.promote_types(q_B1NH.dtype, jnp.float32)
  q_BNH = q_B1NH[:, 0]
  to_key_BNS = jnp.einsum("NSH,BNH->BNS", position_k_NSH, q_BNH, preferred_element_type=dtype)
  product_BNSH = k_BSNH.swapaxes(1, 2).astype(dtype) * position_q_NSH.astype(dtype)
  # The sum over H: XLA:CPU is several times faster at a product with ones than at a reduction.
  ones_H = jnp.ones(product_BNSH.shape[-1:], dtype)
  to_query_BNS = jnp.matmul(product_BNSH, ones_H, precision=jax.lax.Precision.HIGHEST)
  return (to_key_BNS + to_query_BNS)[:, :, None]
