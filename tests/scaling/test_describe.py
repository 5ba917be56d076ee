"""The description of a run: right numbers, aligned, and nothing compiled."""

import dataclasses
import types as python_types

import jax
import numpy as np
import pytest

from looped_lm.data.rows import Rows
from looped_lm.models import looped
from looped_lm.scaling import flops, memory
from looped_lm.scaling.describe import describe

BLOCK = {
  "name": "gpt_bert",
  "num_heads": 6,
  "mlp_dim": 1280,
  "num_buckets": 32,
  "max_distance": 512,
  "attention_dropout_rate": 0.0,
  "hidden_dropout_rate": 0.0,
  "norm_eps": 1e-5,
  "dwa_scope": "layer",
  "position_lookup": "gather",
}
MODEL = {
  "embed_dim": 384,
  "prelude_layers": 0,
  "core_layers": 4,
  "coda_layers": 0,
  "num_loops": 12,
  "remat": "none",
  "compute_dtype": "float32",
  "block": BLOCK,
  "injection": {"name": "add"},
  "attention": {"name": "dense"},
  "embed": {"norm": True, "norm_eps": 1e-5, "dropout_rate": 0.0},
  "head": {"name": "transform", "norm_eps": 1e-5, "dropout_rate": 0.0},
}
TRAIN = {
  "batch_size": 8,
  "micro_batches": 1,
  "total_steps": 0,
  "total_words": 0,
  "total_tokens": 0,
  "total_epochs": 0.0,
}


@pytest.fixture(scope="module")
def model():
  return looped.build(MODEL, vocab_size=8192)


def config(**budget):
  return {"seed": 1, "data": {"seq_len": 8}, "model": MODEL, "train": TRAIN | budget}


def prepared(num_rows=16):
  """Rows of 7 tokens; row i holds i words."""
  rows = Rows(
    tokens_S=np.zeros(7 * num_rows, np.int32),
    start_P=np.arange(num_rows) * 7,
    length_P=np.full(num_rows, 7),
    first_N=np.arange(num_rows + 1),
    words_N=np.arange(num_rows),
    seq_len=8,
    bos_id=1,
    pad_id=3,
  )
  return python_types.SimpleNamespace(train=rows)


def value(text, name):
  (line,) = [line for line in text.splitlines() if line.strip().startswith(name + "  ")]
  return line.strip()[len(name) :].split()[0]


def test_without_prepared_data_it_says_how_to_get_words(model):
  text = describe(model, config(total_words=1000))
  assert "run --mode=prepare" in text
  assert value(text, "positions per step") == "64"
  assert "total words" not in text


def test_the_numbers_of_the_model(model):
  text = describe(model, config(total_steps=10))
  assert value(text, "core/layers_3/qk/kernel") == "384"  # 384 × 768
  assert "384 × 768" in text
  assert "294,912" in text
  assert value(text, "total") == "12,181,780"
  assert value(text, "non-embedding") == "9,036,052"
  assert value(text, "looped") == "8,855,060"
  assert "48 layer applications: 0 + 12 × 4 + 0" in text
  macs = flops.forward_macs(MODEL, flops.abstract_params(model), seq_len=8)
  assert value(text, "forward FLOPs per token") == f"{2 * macs.forward / 1e6:.3g}"


