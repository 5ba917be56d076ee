"""Whether the rows of a batch split evenly over devices and micro-batches."""

from looped_lm.errors import UserError


def check(batch_size: int, *, parts: int, micro_batches: int) -> None:
  """Checks a batch of training.

  Args:
    batch_size: Rows of a step over all processes.
    parts: Groups of devices that take different rows.
    micro_batches: Parts a group takes its rows in.

  Raises:
    UserError: It does not split; names the nearest size that does.
  """
  if micro_batches < 1:
    raise UserError(f"train.micro_batches={micro_batches} must be at least 1.")
  unit = parts * micro_batches
  if batch_size < unit or batch_size % unit:
    raise UserError(
      f"train.batch_size={batch_size} rows must be a multiple of {parts} devices x "
      f"{micro_batches} micro-batches = {unit}; the nearest is {_nearest(batch_size, unit)}."
    )


def check_eval(batch_size: int, *, parts: int) -> None:
  """Checks a batch of evaluation.

  Raises:
    UserError: It does not split; names the nearest size that does.
  """
  if batch_size < 1 or batch_size % parts:
    raise UserError(
      f"evals.batch_size={batch_size} must be a multiple of {parts} devices; the nearest is "
      f"{_nearest(batch_size, parts)}."
    )


def _nearest(size: int, unit: int) -> int:
  return max(1, round(size / unit)) * unit
