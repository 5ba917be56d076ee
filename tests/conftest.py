"""What every test runs under: four fake CPU devices, float32, no silent broadcasting."""

import os

# Before jax is imported, and in the form that every supported jax understands.
_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=4".strip()
os.environ["JAX_PLATFORMS"] = "cpu"

import hypothesis
import jax

# An added axis is written out in this project, so an unwritten one is a mistake.
jax.config.update("jax_numpy_rank_promotion", "raise")

# The same examples on every machine and every run, and never a failure because it was slow.
hypothesis.settings.register_profile(
  "looped_lm", derandomize=True, deadline=None, max_examples=25, database=None
)
hypothesis.settings.load_profile("looped_lm")
