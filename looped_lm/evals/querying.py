"""Rows to the device and log-probabilities back: in few shapes, on all devices."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
import functools
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from looped_lm import visibility
from looped_lm.errors import UserError
from looped_lm.evals import buckets
from looped_lm.types import Inputs, Model, Params, Subject

# Batches on their way to the device: enough to keep it busy, and memory stays bounded.
_IN_FLIGHT = 4


@struct.dataclass
class Queries:
  """A batch of rows, each asked for the log-probability of K tokens.

  Attributes:
    tokens_BT: What the model reads.
    segments_BT: 1, and 0 for padding.
    row_B: As in `types.Batch`.
    read_BK: Positions that are read out.
    target_BK: The token asked for at each.
  """

  tokens_BT: Int[Array, "B T"]
  segments_BT: Int[Array, "B T"]
  row_B: Int[Array, " B"]
  read_BK: Int[Array, "B K"]
  target_BK: Int[Array, "B K"]


# Gives tokens_BT, read_BK and target_BK of some rows at a length.
Fill = Callable[[Int[np.ndarray, " M"], int], tuple[np.ndarray, np.ndarray, np.ndarray]]


class Table:
  """Sequences laid end to end, so that rows of them are cut without a loop."""

  def __init__(self, ids: Sequence[np.ndarray]):
    self.length_S = np.array([len(each) for each in ids], np.int64)
    self._start_S = np.cumsum(self.length_S) - self.length_S
    self._tokens = np.concatenate([*ids, np.zeros(1, np.int32)])

  def rows(self, row_M: Int[np.ndarray, " M"], length: int, *, pad: int) -> Int[np.ndarray, "M T"]:
    """Cuts some of them, filled up to a length."""
    place_T = np.arange(length)
    index_MT = np.minimum(self._start_S[row_M, None] + place_T, len(self._tokens) - 1)
    real_MT = place_T < self.length_S[row_M, None]
    return np.where(real_MT, self._tokens[index_MT], pad).astype(np.int32)


def ask(
  subject: Subject,
  params: Params,
  length_N: Int[np.ndarray, " N"],
  fill: Fill,
  *,
  causal: bool,
  loops: tuple[int, ...],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Asks for the log-probabilities of tokens, a batch of rows at a time.

  Args:
    subject: The model and the devices.
    params: Its parameters.
    length_N: Tokens of each of N rows.
    fill: Makes the rows.
    causal: Whether a position sees only what came before it.
    loops: Loops after which the state is read out.

  Raises:
    UserError: A row is longer than the model can read.

  Yields:
    (indices of the rows, their log-probabilities [L, M, K] in nats).
  """
  check_length(subject.model, length_N)
  program = _program(subject.strategy, subject.model, loops, causal)
  processes = jax.process_count()
  flying: deque[tuple[np.ndarray, Any]] = deque()
  for length, rows, index_M in buckets.batches(
    length_N,
    batch_tokens=subject.batch_size * subject.held_out.seq_len,
    seq_len=subject.held_out.seq_len,
    multiple=jax.device_count(),
    most=subject.model.max_length,
  ):
    tokens_MT, read_MK, target_MK = fill(index_M, length)
    real_MT = np.arange(length) < length_N[index_M, None]
    # Rows of padding fill the batch up. Each process computes its share of the rows.
    share = rows // processes
    mine = slice(jax.process_index() * share, (jax.process_index() + 1) * share)
    queries = Queries(
      tokens_BT=_padded(tokens_MT, rows)[mine],
      segments_BT=_padded(real_MT, rows)[mine],
      row_B=_padded(np.arange(rows), rows)[mine],
      read_BK=_padded(read_MK, rows)[mine],
      target_BK=_padded(target_MK, rows)[mine],
    )
    flying.append((index_M, program(params, subject.strategy.split(queries))))
    if len(flying) > _IN_FLIGHT:
      yield _landed(flying.popleft())
  while flying:
    yield _landed(flying.popleft())


def check_length(model: Model, length_N: Int[np.ndarray, " N"]) -> None:
  """Raises a UserError for a row that is longer than the model can read."""
  most = model.max_length
  if most is not None and length_N.max(initial=0) > most:
    raise UserError(
      f"A text to score has {length_N.max()} tokens, `<s>` included; the model reads at most "
      f"{most}. Train it with more positions, or with positions that set no limit."
    )


def _padded(x_M: np.ndarray, rows: int) -> Any:
  empty = np.zeros((rows - len(x_M), *x_M.shape[1:]), np.int32)
  return np.concatenate([x_M.astype(np.int32), empty])


def _landed(batch: tuple[np.ndarray, Any]) -> tuple[np.ndarray, np.ndarray]:
  index_M, nats_BKL = batch
  return index_M, np.moveaxis(np.asarray(nats_BKL)[: len(index_M)], -1, 0)


@functools.lru_cache(maxsize=16)
def _program(
  strategy: Any, model: Model, loops: tuple[int, ...], causal: bool
) -> Callable[..., Any]:
  """The compiled read-out; shared by all tasks, so that each shape is compiled once."""
  order = visibility.causal if causal else visibility.bidirectional

  def log_probs(params: Params, queries: Queries) -> Float[Array, "B K L"]:
    inputs = Inputs(
      tokens_BT=queries.tokens_BT,
      order_BT=order(queries.tokens_BT),
      segments_BT=queries.segments_BT,
      row_B=queries.row_B,
    )

    def read(hidden_BTD: jax.Array) -> jax.Array:
      picked_BKD = jnp.take_along_axis(hidden_BTD, queries.read_BK[..., None], axis=1)
      logits_BKV = model.readout(params, picked_BKD, queries.row_B)
      nats_BKV = jax.nn.log_softmax(logits_BKV, axis=-1)
      return jnp.take_along_axis(nats_BKV, queries.target_BK[..., None], axis=-1)[..., 0]

    if len(loops) == 1:
      return read(model.encode(params, inputs).hidden_BTD)[..., None]
    output = model.encode(params, inputs, num_loops=max(loops), keep_states=True)
    assert output.states_RBTD is not None
    states_LBTD = output.states_RBTD[jnp.array(loops) - 1]
    nats_LBK = jax.lax.map(lambda state: read(model.finish(params, state, inputs)), states_LBTD)
    return jnp.moveaxis(nats_LBK, 0, -1)

  return strategy.compile_rows(log_probs)