def test_a_whole_number_of_epochs_shows_every_word_that_often(model):
  text = describe(model, config(total_steps=6), prepared())
  words = sum(range(16))
  assert value(text, "total words") == str(3 * words)
  assert value(text, "total tokens") == str(3 * 16 * 7)
  assert value(text, "words per step") == str(words // 2)
  assert f"3.00 epochs of {words} words" in text


@pytest.mark.parametrize(
  "budget", [{"total_epochs": 3.0}, {"total_words": 3 * 120}, {"total_tokens": 3 * 16 * 7}]
)
def test_every_budget_becomes_steps(model, budget):
  text = describe(model, config(**budget), prepared())
  assert value(text, "steps") == "6"


def test_columns_are_aligned(model):
  lines = describe(model, config(total_steps=6), prepared()).splitlines()
  table = lines[1 : lines.index("")]
  assert len({len(line) for line in table}) == 1  # The last column is right-aligned.
  assert max(map(len, lines)) <= 100


def test_nothing_is_computed(model):
  """Parameters are traced for their shapes; the model itself is never called."""

  def init(key):
    assert isinstance(key, jax.core.Tracer)
    return model.init(key)

  def forbidden(*args, **kwargs):
    raise AssertionError("described by computing")

  traced = dataclasses.replace(
    model, init=init, encode=forbidden, finish=forbidden, readout=forbidden
  )
  assert describe(traced, config(total_steps=1)) == describe(model, config(total_steps=1))


# Temporary memory that XLA reported, in GB: remat, loops, rows, tokens per row, GB.
COMPILED = [
  ("none", 3, 32, 128, 5.0),
  ("none", 6, 32, 128, 9.2),
  ("none", 12, 32, 128, 17.4),
  ("none", 24, 32, 128, 34.0),
  ("none", 12, 256, 128, 139.0),
  ("none", 12, 2, 2048, 37.7),
  ("full", 1, 32, 128, 1.36),
  ("full", 3, 32, 128, 1.42),
  ("full", 12, 32, 128, 1.48),
  ("full", 24, 32, 128, 1.55),
  ("full", 12, 64, 128, 2.9),
  ("full", 12, 256, 128, 11.4),
  ("full", 12, 2, 2048, 4.9),
  ("dots", 12, 32, 128, 4.9),
  ("attention", 12, 32, 128, 5.7),
  ("attention", 12, 2, 2048, 21.3),
]


@pytest.mark.parametrize(("remat", "num_loops", "rows", "seq_len", "gigabytes"), COMPILED)
def test_memory_is_near_what_was_compiled(model, remat, num_loops, rows, seq_len, gigabytes):
  group = MODEL | {"remat": remat, "num_loops": num_loops}
  params = flops.abstract_params(model)
  got = memory.activation_bytes(group, params, rows=rows, seq_len=seq_len)
  assert got / 1e9 == pytest.approx(gigabytes, rel=0.3)


def test_bfloat16_takes_less_memory(model):
  params = flops.abstract_params(model)
  sizes = [
    memory.activation_bytes(MODEL | {"compute_dtype": dtype}, params, rows=8, seq_len=128)
    for dtype in ("bfloat16", "float32")
  ]
  assert sizes[0] < sizes[1]


def test_sampled_depth_is_described_and_fixed_depth_is_not(model):
  sampled = {"name": "poisson", "mean_loops": 8.0, "max_loops": 60, "grad_loops": 4}
  group = MODEL | {"depth": sampled}
  rows = 16 * jax.device_count()
  text = describe(model, config(total_steps=1, batch_size=rows) | {"model": group})
  assert value(text, "mean trained loops") == "8.00"
  assert value(text, "mean executed loops").startswith("13.")
  assert "without gradient + 4.00 with" in text
  assert "trained loops" not in describe(model, config(total_steps=1))
  whole = {"name": "uniform", "max_loops": 6, "per": "batch"}
  text = describe(model, config(total_steps=1) | {"model": MODEL | {"depth": whole}})
  assert value(text, "mean trained loops") == value(text, "mean executed loops") == "3.50"


def test_only_loops_with_gradient_keep_memory(model):
  params = flops.abstract_params(model)

  def size(**depth):
    group = MODEL | {"depth": {"name": "fixed", **depth}}
    return memory.activation_bytes(group, params, rows=8, seq_len=128)

  three = memory.activation_bytes(MODEL | {"num_loops": 3}, params, rows=8, seq_len=128)
  assert size(grad_loops=3) == three < size()
