"""Fine-tuning to tell labels apart: the whole model, and a small head on one token.

Source of the recipe: babylm-org/babylm-eval at 3d57ddc, `finetune`. Differs: rows go into few
lengths.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np
import optax

from looped_lm.errors import UserError
from looped_lm.evals import buckets, classifier
from looped_lm.evals.classifier import Rows
from looped_lm.evals.querying import Table
from looped_lm.types import Inputs, Model, Params, State, Subject


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How a task is learned.

  Attributes:
    learning_rate: The highest one.
    warmup_fraction: Part of the steps in which it rises from 0.
    floor_fraction: What a cosine then brings it down to, of the highest.
    weight_decay: Of all parameters, biases too.
    b1: Decay of the first moment.
    b2: Decay of the second moment.
    dropout_rate: In the head; the model has its own rates.
    batch_size: Rows of a step; a smaller set is one batch.
    epochs: Passes over the rows. What fills no batch is left out, other rows in every pass.
    token: Which token the head reads, one of `classifier.TOKENS`; padding is none.
    visibility: Who sees whom, one of `classifier.ORDERS`.
    seed: Of the head, the order of the rows and dropout.
  """

  learning_rate: float
  warmup_fraction: float
  floor_fraction: float
  weight_decay: float
  b1: float
  b2: float
  dropout_rate: float
  batch_size: int
  epochs: int
  token: str
  visibility: str
  seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epoch:
  """What a pass came to.

  Attributes:
    train_loss_nats: Mean loss of its steps.
    score: Of the validation rows.
  """

  train_loss_nats: float
  score: float


def finetune(
  subject: Subject,
  params: Params,
  recipe: Recipe,
  *,
  train: tuple[list[np.ndarray], Int[np.ndarray, " N"]],
  valid: tuple[list[np.ndarray], Int[np.ndarray, " M"]],
  num_classes: int,
  score: Callable[[Int[np.ndarray, " M"]], float],
  name: str,
) -> Iterator[tuple[Epoch, Int[np.ndarray, " M"]]]:
  """Fine-tunes a copy of the model, on all devices; the weights are not kept.

  Args:
    subject: The model and the devices.
    params: Its parameters, as the strategy placed them; they stay as they are.
    recipe: How.
    train: Tokens and labels to learn from.
    valid: Those to predict.
    num_classes: How many labels there are.
    score: Of predicted labels.
    name: Of the task, for messages.

  Raises:
    UserError: The loss or a prediction is not finite.

  Yields:
    After each pass what it came to, and the predicted labels.
  """
  batch_size = min(recipe.batch_size, len(train[0]))
  steps = len(train[0]) // batch_size
  width = _width(subject.model, params)
  tx = _optimizer(recipe)

  def make_state(params: Params) -> State:
    key_head, key_run = jax.random.split(jax.random.key(recipe.seed))
    # Copied, because a step consumes its state.
    tuned = {
      "encoder": jax.tree.map(jnp.copy, params),
      "classifier": classifier.init_head(key_head, width, num_classes),
    }
    return State(
      step=jnp.zeros((), jnp.int32),
      params=tuned,
      ema=None,
      opt_state={"adam": tx.init(tuned), "total_steps": jnp.int32(steps * recipe.epochs)},
      key=key_run,
    )

  state = subject.strategy.create(make_state, params)
  # What is compiled knows neither the size of the task nor the seed, and tasks share it.
  alike = dataclasses.replace(recipe, batch_size=0, epochs=0, seed=0)
  step, predict = _programs(subject.strategy, subject.model, alike, num_classes)
  table = Table(train[0])
  ladder = functools.partial(
    buckets.ladder, seq_len=subject.held_out.seq_len, most=subject.model.max_length
  )
  for epoch in range(recipe.epochs):
    order_N = np.random.default_rng((recipe.seed, epoch)).permutation(len(train[0]))
    losses, behind = [], None
    for index_M in order_N[: steps * batch_size].reshape(steps, batch_size):
      length = ladder(int(table.length_S[index_M].max()))[-1]
      rows = _rows(subject, table, train[1], index_M, length=length, rows=batch_size)
      state, loss = step(state, subject.strategy.split(rows))
      if behind is not None:  # One step behind, so that the device never waits.
        losses.append(float(behind))
      behind = loss
    assert behind is not None
    losses.append(float(behind))
    predicted_M = _predict(subject, state.params, predict, valid)
    if not np.isfinite(losses).all() or predicted_M is None:
      raise UserError(
        f"{name}: fine-tuning went to numbers that are not finite in epoch {epoch + 1}. Lower "
        f"evals.glue.learning_rate={recipe.learning_rate}, or look at the model's weights."
      )
    yield Epoch(train_loss_nats=float(np.mean(losses)), score=score(predicted_M)), predicted_M


