"""Every pair is computed, by JAX's fused attention; cuDNN's, on NVIDIA GPUs, keeps no scores."""

from collections.abc import Callable
import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from looped_lm.errors import UserError

IMPLEMENTATIONS = ("xla", "cudnn")
# No probabilities exist that dropout could draw on or attention maps could show.
FORMS_PROBABILITIES = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
  """softmax(scale · (q kᵀ + bias)) v over the visible keys, by `jax.nn.dot_product_attention`.

  A query that may see nothing (padding) gets zeros and passes no gradient. It serves long rows and
  blocks without relative positions, whose bias is as large as the scores; probabilities cannot be
  dropped.

  Attributes:
    implementation: "xla", anywhere; "cudnn" on an NVIDIA GPU with a 16-bit compute_dtype.
  """

  implementation: Literal["xla", "cudnn"] = "xla"

  def __post_init__(self) -> None:
    if self.implementation not in IMPLEMENTATIONS:
      raise UserError(
        f"model.attention.implementation={self.implementation!r} is none of {IMPLEMENTATIONS}."
      )
    if self.implementation == "cudnn" and jax.default_backend() != "gpu":
      raise UserError(
        "model.attention.implementation='cudnn' needs an NVIDIA GPU, and this is "
        f"{jax.default_backend()!r}; take 'xla'."
      )

  def __call__(
    self,
    q_BTNH: Float[Array, "B T N H"],
    k_BSNH: Float[Array, "B S N H"],
    v_BSNH: Float[Array, "B S N H"],
    see_BTS: Bool[Array, "B T S"],
    bias_BNTS: Float[Array, "B N T S"] | None = None,
    *,
    scale: float,
    dropout: Callable[[jax.Array], jax.Array] | None = None,
  ) -> Float[Array, "B T N H"]:
    """Attends; arguments are those of `attention.dense`, and `dropout` is not called."""
    del dropout
    if bias_BNTS is not None:
      bias_BNTS = bias_BNTS * scale
      if self.implementation == "cudnn":
        bias_BNTS = bias_BNTS.astype(q_BTNH.dtype)
    c_BTNH = jax.nn.dot_product_attention(
      q_BTNH,
      k_BSNH,
      v_BSNH,
      bias_BNTS,
      see_BTS[:, None],
      scale=scale,
      implementation=self.implementation,
    )
    return jnp.where(see_BTS.any(axis=-1)[..., None, None], c_BTNH, 0)
