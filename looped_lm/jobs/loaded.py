"""What can be done with a trained model in Python."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from looped_lm import visibility
from looped_lm.data.tokenizer import Tokenizer
from looped_lm.errors import UserError
from looped_lm.evals import buckets
from looped_lm.evals.querying import Table, check_length
from looped_lm.evals.scoring import BACKENDS, Passage, Scorer
from looped_lm.generate.continuation import Continued
from looped_lm.generate.infill import Filled
from looped_lm.jobs import generation
from looped_lm.jobs.experiment import vocabulary_of
from looped_lm.models import looped
from looped_lm.train import parallel
from looped_lm.types import Inputs, Model, Params, Subject

_CONTINUING = (
  *("batch_size", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
  *("stop", "seed", "cache", "cache_budget"),
  *("halting", "halting_threshold", "halting_patience", "halting_min_loops"),
)
_FILLING = ("temperature", "top_k", "top_p", "min_p", "seed")


class Scored(NamedTuple):
  """What texts got.

  Attributes:
    nats_N: Log-probability of each text's scored tokens, natural logarithm, not divided by their
      number.
    tokens_N: How many tokens were scored.
  """

  nats_N: Float[np.ndarray, " N"]
  tokens_N: Int[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rows:
  """What scoring asks of the text that a model was trained on.

  Attributes:
    seq_len: Tokens of a row.
  """

  seq_len: int


class LoadedModel:
  """A model, its weights and its tokenizer; made by `loading.load`.

  `num_loops` can be set, and holds for everything that follows. The other attributes are to be
  read.
  """

  def __init__(
    self,
    *,
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    objective: str,
    seq_len: int,
    batch_size: int,
  ) -> None:
    """Takes what was read.

    Args:
      model: The model.
      params: Its parameters, on one device.
      tokenizer: Its tokenizer.
      config: What `config` gives.
      generation: The `generate` group.
      objective: What it was trained by.
      seq_len: Tokens of a training row.
      batch_size: Rows of a batch, at most.
    """
    self._trained = self._model = model
    self._params = params
    self._tokenizer = tokenizer
    self._config = config
    self._generation = generation
    self._objective = objective
    self._seq_len = seq_len
    self._batch_size = batch_size
    self._depths: dict[int, Model] = {model.num_loops: model}

  # ---- What it is

  @property
  def config(self) -> Mapping[str, Any]:
    """The run's whole config, as the checkpoint keeps it; of an export, its `model` group alone."""
    return self._config

  @property
  def params(self) -> Params:
    """The parameters: a nested dict of arrays on one device."""
    return self._params

  @property
  def tokenizer(self) -> Tokenizer:
    """The tokenizer: `encode` without `<s>`, `decode`, and the ids of the specials."""
    return self._tokenizer

  @property
  def model(self) -> Model:
    """The pure functions of the parameters, at the number of loops that is set."""
    return self._model

  @property
  def num_loops(self) -> int:
    """How often the core is applied. Any number from 1 on works, whatever was trained."""
    return self._model.num_loops

  @num_loops.setter
  def num_loops(self, number: int) -> None:
    model = looped.at_depth(self._trained, number)
    # One model per depth, so that going back to it compiles nothing.
    self._model = self._depths.setdefault(model.num_loops, model)

  # ---- What it does

  def score(
    self, texts: Sequence[str], *, mode: str = "causal", starts: Sequence[int] | None = None
  ) -> Scored:
    """How likely the model finds texts, as the evaluations on minimal pairs ask it.

    Args:
      texts: At least a token each.
      mode: "causal", each token from what came before; "mntp", each masked alone and read one
        position earlier; "mlm", read in its place.
      starts: First scored character of each text; without it, all tokens behind `<s>` are scored.

    Raises:
      UserError: A wrong argument, a text without a token to score, or one longer than the model can
        read.
    """
    texts = _listed(texts, "texts")
    if mode not in BACKENDS:
      raise UserError(f"mode={mode!r} is none of {list(BACKENDS)}.")
    if starts is None:
      starts = [0] * len(texts)
    if len(starts) != len(texts):
      raise UserError(f"starts has {len(starts)} numbers for {len(texts)} texts; give one each.")
    if not texts:
      return Scored(np.zeros(0), np.zeros(0, np.int64))
    passages = [
      Passage(text=text, start=start, where=f"texts[{index}]")
      for index, (text, start) in enumerate(zip(texts, starts, strict=True))
    ]
    length_N = np.array([1 + len(each.ids_T) for each in self.tokenizer.locate_batch(texts)])
    needed = (length_N if mode == "causal" else length_N * length_N).sum()
    scorer = Scorer(subject=self._subject(int(needed)), backend=mode)
    scores = scorer.score(self._placed, passages)
    return Scored(scores.nats_LN[-1], scores.tokens_N)

  def generate(self, prompts: Sequence[str], **settings: Any) -> list[Continued]:
    """Continues texts, as --mode=generate does.

    Args:
      prompts: The texts; "" starts one.
      **settings: Fields of the config's `generate` group, e.g. max_new_tokens=20, temperature=0;
        those not given are the run's own.

    Raises:
      UserError: A wrong setting, or a text longer than the model can read.
    """
    prompts, group = _listed(prompts, "prompts"), self._settings(settings, _CONTINUING)
    generation.check(group, model=self._settings_of_model, objective=self._objective)
    generator = generation.generator(group, self._model, self.params, self.tokenizer)
    found: list[Continued] = []
    for first in range(0, len(prompts), group["batch_size"]):
      batch = prompts[first : first + group["batch_size"]]
      found += generator.run(batch, first_index=first)[0]
    return found

  def infill(self, texts: Sequence[str], **settings: Any) -> list[Filled]:
    """Fills every `<mask>`, as --mode=generate does with generate.task=infill.

    Args:
      texts: With a `<mask>` for each token to fill.
      **settings: temperature, top_k, top_p, min_p, seed; those not given are the run's own.

    Raises:
      UserError: A wrong setting, a text without a mask or longer than the model can read, or a
        model that was trained without masks.
    """
    texts, group = _listed(texts, "texts"), self._settings(settings, _FILLING)
    group |= {"task": "infill", **generation.CONTINUES_ONLY}
    generation.check(group, model=self._settings_of_model, objective=self._objective)
    return generation.infiller(group, self._model, self.params, self.tokenizer).run(texts)

  def hidden_states(
    self, texts: Sequence[str], *, mode: str = "causal"
  ) -> list[Float[np.ndarray, "R T D"]]:
    """The recurrent state after every loop, for each position of each text.

    They are what `model.encode` gives for the text alone. Position 0 is `<s>`. A state of several
    lanes (hyper_connections) is [R, T, lanes, D].

    Args:
      texts: Any number.
      mode: "causal", a position sees what came before it; "mntp", it sees the whole text.

    Raises:
      UserError: A wrong argument, or a text longer than the model can read.
    """
    texts = _listed(texts, "texts")
    if mode not in ("causal", "mntp"):
      raise UserError(f"mode={mode!r} is none of ['causal', 'mntp'].")
    bos, pad = self.tokenizer.bos_id, self.tokenizer.pad_id
    ids = [
      np.concatenate([np.array([bos], np.int32), each.ids_T])
      for each in self.tokenizer.locate_batch(texts)
    ]
    length_N = np.array([len(each) for each in ids], np.int64)
    check_length(self._model, length_N)
    table, found = Table(ids), {}
    read = _states_program(self._model, mode == "causal")
    for length, rows, index_M in buckets.batches(
      length_N,
      batch_tokens=self._rows(int(length_N.sum())) * self._seq_len,
      seq_len=self._seq_len,
      multiple=1,
      most=self._model.max_length,
    ):
      tokens_BT = np.full((rows, length), pad, np.int32)
      tokens_BT[: len(index_M)] = table.rows(index_M, length, pad=pad)
      length_B = np.ones(rows, np.int32)
      length_B[: len(index_M)] = length_N[index_M]
      states_RBTD = np.asarray(read(self.params, tokens_BT, length_B))
      for row, index in enumerate(index_M.tolist()):
        found[index] = states_RBTD[:, row, : length_N[index]].copy()
    return [found[index] for index in range(len(texts))]

  # ---- With what

  @functools.cached_property
  def _strategy(self) -> parallel.Pmap:
    return parallel.Pmap()

  @functools.cached_property
  def _placed(self) -> Params:
    """The parameters on every device."""
    return self._strategy.replicate(self.params)

  def _subject(self, needed_tokens: int) -> Subject:
    return Subject(
      model=self._model,
      vocabulary=vocabulary_of(self.tokenizer),
      tokenizer=self.tokenizer,
      held_out=_Rows(seq_len=self._seq_len),
      unigram_V=None,
      strategy=self._strategy,
      batch_size=self._rows(needed_tokens),
      num_batches=0,
    )

  def _rows(self, needed_tokens: int) -> int:
    """Rows of a batch: a power of two, no more than a few texts need, so that these are quick."""
    enough = 2 ** math.ceil(math.log2(max(1.0, needed_tokens / self._seq_len)))
    return min(self._batch_size, enough)

  @property
  def _settings_of_model(self) -> Mapping[str, Any]:
    return {**self.config["model"], "num_loops": self.num_loops}

  def _settings(self, given: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """The run's `generate` group with what was given, at the loops that are set."""
    for name in given:
      if name == "num_loops":
        raise UserError("num_loops is not given per call: set it on the model, for all it does.")
      if name not in known:
        raise UserError(f"{name} is not a setting here; there are {list(known)}.")
    group = {**self._generation, **given, "task": "continue", "num_loops": self.num_loops}
    if isinstance(group["stop"], str):
      group["stop"] = (group["stop"],)
    return group


@functools.lru_cache(maxsize=16)
def _states_program(model: Model, causal: bool) -> Callable[..., Any]:
  """(params, tokens_BT, length_B) -> states_RBTD, compiled."""
  order = visibility.causal if causal else visibility.bidirectional

  @jax.jit
  def read(
    params: Params, tokens_BT: Int[Array, "B T"], length_B: Int[Array, " B"]
  ) -> Float[Array, "R B T D"]:
    inputs = Inputs(
      tokens_BT=tokens_BT,
      order_BT=order(tokens_BT),
      segments_BT=(jnp.arange(tokens_BT.shape[1]) < length_B[:, None]).astype(jnp.int32),
      row_B=jnp.arange(len(tokens_BT), dtype=jnp.int32),
    )
    output = model.encode(params, inputs, num_loops=model.num_loops, keep_states=True)
    assert output.states_RBTD is not None
    return output.states_RBTD

  return read


def _listed(texts: Sequence[str], what: str) -> list[str]:
  if isinstance(texts, str):
    raise UserError(f"{what} must be a list of texts, not one text: [{texts[:40]!r}].")
  return list(texts)
