"""One config trained once for each of several seeds, and what their last evaluations say together.

`WORKDIR/seed_1` and so on are ordinary runs. `WORKDIR/seeds.json` is there once all are trained.
"""

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any

from etils import epath
import numpy as np

from looped_lm.errors import UserError
from looped_lm.evals import results
from looped_lm.jobs import training
from looped_lm.jobs.evaluation import logged_figures
from looped_lm.jobs.experiment import Config, build, say
from looped_lm.train import checkpoint, metrics, report, run_record
from looped_lm.train.parallel import hosts

_FILE = "seeds.json"
_SEEDS = 2**63
Summary = dict[str, dict[str, Any]]


def read_seeds(text: str) -> tuple[int, ...]:
  """Reads the seeds of a command line, e.g. "1,2,3".

  Raises:
    UserError: One is no seed or comes twice, or there are fewer than two.
  """
  parts = [part.strip() for part in text.split(",")]
  for part in parts:
    if not (part.isascii() and part.isdigit() and int(part) < _SEEDS):
      raise UserError(
        f"--seeds={text}: {part!r} is no seed; give whole numbers in [0, 2**63), as in "
        "--seeds=1,2,3."
      )
  seeds = [int(part) for part in parts]
  for seed in seeds:
    if seeds.count(seed) > 1:
      raise UserError(f"--seeds={text} names {seed} {seeds.count(seed)} times; name it once.")
  if len(seeds) < 2:
    raise UserError(
      f"--seeds={text} is one seed, which has no deviation; name two or more, or set --config.seed."
    )
  return tuple(seeds)


def train_seeds(
  config: Config,
  *,
  seeds: Sequence[int],
  workdir: str,
  overrides: Mapping[str, Any],
  allow_config_change: bool,
  **_: Any,
) -> int:
  """Trains the config with one seed after the other, and sums their last evaluations up.

  A run that has ended is left as it is, and one that was stopped goes on.

  Args:
    config: The resolved config; its seed is replaced.
    seeds: At least two, each once.
    workdir: The folder of the runs' folders.
    overrides: What the command line changed of the config.
    allow_config_change: Whether runs of another config may be continued.

  Returns:
    The exit code; where a signal came nothing more is trained, and nothing summed up.

  Raises:
    UserError: A run's folder holds another run, or the config evaluates nothing.
  """
  if not (config["evals"]["names"] or config["evals"]["final_names"]):
    raise UserError(
      "--seeds compares evaluations, and evals.names and evals.final_names are empty; name one."
    )
  place = epath.Path(workdir)
  folders = {seed: str(place / f"seed_{seed}") for seed in seeds}
  configs = {seed: {**config, "seed": seed} for seed in seeds}
  for seed in seeds:
    run_record.check_same(
      folders[seed], configs[seed], allow_change=allow_config_change, free=training.FREE
    )
  last_steps = {seed: build(configs[seed]).total_steps for seed in seeds}
  ended = [seed for seed in seeds if _has_ended(folders[seed], last_steps[seed])]
  hosts.wait_for_all("every seed's folder is read")  # Before a process writes there.
  if len(ended) < len(seeds) and hosts.is_first():
    (place / _FILE).unlink(missing_ok=True)  # It would tell of runs that are not those to come.
  for seed in seeds:
    if seed in ended:
      say(f"Seed {seed} is trained: {folders[seed]}.")
      continue
    say(f"Seed {seed}: {folders[seed]}.")
    interrupts = training.train_run(
      configs[seed],
      workdir=folders[seed],
      overrides={**overrides, "seed": seed},
      allow_config_change=allow_config_change,
    )
    if interrupts.asked:
      say(f"Stopped at seed {seed} of {_listed(seeds)}; the same command goes on.")
      return interrupts.exit_code
  if hosts.is_first():
    figures = {seed: logged_figures(folders[seed], step=last_steps[seed]) for seed in seeds}
    summed_up = summary(figures)
    print(table(seeds, summed_up))
    results.write(place / _FILE, {"seeds": list(seeds), "figures": _encoded(summed_up)}, indent=1)
    print(f"Seeds: {place / _FILE}")
  return 0


def summary(figures: Mapping[int, Mapping[str, float]]) -> Summary:
  """Sums runs up, figure by figure.

  Args:
    figures: seed -> name -> value.

  Returns:
    name -> {"values", "mean", "std"}, the values in the order of the seeds, the standard deviation
    that of a sample (n - 1). A value is None where the run lacks the figure; then the mean and the
    deviation are None, too.
  """
  summed_up: Summary = {}
  for name in dict.fromkeys(name for run in figures.values() for name in run):
    values = [run.get(name) for run in figures.values()]
    measured = [value for value in values if value is not None]
    mean = std = None
    if len(measured) == len(values):
      with np.errstate(invalid="ignore"):  # An infinite value has no deviation.
        mean, std = float(np.mean(measured)), float(np.std(measured, ddof=1))
    summed_up[name] = {"values": values, "mean": mean, "std": std}
  return summed_up


def table(seeds: Sequence[int], summed_up: Summary) -> str:
  """The summary as text; a figure that runs lack is named with their seeds."""
  return "\n".join(_lines(seeds, summed_up))


def _lines(seeds: Sequence[int], summed_up: Summary) -> Iterator[str]:
  yield ""
  yield f"{f'Last evaluation, seeds {_listed(seeds)}':48} {'mean':>10} {'std':>10}"
  for name, each in summed_up.items():
    if each["mean"] is None:
      lacking = [s for s, value in zip(seeds, each["values"], strict=True) if value is None]
      yield f"{name:48} not measured with seed {_listed(lacking)}"
    else:
      yield f"{name:48} {each['mean']:10.5f} {each['std']:10.5f}"


def _listed(seeds: Sequence[int]) -> str:
  return ", ".join(map(str, seeds))


def _has_ended(workdir: str, last_step: int) -> bool:
  """True where the last step is saved, its evaluation logged and the report written."""
  place = epath.Path(workdir)
  return (
    checkpoint.saved_steps(str(place / "checkpoints"))[-1:] == [last_step]
    and (place / report.FILE).exists()
    and metrics.exists(workdir)
    and bool(logged_figures(workdir, step=last_step))
  )


def _encoded(value: Any) -> Any:
  """JSON has no number that is not finite: it becomes a string, as in metrics.jsonl."""
  if isinstance(value, dict):
    return {name: _encoded(part) for name, part in value.items()}
  if isinstance(value, list):
    return [_encoded(part) for part in value]
  return value if value is None or math.isfinite(value) else str(value)
