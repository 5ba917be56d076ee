"""One optimiser step, as a pure function.

It does not know on how many devices it runs: with an axis name it sums over that axis, without one
it sums over nothing. Sums, never means: devices and micro-batches hold different numbers of tokens.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from looped_lm.optim import spikes
from looped_lm.types import Batch, Loss, Model, Params, Ratio, State, Task

Metrics = dict[str, Ratio]


def _as_it_is(tree: Any) -> Any:
  return tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
  """Where a step's arrays shall lie. Values never change; by default nothing is said.

  Attributes:
    gather: Parameters, as the forward pass reads them.
    scatter: Gradients, as the optimiser reads them.
    spread: Micro-batches [number, rows, ...], as they are worked off.
    row_groups: Groups of neighbouring rows that lie on different devices of one program.
  """

  gather: Callable[[Params], Params] = _as_it_is
  scatter: Callable[[Params], Params] = _as_it_is
  spread: Callable[[Task], Task] = _as_it_is
  row_groups: int = 1


_ANYWHERE = Placement()


def initial_state(
  init: Callable[[jax.Array], Params],
  tx: optax.GradientTransformation,
  *,
  seed: int,
  ema: bool,
) -> State:
  """The state before the first step. Parameters and the run's draws have separate keys."""
  key_init, key_run = jax.random.split(jax.random.key(seed))
  params = init(key_init)
  return State(
    step=jnp.zeros((), jnp.int32),
    params=params,
    ema=jax.tree.map(jnp.copy, params) if ema else None,
    opt_state=tx.init(params),
    key=key_run,
  )


def make_train_step(
  *,
  model: Model,
  objective: Any,
  tx: optax.GradientTransformation,
  schedule: optax.Schedule,
  total_steps: int,
  micro_batches: int,
  ema_decay: float,
) -> Callable[..., tuple[State, Metrics]]:
  """Builds the step.

  Args:
    model: The model.
    objective: An `Objective`.
    tx: The optimiser.
    schedule: Its learning rate, for the log.
    total_steps: Steps of the run, for what changes along it.
    micro_batches: Parts a device's rows are split into; their gradients are summed, then divided.
    ema_decay: Of the parameters' moving average; unused where the state has none.
  """
  tx = optax.with_extra_args_support(tx)

  def gradients(
    params: Params, task: Task, key: jax.Array, progress: jax.Array, placement: Placement
  ) -> tuple[Params, Loss]:
    def loss_sum(params: Params) -> tuple[jax.Array, Loss]:
      loss = objective.loss(
        model,
        params,
        task,
        key=key,
        progress=progress,
        row_groups=placement.row_groups,
      )
      return loss.sum_nats, loss

    grads, loss = jax.grad(loss_sum, has_aux=True)(params)
    return placement.scatter(grads), loss

  def train_step(
    state: State,
    batch: Batch,
    *,
    axis_name: str | None = None,
    placement: Placement = _ANYWHERE,
  ) -> tuple[State, Metrics]:
    total = functools.partial(jax.lax.psum, axis_name=axis_name) if axis_name else lambda x: x
    largest = functools.partial(jax.lax.pmax, axis_name=axis_name) if axis_name else lambda x: x
    progress = state.step / total_steps
    key_task, key_noise = jax.random.split(jax.random.fold_in(state.key, state.step))

    # The corruption of the whole step comes first: its totals set the tokens' weights.
    task = objective.draw(batch, key=key_task, progress=progress)
    task = objective.weigh(task, total=total)
    gathered = placement.gather(state.params)
    if micro_batches == 1:
      grads, loss = gradients(gathered, task, key_noise, progress, placement)
    else:
      parts = jax.tree.map(lambda x: x.reshape(micro_batches, -1, *x.shape[1:]), task)
      grads, loss = _accumulate(
        lambda part: gradients(gathered, part, key_noise, progress, placement),
        placement.spread(parts),
      )
    grads, loss = total((grads, loss))
    grads = jax.tree.map(lambda g: g / loss.weight, grads)

    mean_nats = loss.sum_nats / loss.weight
    updates, opt_state = tx.update(grads, state.opt_state, state.params, loss=mean_nats)
    params = optax.apply_updates(state.params, updates)
    ema = state.ema
    if ema is not None:
      ema = optax.incremental_update(params, ema, 1.0 - ema_decay)
    one = jnp.ones(())
    loops_B = model.draw_loops(batch.row_B, key=key_noise, progress=progress)
    metrics = {
      **loss.metrics,
      **spikes.figures(opt_state),
      "loss_nats": (mean_nats, one),
      "grad_norm": (optax.tree.norm(grads), one),
      "param_norm": (optax.tree.norm(params), one),
      "loops/mean": total((loops_B.sum().astype(jnp.float32), jnp.float32(loops_B.size))),
      "loops/max": (largest(loops_B.max()).astype(jnp.float32), one),
      "learning_rate": (jnp.asarray(schedule(state.step), jnp.float32), one),
    }
    state = State(step=state.step + 1, params=params, ema=ema, opt_state=opt_state, key=state.key)
    return state, metrics

  return train_step


def _accumulate(
  gradients: Callable[[Task], tuple[Params, Loss]], parts: Task
) -> tuple[Params, Loss]:
  """Sums gradients and losses over parts of the rows, one after another."""
  first = jax.eval_shape(gradients, jax.tree.map(lambda x: x[0], parts))
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first)

  def add(sums, part):
    return jax.tree.map(jnp.add, sums, gradients(part)), None

  return jax.lax.scan(add, zeros, parts)[0]