@functools.lru_cache(maxsize=16)
def _programs(
  strategy: Any, model: Model, recipe: Recipe, num_classes: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
  """The compiled step and read-out; states of other numbers of classes may lie otherwise."""
  del num_classes
  step = strategy.compile_step(_make_step(model, recipe))
  return step, strategy.compile_rows(functools.partial(_logits, recipe, model))


def _logits(
  recipe: Recipe, model: Model, params: Params, rows: Rows, *, key: jax.Array | None = None
) -> Float[Array, "B C"]:
  return classifier.logits(
    model,
    params,
    rows,
    token=recipe.token,
    visibility=recipe.visibility,
    dropout_rate=recipe.dropout_rate,
    key=key,
  )


def _optimizer(recipe: Recipe) -> optax.GradientTransformation:
  """AdamW, without its rate."""
  return optax.chain(
    optax.scale_by_adam(b1=recipe.b1, b2=recipe.b2, eps=1e-8),
    optax.add_decayed_weights(recipe.weight_decay),
  )


def rate_at(
  step: Int[Array, ""] | int, recipe: Recipe, *, total_steps: Int[Array, ""] | int
) -> Float[Array, ""]:
  """The learning rate: up from 0 in a line, down to the floor by a cosine."""
  warmup = jnp.floor(recipe.warmup_fraction * jnp.asarray(total_steps))
  rising = step / jnp.maximum(warmup, 1)
  progress = (step - warmup) / jnp.maximum(total_steps - warmup, 1)
  falling = 0.5 * (1 + jnp.cos(jnp.pi * progress))
  falling = recipe.floor_fraction + (1 - recipe.floor_fraction) * falling
  return recipe.learning_rate * jnp.where(step < warmup, rising, falling)


def _make_step(model: Model, recipe: Recipe) -> Callable[..., tuple[State, Float[Array, ""]]]:
  """A pure step in the form that strategies compile: sums over devices, divided last."""
  tx = _optimizer(recipe)

  def step(
    state: State, rows: Rows, *, axis_name: str | None = None, placement: Any = None
  ) -> tuple[State, Float[Array, ""]]:
    key = jax.random.fold_in(state.key, state.step)

    def loss_sum(params: Params) -> Float[Array, ""]:
      logits_BC = _logits(recipe, model, params, rows, key=key)
      nats_B = optax.softmax_cross_entropy_with_integer_labels(logits_BC, rows.label_B)
      return (nats_B * rows.weight_B).sum()

    params = placement.gather(state.params) if placement else state.params
    loss, grads = jax.value_and_grad(loss_sum)(params)
    grads = placement.scatter(grads) if placement else grads
    sums = loss, grads, rows.weight_B.sum()
    loss, grads, weight = jax.lax.psum(sums, axis_name) if axis_name else sums
    grads = jax.tree.map(lambda g: g / weight, grads)
    total_steps = state.opt_state["total_steps"]
    updates, adam = tx.update(grads, state.opt_state["adam"], state.params)
    rate = rate_at(state.step, recipe, total_steps=total_steps)
    updates = jax.tree.map(lambda u: -rate * u, updates)
    state = state.replace(  # type: ignore[attr-defined]
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      opt_state={"adam": adam, "total_steps": total_steps},
    )
    return state, loss / weight

  return step


def _predict(
  subject: Subject,
  params: Params,
  predict: Callable[..., Any],
  valid: tuple[list[np.ndarray], Int[np.ndarray, " M"]],
) -> Int[np.ndarray, " M"] | None:
  """The likeliest class of each row, or None where a logit is not finite."""
  table = Table(valid[0])
  predicted_M = np.zeros(len(valid[0]), np.int64)
  for length, count, index_M in buckets.batches(
    table.length_S,
    batch_tokens=subject.batch_size * subject.held_out.seq_len,
    seq_len=subject.held_out.seq_len,
    multiple=jax.device_count(),
    most=subject.model.max_length,
  ):
    rows = _rows(subject, table, valid[1], index_M, length=length, rows=count)
    logits_BC = np.asarray(predict(params, subject.strategy.split(rows)))[: len(index_M)]
    if not np.isfinite(logits_BC).all():
      return None
    predicted_M[index_M] = logits_BC.argmax(axis=-1)
  return predicted_M


def _rows(
  subject: Subject,
  table: Table,
  label_N: Int[np.ndarray, " N"],
  index_M: Int[np.ndarray, " M"],
  *,
  length: int,
  rows: int,
) -> Rows:
  """This process's share of a batch, filled up with a row that weighs nothing."""
  rows += -rows % jax.device_count()
  index_B = np.concatenate([index_M, np.full(rows - len(index_M), index_M[0])])
  share = rows // jax.process_count()
  mine = slice(jax.process_index() * share, (jax.process_index() + 1) * share)
  tokens_BT = table.rows(index_B, length, pad=subject.vocabulary.pad_id)
  share_B: dict[str, Any] = {  # Host arrays, which the strategy places.
    "tokens_BT": tokens_BT[mine],
    "segments_BT": (np.arange(length) < table.length_S[index_B, None]).astype(np.int32)[mine],
    "row_B": np.arange(rows, dtype=np.int32)[mine],
    "label_B": label_N[index_B][mine],
    "weight_B": (np.arange(rows) < len(index_M)).astype(np.float32)[mine],
  }
  return Rows(**share_B)


def _width(model: Model, params: Params) -> int:
  row = jnp.ones((1, 8), jnp.int32)
  inputs = Inputs(tokens_BT=row, order_BT=row, segments_BT=row, row_B=row[:, 0])
  return jax.eval_shape(model.encode, params, inputs).hidden_BTD.shape[-1]
