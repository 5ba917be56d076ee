"""What every test runs under: four fake CPU devices, float32."""

import os

# Before jax is imported, and in the form that every supported jax understands.
_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=4".strip()
os.environ["JAX_PLATFORMS"] = "cpu"

import hypothesis
import jax
import pytest

# The same examples on every machine and every run, and never a failure because it was slow.
hypothesis.settings.register_profile(
  "looped_lm", derandomize=True, deadline=None, max_examples=25, database=None
)
hypothesis.settings.load_profile("looped_lm")


@pytest.fixture
def x64():
  """Float64 arrays inside the test."""
  jax.config.update("jax_enable_x64", True)
  yield
  jax.config.update("jax_enable_x64", False)
