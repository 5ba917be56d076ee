"""The figures of a log interval: kept bit for bit, and the first that is not finite is named."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.train import window as windows

PIPELINE = types.SimpleNamespace(indices=lambda step: np.arange(100 * step, 100 * step + 10))


def figures(seed, *, loss=None):
  values = jax.random.uniform(jax.random.key(seed), (4,))
  loss = values[0] if loss is None else jnp.float32(loss)
  return {
    "loss_nats": (loss, jnp.float32(1)),
    "grad_norm": (values[1], jnp.float32(1)),
    "clm/accuracy": (values[2], values[3]),
  }


def test_an_interval_that_was_put_away_sums_up_as_one_that_was_not():
  whole = kept = None
  for step in range(1, 8):
    whole = windows.add(whole, figures(step), step)
    kept = windows.add(kept, figures(step), step)
    kept = windows.unpack(windows.pack(kept))
  for name, ratio in whole["figures"].items():
    assert [float(part) for part in ratio] == [float(part) for part in kept["figures"][name]]
  assert windows.pack(None) is None
  assert windows.unpack(None) is None


def test_the_first_bad_step_is_named_with_its_rows_and_how_to_see_it_again():
  window = None
  for step in range(1, 6):
    window = windows.add(window, figures(step, loss=None if step < 3 else np.nan), step)
  with pytest.raises(UserError) as error:
    windows.stop_if_not_finite(window, pipeline=PIPELINE, latest_step=2)
  text = str(error.value)
  assert text.startswith("Step 3 is not finite: loss nan nats")
  assert "on training rows 200, 201, 202, 203, 204, 205, 206, 207 and 2 more" in text
  assert "--mode=replay --step=3" in text
  assert "last good checkpoint is step 2" in text


def test_finite_intervals_pass():
  windows.stop_if_not_finite(windows.add(None, figures(1), 1), pipeline=PIPELINE, latest_step=None)
