"""What every test runs under: four fake CPU devices, float32."""

import importlib.metadata
import os
import pathlib
import tempfile

# Before jax is imported, and in the form that every supported jax understands.
_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=4".strip()
os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling is most of what tiny tests take; `make golden` runs with all optimisations.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Nor need loops be fused well: without that a step compiles in 6 s, not 11. A jaxlib that does not
# know a flag ends the process, so it is given to those that were seen to know it. `make test-hf`
# declines it: it compares float32 with PyTorch's after many loops, where any rounding shows.
_UNFUSED = "--xla_cpu_use_fusion_emitters=false"
_JAXLIB = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
if (
  os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1"
  and os.environ.get("LOOPED_LM_FUSED_TESTS", "0") == "0"
  and (0, 7) <= _JAXLIB <= (0, 10)
  and _UNFUSED not in os.environ["XLA_FLAGS"]
):
  os.environ["XLA_FLAGS"] += f" {_UNFUSED}"

# Nothing of a test goes to the user's cache, and tests share what they compile.
_CACHE = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = _CACHE.name

# The same tiny programs are built again and again, some in processes of their own: each is compiled
# once. The folder is this run's own, because two runs would read each other's half-written files.
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(_CACHE.name, "compiled")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"

import hypothesis
import jax
import pytest

from looped_lm.configuration import sibling

# The same examples on every machine and every run, and never a failure because it was slow.
# FUZZ_CASES=500 looks further: so many of each, and others every time.
_CASES = os.environ.get("FUZZ_CASES")
hypothesis.settings.register_profile(
  "looped_lm",
  derandomize=_CASES is None,
  deadline=None,
  max_examples=int(_CASES or 60),
  database=None,
  print_blob=True,
)
hypothesis.settings.load_profile("looped_lm")


# Files of long tests, the longest first: started last, one of them would keep the others waiting.
_LONG = (
  "tests/colab",
  "tests/reliability",
  "tests/test_golden.py",
  "tests/train/test_step.py",
  "tests/test_jobs.py",
  "tests/test_configs.py",
)


def pytest_collection_modifyitems(items):
  def turn(item):
    return next((i for i, name in enumerate(_LONG) if item.nodeid.startswith(name)), len(_LONG))

  items.sort(key=turn)


def pytest_unconfigure():
  _CACHE.cleanup()


@pytest.fixture
def x64():
  """Float64 arrays inside the test."""
  jax.config.update("jax_enable_x64", True)
  yield
  jax.config.update("jax_enable_x64", False)


@pytest.fixture(scope="session")
def tiny_config():
  """A fresh plain dict of the default config's tiny form, per call."""
  return lambda name="looped_gpt_bert", arguments="tiny": sibling(
    str(pathlib.Path(__file__).parents[1] / "configs" / "x.py"), name, arguments
  ).to_dict()
