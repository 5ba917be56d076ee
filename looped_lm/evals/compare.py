"""Is one run better than another? The paired bootstrap over the items of their tasks."""

from collections.abc import Iterator
import dataclasses
import json
from typing import Any

from etils import epath
import numpy as np

from looped_lm import plugins
from looped_lm.errors import UserError

_SAMPLES = 2000
_INTERVAL_PERCENT = (2.5, 97.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
  """What the items say of two runs on one task.

  Attributes:
    task: The task's name.
    backend: How texts were scored.
    first_percent: Score of the first run.
    second_percent: Score of the second.
    low_percent: Lower end of the 95 % interval of first - second.
    high_percent: Its upper end.
  """

  task: str
  backend: str
  first_percent: float
  second_percent: float
  low_percent: float
  high_percent: float


def compare(first: str, second: str, *, seed: int = 0) -> list[Difference]:
  """Compares two runs on every task of options that both were scored on.

  Items are drawn anew within each group, the same ones for both runs, and the task's own average is
  taken of each draw. The interval is that of the items: it says nothing of other seeds of training,
  which often move a score by more.

  Args:
    first: A workdir with an `evals` folder.
    second: Another.
    seed: Of the draws.

  Raises:
    UserError: There is no such folder or no common task, or they were scored by other metrics or
      on other items.
  """
  left, right = (dict(_credits(workdir)) for workdir in (first, second))
  common = sorted(left.keys() & right.keys())
  if not common:
    raise UserError(
      f"{first} and {second} share no scored task: {sorted(left)} and {sorted(right)}. Score both "
      "with --mode=eval and the same evals.names and evals.backends."
    )
  found = []
  for task, backend in common:
    one, two = left[task, backend], right[task, backend]
    if one["metric_version"] != two["metric_version"]:
      raise UserError(
        f"{task} was scored by {one['metric_version']} in {first} and by {two['metric_version']} "
        f"in {second}; score both anew."
      )
    sizes = [{group: len(values) for group, values in x["credits"].items()} for x in (one, two)]
    if sizes[0] != sizes[1]:
      raise UserError(f"{task} was scored on other items in {first} than in {second}.")
    found.append(_difference(task, backend, one["credits"], two["credits"], seed=seed))
  return found


def table(differences: list[Difference]) -> str:
  """The comparison as text."""
  lines = [f"{'task, backend':40} {'first':>8} {'second':>8} {'diff.':>8}   95 % interval"]
  for each in differences:
    lines.append(
      f"{each.task + ', ' + each.backend:40} {each.first_percent:8.2f} {each.second_percent:8.2f} "
      f"{each.first_percent - each.second_percent:+8.2f}   "
      f"{each.low_percent:+.2f} … {each.high_percent:+.2f}"
    )
  return "\n".join(lines)


def _credits(workdir: str) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
  root = epath.Path(workdir) / "evals"
  if not root.exists():
    raise UserError(f"{root} does not exist; score the run with --mode=eval first.")
  for file in sorted(root.glob("*/*/credits.json")):
    yield (file.parent.parent.name, file.parent.name), json.loads(file.read_text())


def _difference(
  task: str,
  backend: str,
  one: dict[str, list[float]],
  two: dict[str, list[float]],
  *,
  seed: int,
) -> Difference:
  average = plugins.load("evals", task).Evaluator.average
  rng = np.random.default_rng(seed)
  drawn: dict[str, np.ndarray] = {}
  for group in one:
    gain_N = np.array(one[group]) - np.array(two[group])
    index_SN = rng.integers(len(gain_N), size=(_SAMPLES, len(gain_N)))
    drawn[group] = 100.0 * gain_N[index_SN].mean(axis=1)
  # An average is linear in the groups, so that of a difference is the difference of averages.
  gains_S = [
    average({group: float(gain_S[sample]) for group, gain_S in drawn.items()})
    for sample in range(_SAMPLES)
  ]
  scores = [
    average({group: 100.0 * sum(values) / len(values) for group, values in credits.items()})
    for credits in (one, two)
  ]
  low, high = np.percentile(gains_S, _INTERVAL_PERCENT)
  return Difference(
    task=task,
    backend=backend,
    first_percent=scores[0],
    second_percent=scores[1],
    low_percent=float(low),
    high_percent=float(high),
  )
