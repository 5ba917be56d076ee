"""Figures of a log as series over steps, loops and depths."""

from collections.abc import Mapping, Sequence
import math
import re

Record = Mapping[str, float]
Points = tuple[list[float], list[float]]  # Steps and values.

_MODE_NAMES = {"clm": "causal", "mntp": "masked next token"}


def series(records: Sequence[Record], name: str) -> Points:
  """Gives the steps and values of a figure, the last value of each step, steps ascending."""
  values = {record["step"]: record[name] for record in records if name in record}
  steps = sorted(values)
  return list(steps), [values[step] for step in steps]


def modes(records: Sequence[Record]) -> list[str]:
  """Lists the objectives' modes that were evaluated or trained, e.g. ["clm", "mntp"]."""
  pattern = re.compile(r"(?:train|eval)/([^/]+)/loss_nats")
  names = {name for record in records for name in record}
  return sorted({match[1] for name in names if (match := pattern.fullmatch(name))})


def loops(records: Sequence[Record], prefix: str, suffix: str) -> list[int]:
  """Lists the loops r for which a figure `<prefix>/<rr>/<suffix>` was logged."""
  pattern = re.compile(rf"{re.escape(prefix)}/(\d+)/{re.escape(suffix)}")
  names = {name for record in records for name in record}
  return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def last(records: Sequence[Record], name: str) -> float:
  """Gives the last value of a figure that was logged."""
  return series(records, name)[1][-1]


def trained_loops(numbers: Sequence[int]) -> int:
  """Gives the model's own depth: diagnostics go to twice as many loops."""
  return max(numbers) // 2


def mode_name(mode: str | None) -> str:
  """Names a mode in words; None stands for all rows together."""
  return "all rows" if mode is None else _MODE_NAMES.get(mode, mode)


def smooth(values: Sequence[float], *, window: float) -> list[float]:
  """Averages each value with both its sides, weights falling by 1/e over `window` values.

  Looking both ways, the average does not lag behind a falling loss.
  """
  keep = math.exp(-1 / window)

  def one_way(ordered: Sequence[float]) -> list[tuple[float, float]]:
    total, weight, sums = 0.0, 0.0, []
    for value in ordered:
      total, weight = keep * total, keep * weight
      sums.append((total, weight))  # Without the value itself, which belongs to neither side.
      if math.isfinite(value):
        total, weight = total + value, weight + 1
    return sums

  left, right = one_way(values), one_way(values[::-1])[::-1]
  out = []
  for value, (total, weight), (more, heavier) in zip(values, left, right, strict=True):
    here = math.isfinite(value)
    total, weight = total + more + (value if here else 0.0), weight + heavier + here
    out.append(total / weight if weight else math.nan)
  return out
