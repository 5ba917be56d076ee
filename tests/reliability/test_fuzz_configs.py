"""Any combination of valid settings is a program that builds; a few take a step."""

import copy

import hypothesis
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import jobs, plugins
from looped_lm.blocks.gpt_bert import DWA_SCOPES
from looped_lm.jobs.experiment import picked
from looped_lm.models import looped
from looped_lm.nn.depth import SAMPLERS
from looped_lm.nn.mlp import ACTIVATIONS
from looped_lm.nn.positions import LOOKUPS
from looped_lm.optim import schedules
from looped_lm.train import step
from looped_lm.types import Batch, Vocabulary

VOCABULARY = Vocabulary(size=40, num_special=16, bos_id=1, pad_id=3, mask_id=4)
ROWS, LENGTH = 4, 16
CASES = hypothesis.settings().max_examples
# Shrinking a case of seconds takes an hour; the case says enough as it is.
UNSHRUNK = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
NORM = st.sampled_from(["none", "rms", "layer"])
NOISE = st.sampled_from([0.0, 0.1])
GPT_BERT = st.fixed_dictionaries(
  {
    "name": st.just("gpt_bert"),
    "num_heads": st.sampled_from([1, 2, 4]),
    "mlp_dim": st.just(16),
    "num_buckets": st.integers(4, 8),
    "max_distance": st.integers(8, 16),
    "attention_dropout_rate": NOISE,
    "hidden_dropout_rate": NOISE,
    "norm_eps": st.just(1e-5),
    "dwa_scope": st.sampled_from(DWA_SCOPES),
    "position_lookup": st.sampled_from(LOOKUPS),
  }
)
TRANSFORMER = st.fixed_dictionaries(
  {
    "name": st.sampled_from(["pre_norm", "sandwich"]),
    "num_heads": st.sampled_from([2, 4]),
    "num_kv_heads": st.sampled_from([1, 2]),
    "mlp_dim": st.just(16),
    "mlp": st.sampled_from(sorted(ACTIVATIONS)),
    "norm": st.sampled_from(["rms", "layer"]),
    "norm_eps": st.just(1e-5),
    "weight_init": st.sampled_from(["normal", "orthogonal"]),
    "weight_std": st.just(0.02),
    "out_init_scale": st.sampled_from([0.0, 1.0]),
    "positions": st.sampled_from(["rotary", "none"]),
    "qk_norm": st.booleans(),
    "qk_bias": st.booleans(),
    "use_bias": st.booleans(),
    "norm_bias": st.booleans(),
    "num_loop_norms": st.sampled_from([0, 2]),
    "hidden_dropout_rate": NOISE,
  }
)
START = {"state_init": st.sampled_from(["zero", "prelude"])}
INJECTION = st.one_of(
  [
    st.fixed_dictionaries({"name": st.sampled_from(["none", "diagonal", "diagonal_zoh"]), **START}),
    st.fixed_dictionaries({"name": st.just("add"), "exit_norm": NORM, **START}),
    st.fixed_dictionaries({"name": st.just("linear"), "kernel_std": st.just(0.1), **START}),
    st.fixed_dictionaries(
      {
        "name": st.just("gated"),
        "noise_std": NOISE,
        "gate_noise_std": NOISE,
        "gate_noise": st.sampled_from(["channel", "token"]),
        "gate_norm": st.sampled_from(["separate", "concatenation"]),
      }
    ),
    st.fixed_dictionaries(
      {
        "name": st.just("hyper_connections"),
        "num_lanes": st.integers(1, 3),
        "num_loops": st.integers(1, 3),
        "dynamic": st.booleans(),
      }
    ),
  ]
)
DEPTH = st.fixed_dictionaries(
  {
    "name": st.sampled_from(sorted(SAMPLERS)),
    "grad_loops": st.integers(0, 2),
    "per": st.sampled_from(["sequence", "batch"]),
    "mean_loops": st.sampled_from([1.0, 2.5]),
    "min_loops": st.just(1),
    "max_loops": st.integers(3, 5),
    "log_std": st.just(0.5),
    "curriculum": st.sampled_from(["none", "linear", "one_minus_sqrt"]),
    "start_loops": st.just(1.0),
    "curriculum_fraction": st.sampled_from([0.5, 1.0]),
  }
)
RECURRENCE = st.fixed_dictionaries(
  {
    "prelude_norm": NORM,
    "entry_norm": NORM,
    "exit_norm": NORM,
    "loop_embedding": st.sampled_from(["none", "learned", "sinusoidal"]),
    "step_sizes": st.booleans(),
    "readout": st.booleans(),
    "readout_std": st.just(0.1),
  }
)
HEAD = st.fixed_dictionaries(
  {"name": st.just("transform"), "norm_eps": st.just(1e-5), "dropout_rate": NOISE}
) | st.fixed_dictionaries(
  {
    "name": st.just("linear"),
    "norm": NORM,
    "tied": st.booleans(),
    "kernel_std": st.just(0.02),
    "softcap": st.sampled_from([0.0, 15.0]),
  }
)
MODEL = st.fixed_dictionaries(
  {
    "prelude_layers": st.integers(0, 1),
    "core_layers": st.integers(1, 2),
    "coda_layers": st.integers(0, 1),
    "num_loops": st.integers(2, 3),
    "depth": DEPTH,
    "remat": st.sampled_from(["none", "attention", "dots", "full"]),
    "attention": st.sampled_from([{"name": "dense"}, {"name": "fused"}]),
    "compute_dtype": st.sampled_from(["float32", "bfloat16"]),
    "block": GPT_BERT | TRANSFORMER,
    "injection": INJECTION,
    "recurrence": RECURRENCE,
    "head": HEAD,
    "embed": st.fixed_dictionaries(
      {"norm": st.booleans(), "dropout_rate": NOISE, "factor_dim": st.sampled_from([0, 4])}
    ),
  }
)
OBJECTIVE = st.fixed_dictionaries(
  {
    "name": st.sampled_from(["clm", "mntp", "hybrid"]),
    "mntp_fraction": st.sampled_from([0.0, 0.25, 1.0]),
    "token_weighted": st.booleans(),
    "z_loss_weight": st.sampled_from([0.0, 1e-4]),
  }
)
OPTIMISER = st.sampled_from([("looped_gpt_bert", "lamb"), ("grt", "adamw"), ("parcae", "muon")])


