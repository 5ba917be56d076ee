"""The records that flow between the parts, and the key to dimension letters.

A name such as `logits_BTV` states its shape:

| letter | dimension | letter | dimension |
|---|---|---|---|
| B | rows of a batch | N | attention heads |
| T | query position | K | key/value heads |
| S | key position | H | size of one head |
| D | embedding | V | vocabulary |
| F | MLP | L | distinct layers |
| R | loops | 1 | broadcast |
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
from typing import Any, Protocol

from flax import struct
import jax
from jaxtyping import Array, Bool, Float, Int, Key

Params = Any  # A nested dict of arrays.
# A figure that adds over devices and micro-batches: (sum, weight), divided once by the reader.
Ratio = tuple[Float[Array, ""], Float[Array, ""]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
  """What an objective must know of a tokenizer.

  Attributes:
    size: V; ids are 0 .. size - 1.
    num_special: Ids below it are specials: never drawn as a random replacement, never masked.
    bos_id: `<s>`, the start of every piece.
    pad_id: `<pad>`.
    mask_id: `<mask>`.
  """

  size: int
  num_special: int
  bos_id: int
  pad_id: int
  mask_id: int


@struct.dataclass
class Batch:
  """Rows of packed text.

  Attributes:
    tokens_BT: Token ids; every piece of a document starts with `<s>`.
    segments_BT: 1, 2, … for the pieces of a row, 0 for padding.
    row_B: Index of each row in the global batch of its step: keys its randomness.
  """

  tokens_BT: Int[Array, "B T"]
  segments_BT: Int[Array, "B T"]
  row_B: Int[Array, " B"]


@struct.dataclass
class Inputs:
  """What a model reads.

  Attributes:
    tokens_BT: Token ids, corrupted where the objective says so.
    order_BT: A query sees the keys of its segment whose order is not later than its own.
    segments_BT: Equal means same document; 0 is padding, seen by nobody.
    row_B: As in `Batch`.
  """

  tokens_BT: Int[Array, "B T"]
  order_BT: Int[Array, "B T"]
  segments_BT: Int[Array, "B T"]
  row_B: Int[Array, " B"]


@struct.dataclass
class Output:
  """What a model's encoder gives.

  Attributes:
    hidden_BTD: After the coda, ready for `Model.readout`.
    states_RBTD: The recurrent state after every loop, or None unless asked for. Where rows take
      loops of their own, each is counted from its own first, and its last state repeats.
    watched: Of each collection that was watched: path -> array, as `nn/watch.py` says; inside the
      recurrence with a first axis of loops.
  """

  hidden_BTD: Float[Array, "B T D"]
  states_RBTD: Float[Array, "R B T D"] | None = None
  watched: Mapping[str, Mapping[str, Array]] | None = None


@struct.dataclass
class Continuation:
  """Tokens that a model reads after others, which its cache holds. The order is causal.

  Attributes:
    tokens_BT: The new tokens.
    start: Place of the first of them among all.
    real_BS: Which places hold a token, those of the chunk included; the others are padding, which
      may stand before a text but not in it. S is the cache's capacity.
  """

  tokens_BT: Int[Array, "B T"]
  start: Int[Array, ""]
  real_BS: Bool[Array, "B S"]

  @property
  def real_BT(self) -> Bool[Array, "B T"]:
    """Which of the new tokens are no padding."""
    return jax.lax.dynamic_slice_in_dim(self.real_BS, self.start, self.tokens_BT.shape[1], axis=1)


@struct.dataclass
class Decoded:
  """What reading a `Continuation` gives.

  Attributes:
    hidden_BTD: After the coda, ready for `Model.readout`.
    loops_BT: Loops that each token took; 0 for padding.
    executed_loops: Loops that the chunk took, a halted token's last one for its keys included.
  """

  hidden_BTD: Float[Array, "B T D"]
  loops_BT: Int[Array, "B T"]
  executed_loops: Int[Array, ""]


@struct.dataclass
class Task:
  """A batch as an objective poses it.

  Attributes:
    inputs: What the model reads.
    targets_BT: The token to predict at each position; anything where the weight is 0.
    weight_BT: Weight of each position in the loss; 0 where nothing is predicted.
    mode_B: Which of the objective's `modes` a row belongs to.
  """

  inputs: Inputs
  targets_BT: Int[Array, "B T"]
  weight_BT: Float[Array, "B T"]
  mode_B: Int[Array, " B"]


@struct.dataclass
class Loss:
  """A sum and its weight: micro-batches and devices add, and the division comes last.

  Attributes:
    sum_nats: Sum of weighted losses.
    weight: Sum of the weights; the loss is `sum_nats / weight`.
    metrics: Other figures as (sum, weight), named `<mode>/<what>`.
  """

  sum_nats: Float[Array, ""]
  weight: Float[Array, ""]
  metrics: Mapping[str, Ratio]


@struct.dataclass
class State:
  """All that a step changes and a checkpoint keeps.

  Attributes:
    step: Optimiser steps taken.
    params: Raw parameters.
    ema: Their exponential moving average, or None when it is off.
    opt_state: The optimiser's state.
    key: The run's key; a step's key is `fold_in(key, step)`.
  """

  step: Int[Array, ""]
  params: Params
  ema: Params | None
  opt_state: Any
  key: Key[Array, ""]


class Encode(Protocol):
  """Reads a batch.

  `key` is the step's key: with it the call is one of training, with dropout, loops as the model's
  depth draws them at `progress` (steps taken over the steps of the run), and gradient through a
  row's last loops alone. Without it nothing is random and every row takes `Model.num_loops`.
  `num_loops` says the loops instead, one number or one per row; rows of their own loops carry
  gradient through the last ones alone even without a key. `watch` names collections of
  `nn/watch.py` to return; all rows must then take the same loops. `read_BK` names positions of each
  row to which `hidden_BTD` is then confined, [B, K, D]: what only the others need is left out. It
  goes without `key`, since dropout would be drawn for fewer positions.
  """

  def __call__(
    self,
    params: Params,
    inputs: Inputs,
    *,
    key: jax.Array | None = None,
    num_loops: int | Int[Array, " B"] | None = None,
    keep_states: bool = False,
    progress: Float[Array, ""] | float = 1.0,
    watch: Sequence[str] = (),
    read_BK: Int[Array, "B K"] | None = None,
  ) -> Output: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """A model as pure functions of its parameters.

  Attributes:
    init: key -> params.
    encode: (params, inputs, …) -> Output.
    finish: (params, state_BTD, inputs) -> hidden_BTD; sends one recurrent state through the coda,
      so that any loop can be read out.
    readout: (params, hidden_BTD, row_B, key=None) -> logits_BTV in at least float32.
    prepare: (params, hidden_BTD, row_B, key=None) -> (x_BTF, weights); all of `readout` but its
      last product, and what that is taken with. Dropout is drawn here, by row.
    project: (x, weights) -> logits of positions in any arrangement; `readout` is both in turn.
    draw_loops: (row_B, key, progress=1.0) -> loops_B, as `encode` draws them with the same key.
    make_cache: (params, batch, capacity, decoding) -> an empty cache for `decode` with the same
      parameters.
    decode: (params, cache, continuation, decoding) -> (Decoded, cache); `decoding` is a
      `nn.decode.Decoding`.
    max_length: The longest text in tokens, `<s>` included; None where positions set no limit.
    exit_probability: (params, state_BTD) -> probability_BT of leaving with this state, from the
      learned gate; None for a model without one.
    diagnose: params -> figures of the injection, e.g. the spectral radius of its decay.
    num_loops: Loops used where none are asked for and none drawn: those of evaluation.
    vocab_size: V.
  """

  init: Callable[[jax.Array], Params]
  encode: Encode
  finish: Callable[..., Float[Array, "B T D"]]
  readout: Callable[..., Float[Array, "B T V"]]
  prepare: Callable[..., tuple[Float[Array, "B T F"], Any]]
  project: Callable[[Any, Any], Float[Array, "... V"]]
  draw_loops: Callable[..., Int[Array, " B"]]
  make_cache: Callable[..., Any]
  decode: Callable[..., tuple[Decoded, Any]]
  max_length: int | None
  exit_probability: Callable[..., Float[Array, "B T"]] | None
  diagnose: Callable[[Params], dict[str, Float[Array, ""]]]
  num_loops: int
  vocab_size: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
  """What an evaluator may look at besides the parameters.

  Attributes:
    model: The model.
    vocabulary: The tokenizer's.
    tokenizer: The tokenizer itself.
    held_out: Rows of text that training never sees.
    unigram_V: Counts of each id among the training tokens.
    strategy: Splits batches over devices and compiles sums over them.
    batch_size: Rows of an evaluation batch.
    num_batches: Most batches to read; 0 reads all.
    backends: How texts are scored: "causal", "mntp", "mlm", as `evals.scoring` says.
    loops: Loops after which texts are scored too; () scores after the model's own number alone.
    folder: Where an evaluator may leave files, or None.
    milestones: Gives the weights a run kept on its way, in order: (name, words read, params). They
      are placed as the strategy wants them, one at a time.
  """

  model: Model
  vocabulary: Vocabulary
  tokenizer: Any
  held_out: Any
  unigram_V: Any
  strategy: Any
  batch_size: int
  num_batches: int
  backends: tuple[str, ...] = ("causal",)
  loops: tuple[int, ...] = ()
  folder: str | None = None
  milestones: Callable[[], Iterable[tuple[str, int, Params]]] = tuple
