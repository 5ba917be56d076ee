"""From logits to the next token."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from looped_lm.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
  """How the next token is chosen: penalty, temperature, then the cuts in the order listed.

  Attributes:
    temperature: Divides the logits; 0 takes the likeliest token.
    top_k: Keeps the k likeliest tokens; 0 keeps all.
    top_p: Keeps the fewest likeliest tokens that reach this probability together (nucleus
      sampling, Holtzman et al., 2020); 1 keeps all.
    min_p: Keeps tokens of at least this fraction of the likeliest one's probability (Nguyen et
      al., 2024); 0 keeps all.
    repetition_penalty: θ: logits of tokens already in the text are divided by θ where positive and
      multiplied where negative (CTRL, Keskar et al., 2019); 1 changes nothing.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0

  def __post_init__(self):
    rules = {
      "temperature": (self.temperature >= 0, "must be at least 0; 0 takes the likeliest token"),
      "top_k": (self.top_k >= 0, "must be at least 0; 0 keeps all tokens"),
      "top_p": (0 < self.top_p <= 1, "must lie in (0, 1]; 1 keeps all tokens"),
      "min_p": (0 <= self.min_p < 1, "must lie in [0, 1); 0 keeps all tokens"),
      "repetition_penalty": (self.repetition_penalty > 0, "must be above 0; 1 changes nothing"),
    }
    for name, (holds, rule) in rules.items():
      if not holds:
        raise UserError(f"generate.{name}={getattr(self, name)} {rule}.")


def choose(
  logits_BV: Float[Array, "B V"],
  seen_BV: Bool[Array, "B V"],
  key_B: Key[Array, " B"],
  sampling: Sampling,
) -> Int[Array, " B"]:
  """Chooses one token per row.

  Args:
    logits_BV: Of the next token; -inf for one that may not come.
    seen_BV: Tokens that the row's text already has.
    key_B: A key per row; unused at temperature 0.
    sampling: How.
  """
  logits_BV = logits_BV.astype(jnp.float32)
  if sampling.repetition_penalty != 1.0:
    theta = sampling.repetition_penalty
    changed_BV = jnp.where(logits_BV > 0, logits_BV / theta, logits_BV * theta)
    logits_BV = jnp.where(seen_BV, changed_BV, logits_BV)
  if sampling.temperature == 0:
    return logits_BV.argmax(-1).astype(jnp.int32)
  logits_BV = kept(logits_BV / sampling.temperature, sampling)
  return jax.vmap(jax.random.categorical)(key_B, logits_BV).astype(jnp.int32)


def kept(logits_BV: Float[Array, "B V"], sampling: Sampling) -> Float[Array, "B V"]:
  """The logits with -inf for every token that top-k, top-p or min-p drops.

  Equally likely tokens at the edge of top-k or top-p are all kept.
  """
  if 0 < sampling.top_k < logits_BV.shape[-1]:
    least_B1 = jax.lax.top_k(logits_BV, sampling.top_k)[0][:, -1:]
    logits_BV = jnp.where(logits_BV >= least_B1, logits_BV, -jnp.inf)
  if sampling.top_p < 1:
    sorted_BV = jnp.sort(logits_BV, axis=-1, descending=True)
    p_BV = jax.nn.softmax(sorted_BV, axis=-1)
    # A token stays while those before it have not reached top_p; so the first always stays.
    needed_BV = jnp.cumsum(p_BV, axis=-1) - p_BV < sampling.top_p
    least_B1 = jnp.where(needed_BV, sorted_BV, jnp.inf).min(axis=-1, keepdims=True)
    logits_BV = jnp.where(logits_BV >= least_B1, logits_BV, -jnp.inf)
  if sampling.min_p > 0:
    least_B1 = logits_BV.max(axis=-1, keepdims=True) + jnp.log(sampling.min_p)
    logits_BV = jnp.where(logits_BV >= least_B1, logits_BV, -jnp.inf)
  return logits_BV
