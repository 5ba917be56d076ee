"""Evaluation of a run, and of two against each other."""

from collections.abc import Mapping
from typing import Any

import jax

from looped_lm.errors import UserError
from looped_lm.evals import compare, leaderboard, submission, suite
from looped_lm.jobs.experiment import Config, build, stored_weights
from looped_lm.train import checkpoint, metrics, milestones, report, run_record, views
from looped_lm.train.parallel import hosts
from looped_lm.types import Params


def evaluate(config: Config, *, workdir: str, **_: Any) -> None:
  """Measures the last checkpoint of a run."""
  run_record.check_same(workdir, config, allow_change=True)
  if suite.milestones_needed(config["evals"]):
    suite.check_milestones(config["evals"], len(milestones.saved(workdir)), whose="The run has")
  experiment = build(config, trained_length=trained_length(config, workdir))
  which = stored_weights(config)
  abstract = experiment.strategy.like_saved(experiment.abstract_state())
  params = checkpoint.restore_params(workdir, abstract.params, which=which)
  evaluators, params = experiment.evaluators(workdir), experiment.strategy.from_saved(params)
  figures = dict(evaluators.figures(params, final=True))
  params = experiment.strategy.one_copy(params)
  if hosts.is_first():
    print_figures(figures, config, workdir=workdir, step=checkpoint.saved_step(workdir))
    views.write(workdir, evaluators.views(params))
    if metrics.exists(workdir):  # Checkpoints may have come without their log.
      print_report(params, workdir)


def trained_length(config: Config, workdir: str) -> int | None:
  """Tokens of the rows that a run was trained on, where `longest_distance` asks for it.

  The config in hand may have longer rows.
  """
  if not config["evals"].get("clamp_distance", False):
    return None
  return checkpoint.saved_config(workdir)["data"]["seq_len"]


def print_report(params: Params, workdir: str) -> None:
  """Writes the report and says where."""
  facts = {"Parameters": f"{sum(x.size for x in jax.tree.leaves(params)):,}"}
  print(f"Report: {report.write_report(workdir, facts=facts)}")


def print_figures(figures: Mapping[str, float], config: Config, *, workdir: str, step: int) -> None:
  """Prints the figures of a checkpoint and the table of scores, and leaves what one publishes.

  Args:
    figures: As evaluators yield them.
    config: The run's.
    workdir: Its folder.
    step: Of the checkpoint.
  """
  evals = config["evals"]
  model = {
    "step": step,
    "weights": evals["weights"],
    "loops": config["model"]["num_loops"],
    "clamp_distance": evals.get("clamp_distance", False),
  }
  for name, value in figures.items():
    print(f"{name:48} {value:10.5f}")
  if table := leaderboard.table(figures):
    print(table)
  leaderboard.leave(workdir, figures)
  for written in submission.leave(workdir, figures, model=model):
    print(f"Predictions for the leaderboard: {written.path}")
    for task, why in written.left_out.items():
      print(f"  without {task}: {why}")


def compare_runs(workdir: str, against: str) -> None:
  """Prints on which tasks one run is better than another.

  Raises:
    UserError: A run is not given, or was not scored as the other.
  """
  if not workdir or not against:
    raise UserError("--mode=compare needs two runs: --workdir=DIR --against=DIR.")
  print(compare.table(compare.compare(workdir, against)))


def logged_figures(workdir: str, *, step: int | None = None) -> dict[str, float]:
  """The last figures of every evaluation in a run's log, or those of one step."""
  return {
    name: value
    for record in metrics.read(workdir)
    for name, value in record.items()
    if name.startswith("eval/") and step in (None, record["step"])
  }
