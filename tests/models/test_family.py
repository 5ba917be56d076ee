"""Every system of the family as a config: its size, and what it equals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import visibility
from looped_lm.errors import UserError
from looped_lm.models import looped
from looped_lm.nn import depth
from looped_lm.scaling import flops
from looped_lm.types import Inputs

pytestmark = pytest.mark.slow  # CI runs them; `make test` has the golden numbers instead.

COUNTS = {
  ("parcae", "140m"): 144_323_136,
  ("parcae", "370m"): 388_003_328,
  ("parcae", "770m"): 776_655_680,
  ("parcae", "1_3b"): 1_338_591_744,
  ("gpt2", "140m"): 143_141_184,
  ("gpt2", "370m"): 385_903_104,
  ("gpt2", "770m"): 773_375_040,
  ("gpt2", "1_3b"): 1_333_868_544,
  ("rdm", "100m"): 114_242_560,
  ("rdm", "350m"): 382_765_056,
  ("grt", "medium_isoflop"): 171_073_536,
  ("grt", "large_isoflop"): 290_196_480,
  # No published totals: 24.2M of these are no embeddings, as published.
  ("grt", "small_isoflop"): 63_611_904,
}
# Depth in training: sampler, per what, mean loops drawn, gradient loops; and what a token costs in
# training on average if no row waits, in GFLOP.
DEPTHS = {
  ("parcae", "140m"): ("poisson", "sequence", 8.0, 4, 1.21),
  ("parcae", "370m"): ("poisson", "sequence", 8.0, 4, 3.68),
  ("parcae", "770m"): ("poisson", "sequence", 8.0, 4, 7.99),
  ("parcae", "1_3b"): ("poisson", "sequence", 8.0, 4, 14.6),
  ("gpt2", "140m"): ("fixed", "sequence", 1.0, 1, 0.642),
  ("rdm", "100m"): ("poisson", "batch", 16.0, 8, 2.24),
  ("rdm", "350m"): ("poisson", "batch", 8.0, 4, 7.21),
  ("huginn", "3_5b"): ("lognormal_poisson", "batch", 33.0, 8, 215.0),
  ("grt", "small_isoflop"): ("uniform", "batch", 5.5, 10, 0.782),
  ("grt", "medium_isoflop"): ("uniform", "batch", 2.5, 4, 2.19),
  ("grt", "large_isoflop"): ("uniform", "batch", 3.5, 6, 4.43),
  ("grt", "small_isoparam"): ("uniform", "batch", 5.5, 10, 4.21),
  ("grt", "medium_isoparam"): ("uniform", "batch", 2.5, 4, 6.59),
  ("grt", "large_isoparam"): ("uniform", "batch", 3.5, 6, 20.0),
  ("recursive_gpt", ""): ("fixed", "sequence", 16.0, 16, 2.71),
  ("universal_transformer", ""): ("fixed", "batch", 6.0, 6, 0.226),
}
INJECTIONS = (
  "none",
  "add",
  "add_norm",
  "diagonal",
  "diagonal_zoh",
  "linear",
  "gated",
  "hyper_connections",
)
# Every config of the family, in every form; full sizes are built by shape alone.
FORMS = [
  *COUNTS,
  ("grt", "small_isoparam"),
  ("grt", "medium_isoparam"),
  ("grt", "large_isoparam"),
  ("huginn", "3_5b"),
  ("recursive_gpt", ""),
  ("universal_transformer", ""),
  *(("looped_gpt_bert_injections", name) for name in INJECTIONS),
]


def shapes(config):
  model = looped.build(config["model"], vocab_size=config["tokenizer"]["vocab_size"])
  return flops.abstract_params(model)


@pytest.mark.parametrize("form", COUNTS, ids=":".join)
def test_parameter_counts_are_the_published_ones(tiny_config, form):
  assert flops.count_parameters(shapes(tiny_config(*form))).total == COUNTS[form]


def test_parameters_are_told_apart(tiny_config):
  counts = flops.count_parameters(shapes(tiny_config("parcae", "140m")))
  tables = 3 * 32_768 * 768
  assert counts.non_embedding == 144_323_136 - tables - 32_768 * 768
  # The core's two layers with one gate, and the injection.
  assert counts.looped == 14_159_040 + 768**2 + 2 * 768
  small = flops.count_parameters(shapes(tiny_config("grt", "small_isoflop")))
  assert small.non_embedding == pytest.approx(24.2e6, rel=1e-3)


@pytest.mark.parametrize("form", FORMS, ids=":".join)
def test_a_layer_s_multiply_adds_are_its_matrices_and_attention(tiny_config, form):
  config = tiny_config(*form)
  model, seq_len = config["model"], config["data"]["seq_len"]
  macs = flops.forward_macs(model, shapes(config), seq_len=seq_len)
  per_layer = macs.loop_attention / model["core_layers"]
  if model["block"]["name"] != "gpt_bert":
    assert per_layer == 2 * seq_len * model["embed_dim"]


@pytest.mark.parametrize("form", DEPTHS, ids=":".join)
def test_depth_in_training_is_the_paper_s_and_costs_what_the_config_says(tiny_config, form):
  config = tiny_config(*form)
  model = config["model"]
  name, per, mean, grad_loops, giga = DEPTHS[form]
  sampler = depth.make(model["depth"], num_loops=model["num_loops"])
  assert (model["depth"]["name"], sampler.trained_loops) == (name, grad_loops)
  assert name == "fixed" or sampler.per == per
  # What the cap takes is less than a thousandth.
  assert sampler.executed(1).mean == pytest.approx(mean, rel=1e-3)
  cost = flops.training_flops_per_token(model, shapes(config), seq_len=config["data"]["seq_len"])
  assert cost / 1e9 == pytest.approx(giga, rel=5e-3)


@pytest.mark.parametrize(("size", "share"), [("small", 0.78), ("medium", 0.72), ("large", 0.69)])
def test_grt_trains_at_the_published_share_of_the_dense_model_s_cost(tiny_config, size, share):
  config = tiny_config("grt", f"{size}_isoflop")
  model = config["model"]
  macs = flops.forward_macs(model, shapes(config), seq_len=config["data"]["seq_len"])
  mean = flops.executed_loops(model, rows=64).mean
  layer = macs.loop / model["core_layers"]
  # The paper counts projection and gate whole in every loop; their share of e is done once here.
  looped = mean * (macs.loop + 5 * model["embed_dim"] ** 2)
  dense = {"small": 12, "medium": 24, "large": 36}[size] * layer
  assert (macs.prelude + looped + macs.coda) / dense == pytest.approx(share, abs=0.005)
  assert macs.injection_loop == 3 * model["embed_dim"] ** 2


@pytest.mark.parametrize("form", DEPTHS, ids=":".join)
def test_another_name_alone_changes_the_sampler(tiny_config, form):
  model = tiny_config(*form)["model"]
  for name in depth.SAMPLERS:
    settings = {**model["depth"], "name": name}
    depth.make(settings, num_loops=model["num_loops"])


TINY = [("parcae", ""), ("gpt2", ""), ("rdm", ""), ("grt", ""), *FORMS[-len(INJECTIONS) - 3 :]]


@pytest.mark.parametrize("form", TINY, ids=":".join)
def test_every_form_has_a_tiny_one_that_runs(tiny_config, form):
  name, argument = form
  config = tiny_config(name, f"{argument},tiny" if argument else "tiny")
  model = looped.build(config["model"], vocab_size=60)
  tokens = jnp.zeros((2, 32), jnp.int32)
  inputs = Inputs(
    tokens_BT=tokens, order_BT=tokens, segments_BT=tokens + 1, row_B=jnp.arange(2, dtype=jnp.int32)
  )

  def loss(params):
    hidden = model.encode(params, inputs, key=jax.random.key(0)).hidden_BTD
    return model.readout(params, hidden, inputs.row_B).sum()

  params = jax.eval_shape(model.init, jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(params)) < 150_000
  gradient = jax.eval_shape(jax.grad(loss), params)
  assert jax.tree.structure(gradient) == jax.tree.structure(params)


def test_an_unknown_form_is_answered_with_the_known_ones(tiny_config):
  with pytest.raises(UserError, match=r"parcae.py:240m is unknown.*'140m', '370m'"):
    tiny_config("parcae", "240m")


def test_a_shared_layer_is_one_layer_repeated(tiny_config):
  """ALBERT's sharing: six layers with one set of weights are a one-layer core of six loops."""
  settings = tiny_config("gpt2", "tiny")["model"]
  settings["block"]["value_layers"] = ()
  shared = looped.build(settings | {"core_layers": 1, "num_loops": 6}, vocab_size=60)
  dense = looped.build(settings | {"core_layers": 6, "num_loops": 1}, vocab_size=60)
  tokens = jnp.asarray(np.random.default_rng(0).integers(16, 60, (2, 8)), jnp.int32)
  inputs = Inputs(
    tokens_BT=tokens,
    order_BT=visibility.causal(tokens),
    segments_BT=jnp.ones_like(tokens),
    row_B=jnp.arange(2, dtype=jnp.int32),
  )
  params = jax.jit(shared.init)(jax.random.key(0))
  params = jax.tree.map(lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size).reshape(x.shape)), params)
  copied = params | {"core": {f"layers_{i}": params["core"]["layers_0"] for i in range(6)}}
  ours, theirs = jax.jit(
    lambda: (shared.encode(params, inputs).hidden_BTD, dense.encode(copied, inputs).hidden_BTD)
  )()
  np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_initial_weights_are_parcae_s(tiny_config):
  settings = tiny_config("parcae", "tiny")["model"] | {"prelude_layers": 0, "coda_layers": 0}
  params = jax.jit(looped.build(settings, vocab_size=300).init)(jax.random.key(0))
  std = (2 / (5 * 32)) ** 0.5
  layer = params["core"]["layers_1"]
  for kernel in (layer["attend"]["query"], layer["feed"]["up"]):
    assert float(kernel["kernel"].std()) == pytest.approx(std, rel=0.05)
  for kernel in (layer["attend"]["out"], layer["feed"]["down"]):
    np.testing.assert_array_equal(kernel["kernel"], 0.0)
  readout = params["recurrence"]["readout_matrix"]["kernel"]
  np.testing.assert_allclose(readout @ readout.T, 0.4 * np.eye(32), atol=1e-5)
  assert float(layer["value_embedding"]["embedding"].std()) == pytest.approx(1.0, rel=0.05)
  gate = jnp.abs(layer["value_embedding"]["gate"])
  assert 0.15 < float(gate.max()) <= 32**-0.5
