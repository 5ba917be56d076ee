"""What surrounds the core in every loop, whatever the injection: all of it optional.

The loop index is each row's own count, so that rows of different depth in one batch are treated as
if each were alone. Per-loop tables have one entry per trained loop; deeper loops use the last.
"""

from collections.abc import Mapping
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from looped_lm.errors import UserError
from looped_lm.nn import initial
from looped_lm.nn.linear import Linear
from looped_lm.nn.norms import NORMS, Norm, per_row
from looped_lm.nn.precision import widen

_NORMS = ("none", *NORMS)
_CHOICES = {
  "prelude_norm": _NORMS,
  "exit_norm": (*_NORMS, "head"),
  "entry_norm": _NORMS,
  "loop_embedding": ("none", "learned", "sinusoidal"),
}


class Recurrence(nn.Module):
  """Prelude norm, loop embedding, per-loop norm, per-loop step size, exit norm, read-out matrix.

  Attributes:
    embed_dim: D.
    num_loops: Entries of the per-loop tables.
    prelude_norm: Norm of the prelude's output: "none", "rms" or "layer". Source: Parcae.
    entry_norm: Norm of what the core reads, with a scale and bias per loop.
    exit_norm: Norm of the state when the recurrence is left; "head" is the read-out's own norm, so
      that one scale serves both places (Huginn). Applied by the model.
    norm_eps: Of these norms.
    norm_bias: Whether the prelude's and the exit's have a bias.
    loop_embedding: Added to what the core reads: "none", "learned" (starts at zero) or "sinusoidal"
      (Universal Transformer).
    step_sizes: Whether h ← h + α_r (new − h) with one learned α per loop, starting at 1.
    readout: Whether a matrix C is applied to the state when the recurrence is left (Parcae).
    readout_init: Its initialiser.
    readout_std: Standard deviation of its entries.
    compute_dtype: Of the matrix product.
  """

  embed_dim: int
  num_loops: int
  prelude_norm: str = "none"
  entry_norm: str = "none"
  exit_norm: str = "none"
  norm_eps: float = 1e-5
  norm_bias: bool = False
  loop_embedding: str = "none"
  step_sizes: bool = False
  readout: bool = False
  readout_init: str = "orthogonal"
  readout_std: float = 0.0
  compute_dtype: str = "float32"

  def setup(self):
    shape = (self.num_loops, self.embed_dim)
    if self.prelude_norm != "none":
      self.norm_prelude = Norm(self.prelude_norm, self.norm_eps, use_bias=self.norm_bias)
    if self.entry_norm != "none":
      self.norm_entry = Norm(
        self.entry_norm, self.norm_eps, use_bias=True, num_loops=self.num_loops
      )
    if self.exit_norm in NORMS:
      self.norm_exit = Norm(self.exit_norm, self.norm_eps, use_bias=self.norm_bias)
    if self.loop_embedding == "learned":
      self.embedding = self.param("embedding", nn.initializers.zeros, shape)
    if self.step_sizes:
      self.step_size = self.param("step_size", nn.initializers.ones, (self.num_loops,))
    if self.readout:
      init = initial.weights(self.readout_init, self.readout_std)
      self.matrix = Linear(
        self.embed_dim, init, compute_dtype=self.compute_dtype, name="readout_matrix"
      )

  def begin(self, e_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """What the injection gets of the prelude's output."""
    return e_BTD if self.prelude_norm == "none" else self.norm_prelude(e_BTD)

  def enter(self, x_BTD: Float[Array, "B T D"], loop_B: Int[Array, " B"]) -> Float[Array, "B T D"]:
    """What the core reads."""
    if self.loop_embedding == "learned":
      x_BTD = x_BTD + per_row(self.embedding, loop_B)[:, None]
    elif self.loop_embedding == "sinusoidal":
      x_BTD = x_BTD + sinusoid(loop_B, self.embed_dim, x_BTD.dtype)[:, None]
    return x_BTD if self.entry_norm == "none" else self.norm_entry(x_BTD, loop_B)

  def update(self, old: jax.Array, new: jax.Array, loop_B: Int[Array, " B"]) -> jax.Array:
    """The state after a loop, from the one before and what the injection makes of it."""
    if not self.step_sizes:
      return new
    size_B = per_row(self.step_size, loop_B)
    return old + size_B.reshape(-1, *(1,) * (new.ndim - 1)) * (new - old)

  def leave(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """What the coda reads."""
    if self.exit_norm in NORMS:
      x_BTD = self.norm_exit(x_BTD)
    return widen(self.matrix(x_BTD)) if self.readout else x_BTD


def sinusoid(index: Int[Array, " I"], embed_dim: int, dtype: jnp.dtype) -> Float[Array, "I D"]:
  """sin and cos of the index at D / 2 wavelengths from 2π to 10,000 · 2π. D is even.

  Source: Vaswani et al., 2017; for loops: Dehghani et al., 2019.
  """
  rate_P = jnp.exp(-math.log(10_000.0) * jnp.arange(0, embed_dim, 2, dtype=dtype) / embed_dim)
  angle_IP = index[:, None].astype(dtype) * rate_P
  return jnp.concatenate([jnp.sin(angle_IP), jnp.cos(angle_IP)], axis=-1)


def check(settings: Mapping[str, Any], *, embed_dim: int) -> None:
  """Checks the settings before anything is built.

  Raises:
    UserError: A value that cannot work.
  """
  for name, known in _CHOICES.items():
    if settings.get(name, "none") not in known:
      raise UserError(f"model.recurrence.{name}={settings[name]!r} is none of {list(known)}.")
  if settings.get("loop_embedding") == "sinusoidal" and embed_dim % 2:
    raise UserError(
      f"model.recurrence.loop_embedding='sinusoidal' needs an even model.embed_dim, "
      f"not {embed_dim}."
    )
  if settings.get("readout"):
    if settings.get("readout_std", 0.0) <= 0:
      raise UserError(
        f"model.recurrence.readout_std={settings.get('readout_std', 0.0)} must be above 0: a "
        "read-out matrix of zeros would cut the model in two."
      )
    initial.check({"readout_init": "orthogonal", **settings}, "readout", where="model.recurrence")
