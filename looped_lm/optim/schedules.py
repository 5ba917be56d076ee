"""Learning rate over the run."""

from collections.abc import Mapping
import inspect
from typing import Any

import optax

from looped_lm.errors import UserError


def warmup_cosine(
  *,
  learning_rate: float,
  warmup_fraction: float,
  decay_fraction: float,
  floor_fraction: float,
  total_steps: int,
) -> optax.Schedule:
  """Linear warm-up from 0, a cosine down to the floor, then constant.

  Args:
    learning_rate: The peak.
    warmup_fraction: Of all steps; the first update has rate 0 when it rounds to at least one step.
    decay_fraction: Of all steps; where the cosine reaches the floor.
    floor_fraction: The floor, as a fraction of the peak.
    total_steps: Steps of the run.

  Raises:
    UserError: The fractions are not ordered within [0, 1].

  Source: Looped GPT-BERT, Table 3: floor 0.1 reached at step 2,600 of 4,080.
  """
  if not 0.0 <= warmup_fraction < decay_fraction <= 1.0:
    raise UserError(
      f"optim.warmup_fraction={warmup_fraction} must be at least 0 and below "
      f"optim.decay_fraction={decay_fraction}, which must be at most 1."
    )
  if not 0.0 <= floor_fraction <= 1.0:
    raise UserError(f"optim.floor_fraction={floor_fraction} must lie in [0, 1].")
  warmup_steps = round(warmup_fraction * total_steps)
  decay_steps = max(1, round(decay_fraction * total_steps) - warmup_steps)
  cosine = optax.cosine_decay_schedule(learning_rate, decay_steps, alpha=floor_fraction)
  warmup = optax.linear_schedule(0.0, learning_rate, max(1, warmup_steps))
  return optax.join_schedules([warmup, cosine], [warmup_steps])


def trapezoid(
  *,
  learning_rate: float,
  warmup_fraction: float,
  cooldown_fraction: float,
  floor_fraction: float,
  total_steps: int,
) -> optax.Schedule:
  """Linear warm-up from 0, constant, then linear down to the floor at the last step.

  Args:
    learning_rate: The constant.
    warmup_fraction: Of all steps; 0 starts at the full rate.
    cooldown_fraction: Of all steps, at the end.
    floor_fraction: The floor, as a fraction of the constant.
    total_steps: Steps of the run.

  Raises:
    UserError: The fractions do not fit into [0, 1].
  """
  if min(warmup_fraction, cooldown_fraction) < 0 or warmup_fraction + cooldown_fraction > 1:
    raise UserError(
      f"optim.warmup_fraction={warmup_fraction} and optim.cooldown_fraction={cooldown_fraction} "
      "must be at least 0 and together at most 1."
    )
  if not 0.0 <= floor_fraction <= 1.0:
    raise UserError(f"optim.floor_fraction={floor_fraction} must lie in [0, 1].")
  warmup_steps = round(warmup_fraction * total_steps)
  cooldown_steps = max(1, round(cooldown_fraction * total_steps))
  start = total_steps - cooldown_steps
  warmup = optax.linear_schedule(0.0, learning_rate, max(1, warmup_steps))
  constant = optax.constant_schedule(learning_rate)
  cooldown = optax.linear_schedule(learning_rate, floor_fraction * learning_rate, cooldown_steps)
  return optax.join_schedules([warmup, constant, cooldown], [warmup_steps, start])


SCHEDULES = {"cosine": warmup_cosine, "trapezoid": trapezoid}


def make(optim: Mapping[str, Any], *, total_steps: int) -> optax.Schedule:
  """The schedule that `optim.schedule` names ("cosine" where it names none).

  Args:
    optim: The `optim` group of a config.
    total_steps: Steps of the run.

  Raises:
    UserError: No such schedule, a setting of it is missing, or one cannot work.
  """
  name = optim.get("schedule", "cosine")
  if name not in SCHEDULES:
    raise UserError(f"optim.schedule={name!r} is none of {sorted(SCHEDULES)}.")
  needed = [key for key in inspect.signature(SCHEDULES[name]).parameters if key != "total_steps"]
  missing = [key for key in needed if key not in optim]
  if missing:
    raise UserError(f"optim.schedule={name!r} needs {needed}; missing are {missing}.")
  return SCHEDULES[name](**{key: optim[key] for key in needed}, total_steps=total_steps)
