"""Learning rate over the run."""

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
