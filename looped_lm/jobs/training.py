"""Training, and one of its steps taken again."""

from collections.abc import Mapping
from typing import Any

from etils import epath

from looped_lm.errors import UserError
from looped_lm.evals import suite
from looped_lm.jobs.evaluation import logged_figures, print_figures, print_report
from looped_lm.jobs.experiment import TOKENIZER_FILE, Config, build, say, weights
from looped_lm.scaling.describe import describe
from looped_lm.train import (
  checkpoint,
  interrupt,
  loop,
  metrics,
  milestones,
  run_record,
  views,
  watchdog,
)
from looped_lm.train import replay as replaying
from looped_lm.train.parallel import hosts

# What no training depends on: a workdir goes on whatever they say. Most say where and how a run is
# computed, not what.
FREE = (
  "generate",
  "parallel.strategy",
  "parallel.fsdp",
  "parallel.tensor",
  "parallel.lost_process_seconds",
  "train.watchdog_seconds",
)


def train(
  config: Config,
  *,
  workdir: str,
  overrides: Mapping[str, Any],
  allow_config_change: bool,
  **_: Any,
) -> int:
  """Trains, or goes on; returns the exit code."""
  interrupts = train_run(
    config, workdir=workdir, overrides=overrides, allow_config_change=allow_config_change
  )
  return interrupts.exit_code if interrupts.stops else 0


def train_run(
  config: Config,
  *,
  workdir: str,
  overrides: Mapping[str, Any],
  allow_config_change: bool,
) -> interrupt.Interrupts:
  """Trains, or goes on; returns what listened for signals, which tells whether one came."""
  suite.check_milestones(
    config["evals"], len(config["train"]["save_at_words"]), whose="The config keeps"
  )
  changes = run_record.check_same(workdir, config, allow_change=allow_config_change, free=FREE)
  experiment = build(config)
  settings, strategy = config["train"], experiment.strategy
  evaluators = experiment.evaluators(workdir)
  kept = milestones.Milestones(
    workdir,
    settings["save_at_words"],
    pipeline=experiment.pipeline,
    total_steps=experiment.total_steps,
    config=config,
  )
  with checkpoint.Checkpoints(
    str(epath.Path(workdir) / "checkpoints"),
    keep_latest=settings["keep_latest"],
    best_metric=config["evals"]["best_metric"] or None,
    config=config,
  ) as checkpoints:
    resumed: Mapping[str, Any] = {}
    if checkpoints.latest_step() is None:
      state = experiment.create_state()
    else:
      state, resumed = checkpoints.restore(strategy.like_saved(experiment.abstract_state()))
      assert resumed["next_step"] == int(state.step)
      state = strategy.from_saved(state)
      say(f"Resuming {workdir} at step {int(state.step)}.")
    first = int(state.step)
    if missed := kept.missed(first):
      say(f"These milestones lie before step {first} and cannot be written any more: {missed}.")
    left = len(settings["save_at_words"]) - len(missed)
    suite.check_milestones(config["evals"], left, whose="This run can still have")
    say(describe(experiment.model, experiment.config, experiment.prepared))
    if experiment.choice:
      say(experiment.choice)
    if hosts.is_first():
      run_record.write(workdir, config, overrides=overrides, changes=changes, step=first)
      experiment.prepared.tokenizer.save(str(epath.Path(workdir) / TOKENIZER_FILE))
    with (
      metrics.Metrics(
        workdir,
        total_steps=experiment.total_steps,
        resumed_step=first,
        writes=hosts.is_first(),
      ) as log,
      interrupt.Interrupts(agreed=hosts.agreement(), progress=say) as interrupts,
      watchdog.Watchdog(settings["watchdog_seconds"], where=hosts.name()) as dog,
    ):
      state = loop.train(
        state,
        train_step=experiment.train_step(),
        strategy=strategy,
        pipeline=experiment.pipeline,
        evaluate=lambda state: evaluators.figures(
          weights(state, config), final=int(state.step) == experiment.total_steps
        ),
        checkpoints=checkpoints,
        milestones=kept,
        metrics=log,
        interrupts=interrupts,
        watchdog=dog,
        resumed=resumed,
        total_steps=experiment.total_steps,
        log_every_steps=settings["log_every_steps"],
        eval_every_steps=settings["eval_every_steps"],
        eval_every_words=settings["eval_every_words"],
        save_every_steps=settings["save_every_steps"],
      )
  if interrupts.stops:
    say(f"Stopped after step {int(state.step)}, which is saved; the same command goes on from it.")
    return interrupts
  params = strategy.one_copy(weights(state, config))
  if hosts.is_first():
    views.write(workdir, evaluators.views(params))
    step = experiment.total_steps
    print_figures(logged_figures(workdir), config, workdir=workdir, step=step)
    print_report(params, workdir)
  return interrupts


def replay(config: Config, *, workdir: str, replay_step: int, **_: Any) -> None:
  """Takes one step of a run again and says what it does; writes nothing."""
  run_record.check_same(workdir, config, allow_change=True)
  experiment = build(config)
  if not 1 <= replay_step <= experiment.total_steps:
    raise UserError(
      f"--step={replay_step} must lie in [1, {experiment.total_steps}], the steps of the run: the "
      "one that --mode=replay takes again."
    )
  replaying.replay(
    replay_step,
    workdir=workdir,
    strategy=experiment.strategy,
    abstract_state=experiment.abstract_state(),
    create_state=experiment.create_state,
    train_step=experiment.train_step(),
    pipeline=experiment.pipeline,
    tokenizer=experiment.prepared.tokenizer,
    progress=say,
  )
