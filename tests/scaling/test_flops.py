"""FLOPs and parameters equal the published arithmetic of GPT-BERT."""

import jax
import pytest

from looped_lm.models import looped
from looped_lm.scaling import flops

VOCAB, SEQ_LEN = 8192, 128


def settings(**fields):
  """The model group of Looped GPT-BERT, additive injection."""
  group = {
    "embed_dim": 384,
    "prelude_layers": 0,
    "core_layers": 4,
    "coda_layers": 0,
    "num_loops": 12,
    "remat": "none",
    "compute_dtype": "float32",
    "block": {
      "name": "gpt_bert",
      "num_heads": 6,
      "mlp_dim": 1280,
      "num_buckets": 32,
      "max_distance": 512,
      "attention_dropout_rate": 0.1,
      "hidden_dropout_rate": 0.1,
      "norm_eps": 1e-5,
      "dwa_scope": "layer",
      "position_lookup": "gather",
    },
    "injection": {"name": "add"},
    "attention": {"name": "dense"},
    "embed": {"norm": True, "norm_eps": 1e-5, "dropout_rate": 0.1},
    "head": {"name": "transform", "norm_eps": 1e-5, "dropout_rate": 0.1},
  }
  return group | fields


def shapes(group):
  return flops.abstract_params(looped.build(group, vocab_size=VOCAB))


@pytest.fixture(scope="module")
def params():
  return shapes(settings())


@pytest.mark.parametrize(
  ("num_loops", "core_layers", "megaflops"),
  [(3, 4, 63), (6, 4, 120), (12, 4, 233), (1, 12, 63)],
)
def test_the_forward_pass_costs_what_the_paper_s_arithmetic_says(num_loops, core_layers, megaflops):
  group = settings(num_loops=num_loops, core_layers=core_layers)
  got = flops.forward_flops_per_token(group, shapes(group), seq_len=SEQ_LEN)
  assert got / 1e6 == pytest.approx(megaflops, rel=0.005)


def test_a_layer_application_is_its_products_and_attention(params):
  macs = flops.forward_macs(settings(), params, seq_len=SEQ_LEN)
  products = 2 * (macs.loop - macs.loop_attention) / 4
  attention = 2 * macs.loop_attention / 4
  assert products / 1e6 == pytest.approx(4.42, abs=0.005)
  assert attention / 1e6 == pytest.approx(0.29, abs=0.005)


def test_training_counts_what_is_recomputed(params):
  """Forward and backward are three forwards; full remat repeats the loops, dots their attention."""
  macs = flops.forward_macs(settings(), params, seq_len=SEQ_LEN)
  got = {
    remat: flops.training_flops_per_token(settings(remat=remat), params, seq_len=SEQ_LEN)
    for remat in ("none", "dots", "full")
  }
  assert got["none"] == 6 * macs.forward
  assert got["full"] - got["none"] == 2 * 12 * macs.loop
  assert got["dots"] - got["none"] == 2 * 12 * macs.loop_attention
  assert got["full"] / got["none"] == pytest.approx(4 / 3, rel=0.01)


def test_prelude_and_coda_run_once(params):
  group = settings(prelude_layers=1, core_layers=4, coda_layers=2)
  more = flops.forward_macs(group, shapes(group), seq_len=SEQ_LEN)
  once = flops.forward_macs(settings(), params, seq_len=SEQ_LEN)
  assert more.forward - once.forward == pytest.approx(3 * once.loop / 4)
  assert flops.count_parameters(shapes(group)).looped == flops.count_parameters(params).looped


@pytest.mark.parametrize(
  ("injection", "total", "extra"), [("add", 12_181_780, 0), ("diagonal", 12_330_004, 384**2)]
)
def test_parameters_and_the_injection_s_cost(params, injection, total, extra):
  group = settings(injection={"name": injection})
  tree = shapes(group)
  counts = flops.count_parameters(tree)
  assert counts.total == total
  assert counts.non_embedding == total - VOCAB * 384
  assert counts.looped == total - VOCAB * 384 - 156_032 - 24_960
  assert sum(counts.by_part.values()) == total
  assert flops.forward_macs(group, tree, seq_len=SEQ_LEN).injection == extra


@pytest.mark.slow
def test_the_compiler_counts_the_same():
  """XLA's own count of one layer's products, on a model small enough to compile."""
  group = settings(embed_dim=64, num_loops=1, core_layers=1)
  group["block"] |= {"num_heads": 2, "mlp_dim": 192}
  model = looped.build(group, vocab_size=64)
  params = model.init(jax.random.key(0))
  rows, seq_len = 2, 32
  tokens = jax.numpy.ones((rows, seq_len), "int32")
  inputs = looped.Inputs(
    tokens_BT=tokens, order_BT=tokens * 0, segments_BT=tokens, row_B=jax.numpy.arange(rows)
  )

  def forward(params):
    hidden = model.encode(params, inputs).hidden_BTD
    return model.readout(params, hidden, inputs.row_B)

  cost = jax.jit(forward).lower(params).compile().cost_analysis()
  assert cost is not None
  per_token = cost["flops"] / (rows * seq_len)
  ours = flops.forward_flops_per_token(group, params, seq_len=seq_len)
  # The compiler also counts elementwise work and the position vectors' projection.
  positions = 2 * 63 * 2 * 64**2 / (rows * seq_len)
  assert 0.98 < (per_token - positions) / ours < 1.25


def test_sampled_depth_costs_its_prefix_forward_and_its_batch_s_longest_row(params):
  """Parcae's setting, mean 8 and K 4: 12.2 to 14.4 loops run in batches of 8 to 32 rows."""
  depth = {"name": "poisson", "mean_loops": 8.0, "max_loops": 60, "grad_loops": 4}

  def cost(rows, **fields):
    group = settings(num_loops=8, **fields)
    return flops.training_flops_per_token(group, params, seq_len=SEQ_LEN, rows=rows) / 2

  macs = flops.forward_macs(settings(num_loops=8), params, seq_len=SEQ_LEN)
  for rows, executed in ((8, 12.2), (16, 13.3), (32, 14.4)):
    wanted = 3 * macs.head + (executed - 4) * macs.loop + 4 * 3 * macs.loop
    assert cost(rows, depth=depth) == pytest.approx(wanted, rel=0.01)
  assert cost(16, depth=depth, remat="full") - cost(16, depth=depth) == pytest.approx(4 * macs.loop)
  # Alone, a row runs 8.0003 loops, of which 4 less what the shortest rows lack carry gradient.
  alone = flops.executed_loops(settings(depth=depth), rows=1)
  assert alone.prefix + alone.grad == pytest.approx(alone.mean)
  assert cost(1, depth=depth) == pytest.approx(
    3 * macs.head + (alone.prefix + 3 * alone.grad) * macs.loop
  )


def test_a_fixed_depth_may_be_truncated_and_every_row_runs_alike(params):
  whole = flops.training_flops_per_token(settings(), params, seq_len=SEQ_LEN)
  group = settings(depth={"name": "fixed", "grad_loops": 0})
  assert flops.training_flops_per_token(group, params, seq_len=SEQ_LEN, rows=64) == whole
  short = settings(depth={"name": "fixed", "grad_loops": 3})
  saved = whole - flops.training_flops_per_token(short, params, seq_len=SEQ_LEN, rows=64)
  assert saved == pytest.approx(2 * 9 * 2 * flops.forward_macs(short, params, seq_len=SEQ_LEN).loop)
