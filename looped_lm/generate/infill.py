"""Fills masks in a text, with a model that was trained to see both sides."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from looped_lm import visibility
from looped_lm.errors import UserError
from looped_lm.generate.placing import Lay, together
from looped_lm.generate.sampling import Sampling, choose
from looped_lm.types import Inputs, Model, Params

# Rows are padded to a multiple of this, so that few lengths are compiled.
_LENGTH_STEP = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filled:
  """A text without masks.

  Attributes:
    text: The whole text.
    fills: What each mask became, in the order of the text.
    probabilities: The model's probability of each, at the moment it was chosen.
  """

  text: str
  fills: tuple[str, ...]
  probabilities: tuple[float, ...]


@dataclasses.dataclass(kw_only=True, eq=False)
class Infiller:
  """Fills one mask after the other, the one the model is surest of first.

  Each `<mask>` is one token. Whatever was filled is seen by the masks that follow. Targets are
  shifted as in training (MNTP): the token at position i is predicted from position i - 1.

  Attributes:
    model: A model trained with masked rows (objective mntp or hybrid).
    params: Its parameters, on one device or as `lay` fits.
    tokenizer: Its tokenizer.
    sampling: How a token is chosen; the repetition penalty does not apply.
    num_loops: Loops of every token.
    seed: Of all draws.
    lay: Says where what is read lies: whole, since there is one row.
  """

  model: Model
  params: Params
  tokenizer: Any
  sampling: Sampling
  num_loops: int
  seed: int = 0
  lay: Lay = together

  def __post_init__(self):
    if self.num_loops < 1:
      raise UserError(f"generate.num_loops={self.num_loops} must be at least 1.")

  def run(self, texts: Sequence[str]) -> list[Filled]:
    """Fills each text's masks.

    Raises:
      UserError: A text has no `<mask>`, or is longer than the model's positions.
    """
    return [self._fill(index, text) for index, text in enumerate(texts)]

  def _fill(self, index: int, text: str) -> Filled:
    tokenizer = self.tokenizer
    ids = [tokenizer.bos_id, *tokenizer.encode_with_specials(text).tolist()]
    masks = [place for place, token in enumerate(ids) if token == tokenizer.mask_id]
    if not masks:
      raise UserError(f"The text {text!r} has no <mask> to fill; write <mask> for each token.")
    most = self.model.max_length
    if most is not None and len(ids) > most:
      raise UserError(
        f"The text {text[:40]!r} has {len(ids)} tokens with <s>; the model has {most} positions."
      )
    key = jax.random.fold_in(jax.random.key(self.seed), index)
    width = -(-len(ids) // _LENGTH_STEP) * _LENGTH_STEP
    if most is not None:
      width = min(width, most)
    read = _program(self.model, self.num_loops, frozenset(tokenizer.special_ids), self.lay)
    probabilities: dict[int, float] = {}
    chosen: dict[int, int] = {}
    for number in range(len(masks)):
      tokens_1T = np.full((1, width), tokenizer.pad_id, np.int32)
      tokens_1T[0, : len(ids)] = ids
      logits_TV, log_p_TV = read(self.params, jnp.asarray(tokens_1T), jnp.int32(len(ids)))
      open_ = [place for place in masks if place not in chosen]
      before_M = np.array(open_) - 1
      sure_M = np.asarray(log_p_TV[before_M].max(axis=-1))
      place = open_[int(sure_M.argmax())]
      row_V = logits_TV[place - 1][None]
      seen_V = jnp.zeros(row_V.shape, bool)
      keys = jax.random.fold_in(key, number)[None]
      token = int(choose(row_V, seen_V, keys, self.sampling)[0])
      ids[place], chosen[place] = token, token
      probabilities[place] = float(np.exp(log_p_TV[place - 1, token]))
    return Filled(
      text=tokenizer.decode(ids[1:]),
      fills=tuple(tokenizer.decode([chosen[place]]) for place in masks),
      probabilities=tuple(probabilities[place] for place in masks),
    )


@functools.lru_cache(maxsize=16)
def _program(model: Model, num_loops: int, barred: frozenset[int], lay: Lay) -> Callable[..., Any]:
  """The compiled reading of a text; shared by all infillers that have these in common."""
  is_barred_V = np.zeros(model.vocab_size, bool)
  is_barred_V[sorted(barred)] = True

  @jax.jit
  def read(
    params: Params, tokens_1T: Int[Array, "1 T"], length: Int[Array, ""]
  ) -> tuple[Float[Array, "T V"], Float[Array, "T V"]]:
    row_B = jnp.zeros((1,), jnp.int32)
    inputs = Inputs(
      tokens_BT=tokens_1T,
      order_BT=visibility.bidirectional(tokens_1T),
      segments_BT=(jnp.arange(tokens_1T.shape[1]) < length).astype(jnp.int32)[None],
      row_B=row_B,
    )
    hidden_BTD = model.encode(params, inputs, num_loops=num_loops).hidden_BTD
    logits_TV = model.readout(params, hidden_BTD, row_B)[0]
    logits_TV = jnp.where(is_barred_V, -jnp.inf, logits_TV)
    return lay((logits_TV, jax.nn.log_softmax(logits_TV)))

  return read
