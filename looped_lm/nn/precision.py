"""The dtype policy, in one place.

Parameters, residual stream, norms, softmax, logits statistics and losses are in at least float32;
only the operands of matrix products are cast, to the model's `compute_dtype`. Nothing is ever cast
down from float64, so that a run with x64 enabled is float64 throughout.
"""

import jax
import jax.numpy as jnp

COMPUTE_DTYPES = ("float32", "bfloat16")


def widen(x: jax.Array) -> jax.Array:
  """Casts to float32 unless the array is wider already."""
  return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def narrow(x: jax.Array, compute_dtype: str) -> jax.Array:
  """Casts an operand of a matrix product to the compute dtype; float64 stays."""
  if compute_dtype == "float32" or x.dtype == jnp.float64:
    return x
  return x.astype(compute_dtype)


def accumulator(x: jax.Array) -> jnp.dtype:
  """The dtype in which a product of such operands is summed and returned."""
  return jnp.promote_types(x.dtype, jnp.float32)
