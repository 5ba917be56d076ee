"""Continues texts: prompts of any lengths in one batch, one token at a time, with a cache."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int
import numpy as np

from looped_lm.errors import UserError
from looped_lm.generate.placing import Lay, together
from looped_lm.generate.sampling import Sampling, choose
from looped_lm.nn import cache
from looped_lm.nn.decode import Decoding
from looped_lm.types import Continuation, Model, Params

# Prompts are padded to a multiple of this, so that few lengths are compiled.
_PROMPT_STEP = 32
# What is decoded from half a character.
_HALF = "\ufffd"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Continued:
  """A prompt's continuation.

  Attributes:
    text: What follows the prompt, up to the stop string.
    ids: Its tokens; may reach beyond the stop string by part of a token.
    loops: Loops that each of these tokens was predicted with.
    finished: What ended it: "stop", "end of text" or "length".
  """

  text: str
  ids: tuple[int, ...]
  loops: tuple[int, ...]
  finished: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
  """What a batch took.

  Attributes:
    new_tokens: Of all rows.
    cache_bytes: Size of keys and values for the whole batch.
    first_seconds: Until every row had two tokens: compiling, and reading the prompts.
    timed_tokens: Those of all rows that came after.
    seconds: What these took.
  """

  new_tokens: int
  cache_bytes: int
  first_seconds: float
  timed_tokens: int
  seconds: float

  @property
  def tokens_per_second(self) -> float | None:
    """Of all rows together, once everything is compiled; None where too few were made."""
    return self.timed_tokens / self.seconds if self.timed_tokens and self.seconds else None


@dataclasses.dataclass(kw_only=True, eq=False)
class Generator:
  """Continues texts with one model.

  Attributes:
    model: The model.
    params: Its parameters, on one device or as `lay` fits.
    tokenizer: Its tokenizer.
    sampling: How a token is chosen.
    decoding: Depth, cache policy and halting.
    max_new_tokens: The longest continuation, at least 1.
    stop: Strings that end a continuation; they are not part of it.
    seed: Of all draws. A prompt's draws depend on it and on the prompt's index alone.
    lay: Says where rows and cache lie.
  """

  model: Model
  params: Params
  tokenizer: Any
  sampling: Sampling
  decoding: Decoding
  max_new_tokens: int
  stop: tuple[str, ...] = ()
  seed: int = 0
  lay: Lay = together

  def __post_init__(self):
    if self.max_new_tokens < 1:
      raise UserError(f"generate.max_new_tokens={self.max_new_tokens} must be at least 1.")
    if "" in self.stop:
      raise UserError("generate.stop holds an empty string, which would end every text at once.")

  def run(
    self,
    prompts: Sequence[str],
    *,
    first_index: int = 0,
    on_text: Callable[[int, str], None] | None = None,
  ) -> tuple[list[Continued], Cost]:
    """Continues a batch of prompts.

    Args:
      prompts: At least one; "" starts a text.
      first_index: Index of the first prompt among all, for its draws.
      on_text: Gets a prompt's place in the batch and its new text, as soon as it is certain.

    Raises:
      UserError: A prompt and its continuation exceed the model's positions.
    """
    ids = [[self.tokenizer.bos_id, *self.tokenizer.encode(prompt).tolist()] for prompt in prompts]
    longest = max(map(len, ids))
    width = -(-longest // _PROMPT_STEP) * _PROMPT_STEP
    most = self.model.max_length
    if most is not None:
      self._check_length(prompts, ids, most)
    capacity = width + self.max_new_tokens
    tokens_BT = np.full((len(ids), width), self.tokenizer.pad_id, np.int32)
    real_BS = np.ones((len(ids), capacity), bool)
    seen_BV = np.zeros((len(ids), self.model.vocab_size), bool)
    for row, own in enumerate(ids):
      tokens_BT[row, width - len(own) :] = own
      real_BS[row, : width - len(own)] = False
      seen_BV[row, own] = True
    rows = [_Row(self.tokenizer, own[1:], self.stop, self.max_new_tokens) for own in ids]
    past = _empty_cache(self.model, len(ids), capacity, self.decoding, self.lay, self.params)
    cache_bytes = cache.num_bytes(past)
    stream = self._tokens(tokens_BT, real_BS, seen_BV, past, first_index)
    started = time.perf_counter()
    timed_from, timed_tokens = started, 0
    for number, (token_B, loops_B) in enumerate(stream):
      running = 0
      for row, (state, token, loops) in enumerate(zip(rows, token_B, loops_B, strict=True)):
        if not state.finished:
          new = state.add(int(token), int(loops))
          running += 1
          if new and on_text is not None:
            on_text(row, new)
      if number < 2:
        timed_from = time.perf_counter()
      else:
        timed_tokens += running
      if all(state.finished for state in rows):
        break
    ended = time.perf_counter()
    return [state.result() for state in rows], Cost(
      new_tokens=sum(len(state.ids) for state in rows),
      seconds=ended - timed_from if timed_tokens else 0.0,
      first_seconds=timed_from - started,
      timed_tokens=timed_tokens,
      cache_bytes=cache_bytes,
    )

  def _tokens(
    self,
    tokens_BT: np.ndarray,
    real_BS: np.ndarray,
    seen_BV: np.ndarray,
    past: Any,
    first_index: int,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each next token of every row and the loops it was predicted with, without end."""
    index_B = jnp.arange(first_index, first_index + len(tokens_BT))
    key_B = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(self.seed)))(index_B)
    tokens, seen, start, number = jnp.asarray(tokens_BT), jnp.asarray(seen_BV), 0, 0
    # A text may end; no other special is text.
    barred = frozenset(self.tokenizer.special_ids) - {self.tokenizer.eos_id}
    advance = _program(self.model, self.sampling, self.decoding, barred, self.lay)
    while True:
      chunk = Continuation(tokens_BT=tokens, start=jnp.int32(start), real_BS=jnp.asarray(real_BS))
      start += tokens.shape[1]
      token_B, loops_B, seen, past = advance(
        self.params, past, chunk, seen, key_B, jnp.int32(number)
      )
      number += 1
      tokens = token_B[:, None]
      yield np.asarray(token_B), np.asarray(loops_B)

  def _check_length(self, prompts: Sequence[str], ids: list[list[int]], most: int) -> None:
    for prompt, own in zip(prompts, ids, strict=True):
      if len(own) + self.max_new_tokens - 1 > most:
        raise UserError(
          f"The prompt {_short(prompt)} has {len(own)} tokens with <s>, and {self.max_new_tokens} "
          f"new ones would exceed the model's {most} positions: shorten the prompt or lower "
          "generate.max_new_tokens."
        )


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _empty_cache(
  model: Model, batch: int, capacity: int, decoding: Decoding, lay: Lay, params: Params
) -> Any:
  """Made where it will lie: no device holds more than its part."""
  return _laid_cache(model.make_cache(params, batch, capacity, decoding), lay)


