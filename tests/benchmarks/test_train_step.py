"""The PyTorch model that steps are timed against computes what ours does."""

import importlib.util
import pathlib
import sys

import jax
import numpy as np
import pytest

PATH = pathlib.Path(__file__).parents[2] / "benchmarks" / "train_step.py"


@pytest.fixture(scope="module")
def script():
  sys.path.insert(0, str(PATH.parent))
  spec = importlib.util.spec_from_file_location("train_step", PATH)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  yield module
  sys.path.remove(str(PATH.parent))


@pytest.mark.hf
@pytest.mark.parametrize("name", ["looped_gpt_bert", "looped_gpt_bert_paper", "gpt_bert"])
def test_plain_torch_takes_the_same_steps(script, tiny_config, name):
  config = script.without_dropout(tiny_config(name))
  # Rates that move the weights at once, and clip.
  config["optim"] |= {"warmup_fraction": 0.0, "clip_norm": 0.5}
  tokens_BT = np.random.default_rng(0).integers(16, 600, (8, 32)).astype(np.int32)
  ours = script.OurStep(config, tokens_BT)
  theirs = script.TorchStep(ours, num_steps=4)
  losses = [(ours(), theirs()) for _ in range(4)]
  np.testing.assert_allclose(*zip(*losses, strict=True), rtol=2e-4)
  assert losses[3][0] < losses[0][0]


def test_a_field_that_a_config_has_not_is_refused(script, tiny_config):
  with pytest.raises(SystemExit, match="remat_policy is no field"):
    script.changed(tiny_config(), "model.remat_policy=dots")
  assert script.changed(tiny_config(), "model.remat=full")["model"]["remat"] == "full"


def test_without_dropout_nothing_drops(script, tiny_config):
  config = script.without_dropout(tiny_config())
  rates = [
    rate
    for path, rate in jax.tree.flatten_with_path(config["model"])[0]
    if "dropout_rate" in str(path[-1])
  ]
  assert len(rates) == 4
  assert not any(rates)
