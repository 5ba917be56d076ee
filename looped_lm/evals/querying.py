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

# Batches that the device works off one by one before it is given others: sending a small one takes
# as long as computing it.
_TOGETHER = 16
# Calls on their way to the device: enough to keep it busy, and memory stays bounded.
_IN_FLIGHT = 2


@struct.dataclass
class Queries:
  """G batches of rows, each row asked for the log-probability of K tokens.

  Attributes:
    tokens_BGT: What the model reads.
    segments_BGT: 1, and 0 for padding.
    row_BG: As in `types.Batch`.
    read_BGK: Positions that are read out.
    target_BGK: The token asked for at each.
  """

  tokens_BGT: Int[Array, "B G T"]
  segments_BGT: Int[Array, "B G T"]
  row_BG: Int[Array, "B G"]
  read_BGK: Int[Array, "B G K"]
  target_BGK: Int[Array, "B G K"]


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
    together=_TOGETHER,
  ):
    tokens_MT, read_MK, target_MK = fill(index_M, length)
    real_MT = np.arange(length) < length_N[index_M, None]
    # Each process computes its share of the rows.
    share = rows // processes
    mine = slice(jax.process_index() * share, (jax.process_index() + 1) * share)
    queries = Queries(
      tokens_BGT=_batched(tokens_MT, rows)[mine],
      segments_BGT=_batched(real_MT, rows)[mine],
      row_BG=_batched(np.arange(len(index_M)) % rows, rows)[mine],
      read_BGK=_batched(read_MK, rows)[mine],
      target_BGK=_batched(target_MK, rows)[mine],
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


def _batched(x_M: np.ndarray, rows: int) -> Any:
  """[B, G, …]: batch after batch, the last ones filled up with padding."""
  empty = np.zeros((rows * _TOGETHER - len(x_M), *x_M.shape[1:]), np.int32)
  x_GB = np.concatenate([x_M.astype(np.int32), empty]).reshape(_TOGETHER, rows, *x_M.shape[1:])
  return x_GB.swapaxes(0, 1)


def _landed(call: tuple[np.ndarray, Any]) -> tuple[np.ndarray, np.ndarray]:
  index_M, nats_BGKL = call
  nats_GBKL = np.asarray(nats_BGKL).swapaxes(0, 1)
  nats_MKL = nats_GBKL.reshape(-1, *nats_GBKL.shape[2:])[: len(index_M)]
  return index_M, np.moveaxis(nats_MKL, -1, 0)


@functools.lru_cache(maxsize=16)
def _program(
  strategy: Any, model: Model, loops: tuple[int, ...], causal: bool
) -> Callable[..., Any]:
  """The compiled read-out; shared by all tasks, so that each shape is compiled once."""
  order = visibility.causal if causal else visibility.bidirectional

  def log_probs(params: Params, queries: Queries) -> Float[Array, "B G K L"]:
    rows, together, asked = queries.read_BGK.shape

    def hidden_of(batch: Queries) -> Float[Array, "L B K D"]:
      return _hidden(model, order, loops, params, batch)

    def log_probs_of(batch: Queries) -> Float[Array, "B K L"]:
      return _read_out(model, params, hidden_of(batch), batch.target_BGK, batch.row_BG)

    # Batch by batch; those of padding alone are not computed.
    by_batch = jax.tree.map(lambda x: x.swapaxes(0, 1), queries)
    if asked > 1:
      return _each(log_probs_of, by_batch).swapaxes(0, 1)
    # One position of each row is a small product, so all batches' are read out in one.
    hidden_LBGD = jnp.moveaxis(_each(hidden_of, by_batch)[:, :, :, 0], 0, 2)
    target_BG, row_B = queries.target_BGK[..., 0], queries.row_BG[:, 0]
    nats_BGL = _read_out(model, params, hidden_LBGD, target_BG, row_B)
    return nats_BGL.reshape(rows, together, asked, len(loops))

  return strategy.compile_rows(log_probs)


def _each(function: Callable[[Queries], jax.Array], by_batch: Queries) -> jax.Array:
  """A function of each batch, one after the other; zeros for those of padding alone."""

  def of_batch(batch: Queries) -> jax.Array:
    like = jax.eval_shape(function, batch)
    return jax.lax.cond(
      batch.segments_BGT.any(),
      lambda: function(batch),
      lambda: jnp.zeros(like.shape, like.dtype),
    )

  return jax.lax.map(of_batch, by_batch)


def _hidden(
  model: Model, order: Callable[..., Any], loops: tuple[int, ...], params: Params, batch: Queries
) -> Float[Array, "L B K D"]:
  """What is read out of one batch, after each loop; the batch's arrays have no axis G."""
  inputs = Inputs(
    tokens_BT=batch.tokens_BGT,
    order_BT=order(batch.tokens_BGT),
    segments_BT=batch.segments_BGT,
    row_B=batch.row_BG,
  )

  def picked(hidden_BTD: jax.Array) -> jax.Array:
    return jnp.take_along_axis(hidden_BTD, batch.read_BGK[..., None], axis=1)

  if len(loops) == 1:
    if batch.read_BGK.shape == batch.tokens_BGT.shape:
      return picked(model.encode(params, inputs).hidden_BTD)[None]
    return model.encode(params, inputs, read_BK=batch.read_BGK).hidden_BTD[None]
  output = model.encode(params, inputs, num_loops=max(loops), keep_states=True)
  assert output.states_RBTD is not None
  states_LBTD = output.states_RBTD[jnp.array(loops) - 1]
  return jax.lax.map(lambda state: picked(model.finish(params, state, inputs)), states_LBTD)


def _read_out(
  model: Model,
  params: Params,
  hidden_LBKD: Float[Array, "L B K D"],
  target_BK: Int[Array, "B K"],
  row_B: Int[Array, " B"],
) -> Float[Array, "B K L"]:
  """Log-probabilities of the tokens asked for."""

  def of_loop(hidden_BKD: jax.Array) -> Float[Array, "B K"]:
    nats_BKV = jax.nn.log_softmax(model.readout(params, hidden_BKD, row_B), axis=-1)
    return jnp.take_along_axis(nats_BKV, target_BK[..., None], axis=-1)[..., 0]

  return jnp.moveaxis(jax.lax.map(of_loop, hidden_LBKD), 0, -1)