def assembled(config, others, model, objective, optimiser):
  """A whole config, and the first state and the step that it describes."""
  config = copy.deepcopy(config)
  config["model"] |= {"embed_dim": 8, **model}
  if model["attention"]["name"] == "fused":
    config["model"]["block"] = {**model["block"], "attention_dropout_rate": 0.0}
  config["objective"] |= objective
  config["optim"] = others[optimiser]
  jobs.check(config)
  network = looped.build(config["model"], vocab_size=VOCABULARY.size)
  cls = plugins.load("objectives", config["objective"]["name"]).Objective
  schedule = schedules.make(config["optim"], total_steps=10)
  tx = picked(plugins.load("optim", config["optim"]["name"]).Optimizer, config["optim"])
  tx = tx.build(schedule)
  train_step = step.make_train_step(
    model=network,
    objective=picked(cls, {**config["objective"], "vocabulary": VOCABULARY}),
    tx=tx,
    schedule=schedule,
    total_steps=10,
    micro_batches=1,
    ema_decay=0.9,
  )
  return lambda: step.initial_state(network.init, tx, seed=0, ema=True), train_step


@pytest.fixture(scope="module")
def base(tiny_config):
  others = {
    (name, kind): tiny_config(name)["optim"]
    for name, kind in [("looped_gpt_bert", "lamb"), ("grt", "adamw"), ("parcae", "muon")]
  }
  return tiny_config(), others


def a_batch():
  tokens_BT = np.random.default_rng(0).integers(16, VOCABULARY.size, (ROWS, LENGTH))
  tokens_BT[:, 0] = VOCABULARY.bos_id
  segments_BT = np.ones_like(tokens_BT)
  segments_BT[0, 9:] = 2
  segments_BT[1, 9:] = 0
  return Batch(
    tokens_BT=jnp.asarray(tokens_BT, jnp.int32),
    segments_BT=jnp.asarray(segments_BT, jnp.int32),
    row_B=jnp.arange(ROWS, dtype=jnp.int32),
  )


@hypothesis.settings(phases=UNSHRUNK)
@given(model=MODEL, objective=OBJECTIVE, optimiser=OPTIMISER)
def test_any_combination_builds(base, model, objective, optimiser):
  make_state, _ = assembled(*base, model, objective, optimiser)
  state = jax.eval_shape(make_state)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))
  assert jax.tree.structure(state.ema) == jax.tree.structure(state.params)


@pytest.mark.nightly
@hypothesis.settings(max_examples=max(4, CASES // 5), phases=UNSHRUNK)
@given(model=MODEL, objective=OBJECTIVE, optimiser=OPTIMISER)
def test_any_combination_is_a_step(base, model, objective, optimiser):
  make_state, train_step = assembled(*base, model, objective, optimiser)
  state = jax.eval_shape(make_state)
  after, figures = jax.eval_shape(train_step, state, a_batch())
  assert jax.tree.structure(after) == jax.tree.structure(state)
  same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), after, state)
  assert all(jax.tree.leaves(same))
  assert {"loss_nats", "grad_norm"} <= figures.keys()


@pytest.mark.nightly
@hypothesis.settings(max_examples=max(4, CASES // 10), phases=UNSHRUNK)
@given(model=MODEL, objective=OBJECTIVE, optimiser=OPTIMISER)
def test_some_take_a_finite_step(base, model, objective, optimiser):
  make_state, train_step = assembled(*base, model, objective, optimiser)
  state, figures = jax.jit(lambda: train_step(make_state(), a_batch()))()
  assert all(np.isfinite(total) for total, _ in figures.values())
  assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((state.params, state.ema)))
