"""The training loop: one linear function, batches in, checkpoints and figures out."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from looped_lm.data.pipeline import Pipeline
from looped_lm.errors import UserError
from looped_lm.train import window as windows
from looped_lm.train.checkpoint import Checkpoints
from looped_lm.train.interrupt import Interrupted, Interrupts
from looped_lm.train.metrics import Metrics
from looped_lm.train.milestones import Milestones
from looped_lm.train.watchdog import Watchdog
from looped_lm.types import State


def train(
  state: State,
  *,
  train_step: Callable[..., Any],
  strategy: Any,
  pipeline: Pipeline,
  evaluate: Callable[[State], Iterable[tuple[str, float]]],
  checkpoints: Checkpoints,
  milestones: Milestones,
  metrics: Metrics,
  interrupts: Interrupts,
  watchdog: Watchdog,
  resumed: Mapping[str, Any],
  total_steps: int,
  log_every_steps: int,
  eval_every_steps: int,
  eval_every_words: int,
  save_every_steps: int,
) -> State:
  """Trains from the state's step to the last one, or until `interrupts` say to stop.

  Within a step's end the order is: log, milestones, evaluate, save. Whatever was logged for a step
  is on disk before the step's checkpoint, so that a run resumed there continues the same log; so is
  its milestone, which no resumed run would write again, and the last evaluation sees them all.

  Args:
    state: Where to go on, placed by the strategy.
    train_step: The pure step.
    strategy: Runs it on devices.
    pipeline: Gives the batch of any step.
    evaluate: state -> figures; called when either schedule says so, and at the end.
    checkpoints: Where states are kept; the final one always is, and that of an interruption.
    milestones: Which weights to keep for good, and where.
    metrics: Where figures go.
    interrupts: Asked after every step whether to stop there.
    watchdog: Told of everything that begins.
    resumed: What the checkpoint that the run goes on from kept as `data`; {} of a new run.
    total_steps: Where to stop.
    log_every_steps: Steps per line of the log; a line's losses are means over them.
    eval_every_steps: Steps between evaluations; 0 leaves them to words and the end.
    eval_every_words: Evaluates at each step that passes a multiple of it; 0 never does.
    save_every_steps: Steps between checkpoints; 0 saves at the end only.

  Raises:
    UserError: A loss or gradient is not finite (names the step, its rows and the last good
      checkpoint), or devices hold different states.
  """
  compiled_step = strategy.compile_step(train_step)
  first = int(state.step)
  batches = pipeline.iterator(first)
  eval_steps = pipeline.steps_every(eval_every_words, after=first)
  next_eval = next(eval_steps, None)
  window = windows.unpack(resumed.get("window"))
  unchecked: list[windows.Window] = []

  def stop_if_not_finite(upto: list[windows.Window]) -> None:
    for each in upto:
      windows.stop_if_not_finite(each, pipeline=pipeline, latest_step=checkpoints.latest_step())

  try:
    if resumed.get("owes_evaluation"):
      watchdog.beat(f"the evaluation of step {first}")
      with metrics.paused():
        metrics.write(first, dict(evaluate(state)))

    for step in range(first + 1, total_steps + 1):
      watchdog.beat(f"step {step}")
      last = step == total_steps
      saves = last or _due(step, save_every_steps)
      evaluates = last or _due(step, eval_every_steps) or step == next_eval
      if step == next_eval:
        next_eval = next(eval_steps)
      reached = milestones.due(step)
      state, figures = compiled_step(state, strategy.split(next(batches)))
      window = windows.add(window, figures, step)
      stops = interrupts.due(step)

      # Log: figures are fetched an interval later, so that the device never waits. A save ends the
      # interval, so that a run resumed there logs the same means as one that was never stopped.
      if saves or evaluates or step % log_every_steps == 0:
        metrics.train(
          step,
          window["figures"],
          words_seen=pipeline.words_seen(step),
          tokens_seen=pipeline.tokens_seen(step),
        )
        stop_if_not_finite(unchecked)
        unchecked, window = [window], None

      if saves or evaluates or stops or reached:
        stop_if_not_finite([*unchecked, *([window] if window else [])])

      if reached:
        _check_replicas(strategy, state, step=step, latest_step=checkpoints.latest_step())
        watchdog.beat(f"the milestone of step {step}")
        with metrics.paused():
          milestones.save(strategy.to_saved(state), reached)

      owes_evaluation, evaluated = False, {}
      if evaluates:
        watchdog.beat(f"the evaluation of step {step}")
        metrics.flush()
        try:
          with metrics.paused(), interrupts.at_once():
            evaluated = dict(evaluate(state))
        except Interrupted:
          owes_evaluation = True
        else:
          evaluated = metrics.write(step, evaluated)
        stops = interrupts.stops

      if saves or stops:
        _check_replicas(strategy, state, step=step, latest_step=checkpoints.latest_step())
        watchdog.beat(f"the checkpoint of step {step}")
        data: dict[str, Any] = {"next_step": step}
        if stops:
          # What the interval has summed up goes along: the resumed run logs the line it belongs to.
          data |= {"window": windows.pack(window), "owes_evaluation": owes_evaluation}
        with metrics.paused():
          metrics.flush()
          checkpoints.save(strategy.to_saved(state), data=data, metrics=evaluated)
      if stops:
        break
    watchdog.beat("writing the last checkpoint")
    checkpoints.wait()
  finally:
    batches.close()
  return state


def _due(step: int, every_steps: int) -> bool:
  return every_steps > 0 and step % every_steps == 0


def _check_replicas(strategy: Any, state: State, *, step: int, latest_step: int | None) -> None:
  """Raises where devices that shall hold the same state do not; before it is saved."""
  differs = strategy.diverged(state)
  if differs is None:
    return
  kept = f"step {latest_step}" if latest_step is not None else "none"
  raise UserError(
    f"At step {step} the devices hold different values of {differs}; the last good checkpoint is "
    f"{kept}. Either a figure is not summed over devices (in an objective or an optimiser of your "
    "own), or a device computes wrongly: give the same command again to see whether it comes back."
  )
