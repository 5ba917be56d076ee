"""The jobs of the command line: from a config to what is done with it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from looped_lm.data.prepare import user_cache
from looped_lm.errors import UserError
from looped_lm.jobs import describing, evaluation, exporting, generation, training
from looped_lm.jobs.evaluation import compare_runs
from looped_lm.jobs.experiment import Config, Experiment, build, check
from looped_lm.jobs.exporting import Export
from looped_lm.jobs.seeds import read_seeds, train_seeds
from looped_lm.train import parallel

__all__ = [
  "MODES",
  "Experiment",
  "Export",
  "build",
  "check",
  "compare_runs",
  "read_seeds",
  "run",
]

MODES: dict[str, Callable[..., int | None]] = {
  "train": training.train,
  "eval": evaluation.evaluate,
  "generate": generation.generate,
  "export": exporting.export_run,
  "prepare": describing.prepare,
  "describe": describing.describe,
  "replay": training.replay,
}


def run(
  mode: str,
  config: Config,
  *,
  workdir: str | None,
  overrides: Mapping[str, Any],
  allow_config_change: bool,
  export: Export | None = None,
  replay_step: int = 0,
  compiled: bool = False,
  seeds: Sequence[int] = (),
) -> int:
  """Runs a job.

  Args:
    mode: A key of `MODES`.
    config: The resolved config.
    workdir: Where the run lives.
    overrides: What the command line changed of the config.
    allow_config_change: Whether a workdir of another config may be continued.
    export: How to export, for that mode.
    replay_step: The step that mode "replay" takes again.
    compiled: Whether mode "describe" compiles the step.
    seeds: Those that mode "train" trains with, each in a folder of its own; () trains once, with
      the config's.

  Returns:
    The exit code: 0, or another where the user stopped a run that can go on.

  Raises:
    UserError: Something the user gave cannot work.
  """
  parallel.cache_programs(user_cache() / "compiled")
  check(config)
  if mode in ("train", "eval", "export", "generate", "replay") and not workdir:
    raise UserError(f"--workdir is missing; --mode={mode} needs a folder for the run.")
  modes = {**MODES, "train": train_seeds} if seeds else MODES
  code = modes[mode](
    config,
    workdir=workdir,
    overrides=overrides,
    allow_config_change=allow_config_change,
    export=export or Export(),
    replay_step=replay_step,
    compiled=compiled,
    seeds=seeds,
  )
  return code or 0
