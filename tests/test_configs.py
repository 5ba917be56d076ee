"""The common suite: what holds for every config."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import jobs, plugins
from looped_lm.models import looped
from looped_lm.visibility import visible

NAMES = sorted(path.stem for path in (pathlib.Path(__file__).parents[1] / "configs").glob("*.py"))

# The others take their step among the slow tests; the default takes many in other tests.
CORE = ("quickstart",)


@pytest.mark.parametrize("name", NAMES)
def test_the_full_size_builds_and_its_settings_are_checked(tiny_config, name):
  config = tiny_config(name, "")
  jobs.check(config)
  model = looped.build(config["model"], vocab_size=config["tokenizer"]["vocab_size"])
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(shapes))


def test_babylm_keeps_the_checkpoints_it_asks_for(tiny_config):
  config = tiny_config("looped_gpt_bert", "babylm")
  jobs.check(config)
  millions = [*range(1, 11), *range(20, 101, 10)]
  assert [words / 1e6 for words in config["train"]["save_at_words"]] == millions
  assert config["train"]["total_words"] == 100_000_000


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=pytest.mark.slow if name in CORE else pytest.mark.nightly)
    for name in NAMES
  ],
)
def test_the_tiny_size_takes_a_finite_step_and_respects_visibility(tiny_config, name):
  experiment = jobs.build(tiny_config(name))
  train_step = experiment.train_step()
  state = experiment.initial_state()
  batch = jax.tree.map(jnp.asarray, experiment.pipeline.batch_at(0))
  task = experiment.objective.draw(batch, key=jax.random.key(0), progress=0.0)

  @jax.jit
  def hidden(tokens_BT):
    inputs = task.inputs.replace(tokens_BT=tokens_BT)
    return experiment.model.encode(state.params, inputs).hidden_BTD

  see_BTS = np.asarray(visible(task.inputs.order_BT, task.inputs.segments_BT))
  before = hidden(task.inputs.tokens_BT)
  for position in (0, 13, 30):
    changed = task.inputs.tokens_BT.at[:, position].add(1)
    moved_BT = np.asarray(jnp.abs(hidden(changed) - before).max(axis=-1)) > 0
    may_BT = see_BTS[:, :, position].copy()
    may_BT[:, position] = True
    assert moved_BT.any()
    assert not (moved_BT & ~may_BT).any()

  state, figures = jax.jit(train_step)(state, batch)
  for total, weight in figures.values():
    assert jnp.isfinite(total)
    assert jnp.isfinite(weight)
  assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_every_plug_in_is_used_by_some_config_or_named_in_a_test(tiny_config):
  used = {folder: set() for folder in ("blocks", "injection", "attention", "objectives", "optim")}
  variants = [(name, "tiny") for name in NAMES]
  variants += [
    ("looped_gpt_bert_injections", f"{injection},tiny") for injection in plugins.names("injection")
  ]
  for name, arguments in variants:
    config = tiny_config(name, arguments)
    used["blocks"].add(config["model"]["block"]["name"])
    used["injection"].add(config["model"]["injection"]["name"])
    used["attention"].add(config["model"]["attention"]["name"])
    used["objectives"].add(config["objective"]["name"])
    used["optim"].add(config["optim"]["name"])
  one_line_away = {
    "attention": {"fused"},
    "objectives": {"clm", "mntp"},
    "optim": {"adamw"},
  }
  for folder, names in used.items():
    assert set(plugins.names(folder)) == names | one_line_away.get(folder, set())