def _laid_cache(past: Any, lay: Lay) -> Any:
  return {
    cache.COLLECTION: lay(past[cache.COLLECTION], None, "rows", "heads", None, None),
    cache.FIXED: lay(past[cache.FIXED], None, "heads", None),
  }


def _next_logits(
  model: Model, decoding: Decoding, lay: Lay, params: Params, past: Any, chunk: Continuation
) -> tuple[jax.Array, jax.Array, Any]:
  """Reads a chunk: logits_BV of what follows, the loops_B of its last token, and the cache."""
  tokens_BT, real_BS = lay((chunk.tokens_BT, chunk.real_BS), "rows", None)
  chunk = Continuation(tokens_BT=tokens_BT, start=chunk.start, real_BS=real_BS)
  decoded, past = model.decode(params, past, chunk, decoding)
  row_B = jnp.arange(len(tokens_BT), dtype=jnp.int32)
  logits_BV = model.readout(params, decoded.hidden_BTD[:, -1:], row_B)[:, 0]
  return lay(logits_BV, "rows", None), decoded.loops_BT[:, -1], _laid_cache(past, lay)


@functools.lru_cache(maxsize=16)
def _program(
  model: Model, sampling: Sampling, decoding: Decoding, barred: frozenset[int], lay: Lay
) -> Callable[..., Any]:
  """The compiled step to the next token; shared by all generators that have these in common."""
  is_barred_V = np.zeros(model.vocab_size, bool)
  is_barred_V[sorted(barred)] = True

  @functools.partial(jax.jit, donate_argnums=(1, 3))
  def advance(
    params: Params,
    past: Any,
    chunk: Continuation,
    seen_BV: Bool[Array, "B V"],
    key_B: jax.Array,
    number: Int[Array, ""],
  ) -> tuple[jax.Array, jax.Array, jax.Array, Any]:
    logits_BV, loops_B, past = _next_logits(model, decoding, lay, params, past, chunk)
    logits_BV = jnp.where(is_barred_V, -jnp.inf, logits_BV)
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(key_B, number)
    token_B = choose(logits_BV, seen_BV, keys_B, sampling)
    seen_BV = seen_BV.at[jnp.arange(len(token_B)), token_B].set(True)
    # Every process reads what comes next.
    token_B, loops_B = lay((token_B, loops_B))
    return token_B, loops_B, lay(seen_BV, "rows", None), past

  return advance


class _Row:
  """One text as it grows."""

  def __init__(self, tokenizer: Any, prompt: list[int], stop: tuple[str, ...], max_new_tokens: int):
    self.ids: list[int] = []
    self.loops: list[int] = []
    self.finished = ""
    self._tokenizer = tokenizer
    self._prompt = prompt
    self._prompt_length = len(tokenizer.decode(prompt))
    self._stop = stop
    self._most = max_new_tokens
    self._text = ""
    self._shown = 0

  def add(self, token: int, loops: int) -> str:
    """Takes a token in and gives the text that is certain to stay and was not given yet."""
    if token == self._tokenizer.eos_id:
      self.finished = "end of text"
      return self._show(len(self._text))
    self.ids.append(token)
    self.loops.append(loops)
    self._text = self._tokenizer.decode(self._prompt + self.ids)[self._prompt_length :]
    found = [place for stop in self._stop if (place := self._text.find(stop)) >= 0]
    if found:
      self.finished, self._text = "stop", self._text[: min(found)]
    elif len(self.ids) == self._most:
      self.finished = "length"
    if self.finished:
      return self._show(len(self._text))
    certain = self._text.rstrip(_HALF)
    held = max((_overlap(certain, stop) for stop in self._stop), default=0)
    return self._show(len(certain) - held)

  def result(self) -> Continued:
    return Continued(
      text=self._text, ids=tuple(self.ids), loops=tuple(self.loops), finished=self.finished
    )

  def _show(self, end: int) -> str:
    new, self._shown = self._text[self._shown : end], max(self._shown, end)
    return new


def _overlap(text: str, stop: str) -> int:
  """Length of the longest end of the text with which the stop string begins."""
  most = min(len(text), len(stop) - 1)
  return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)


def _short(prompt: str) -> str:
  return repr(prompt if len(prompt) <= 40 else prompt[:40] + "…")
