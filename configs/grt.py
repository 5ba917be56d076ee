"""Gated Recurrent Transformers (arXiv 2608.15062), at the FLOPs or the parameters of GPT-2.

Shows: a convex gate between the old state and the core's output, a frozen anchor, noise on both,
and a depth drawn once per step for the whole batch, 1 .. R alike, all loops with gradient.
Parameters of the isoFLOP models: 63,611,904 (small), 171,073,536 (medium), 290,196,480 (large).

Command: python -m looped_lm.main --config=configs/grt.py:medium_isoflop --workdir=runs/grt \
  --config.data.paths=openwebtext
Arguments, separated by a comma: `small_isoflop` (the default), `medium_isoflop`, `large_isoflop`,
`small_isoparam`, `medium_isoparam`, `large_isoparam`; `tiny` for tests.
Training costs 0.78 / 2.19 / 4.43 GFLOP per token on average at isoFLOP, 4.21 / 6.59 / 20.0 at
isoparam; without head and recomputation the paper's isoFLOP is 0.78 / 0.72 / 0.69 of the dense one.
Hardware: the paper used two H200. Time: the paper's 6 hours at medium; not measured here. Result to
expect (the paper's, isoFLOP): validation loss 3.14 / 2.89 / 2.77 nats; isoparam 3.04 / 2.76 / 2.65.

Differs from the paper: the tokenizer is trained here and has as many entries as GPT-2's padded one.
"""

import math

from ml_collections import config_dict

from looped_lm.configuration import chosen, sibling

# Layers of prelude, core and coda; loops; D; heads.
SIZES = {
  "small_isoflop": (1, 1, 1, 10, 768, 12),
  "medium_isoflop": (2, 5, 2, 4, 1024, 16),
  "large_isoflop": (1, 5, 5, 6, 1280, 20),
  "small_isoparam": (1, 10, 1, 10, 768, 12),
  "medium_isoparam": (2, 20, 2, 4, 1024, 16),
  "large_isoparam": (3, 30, 3, 6, 1280, 20),
}


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is a size, "tiny", or both."""
  size, is_tiny = chosen(arguments, file=__file__, sizes=SIZES)
  prelude, core, coda, loops, embed_dim, num_heads = SIZES[size]
  if is_tiny:
    prelude, core, coda, loops, embed_dim, num_heads = 1, 1, 1, 3, 32, 2
  config = sibling(__file__, "parcae", "tiny" if is_tiny else "")
  config.data.seq_len = 32 if is_tiny else 1024
  model = config.model
  model.embed_dim = embed_dim
  model.prelude_layers, model.core_layers, model.coda_layers = prelude, core, coda
  model.num_loops = loops
  model.depth.update(
    name="uniform",
    per="batch",
    min_loops=1,
    max_loops=loops,
    mean_loops=(1 + loops) / 2,
    grad_loops=0,
  )
  model.recurrence = config_dict.ConfigDict({})
  model.block = config_dict.ConfigDict(
    {
      "name": "pre_norm",
      "num_heads": num_heads,
      "num_kv_heads": num_heads,
      "mlp_dim": 4 * embed_dim,
      "mlp": "gelu",
      "norm": "layer",
      "norm_eps": 1e-5,
      "weight_init": "normal",
      "weight_std": 0.02,
      "out_init_scale": 1 / math.sqrt(2 * (prelude + core * loops + coda)),
      "positions": "none",
    }
  )
  model.injection = config_dict.ConfigDict(
    {
      "name": "gated",
      "noise_std": 0.1,
      "gate_noise_std": 0.1,
      "gate_noise": "channel",
      "gate_norm": "separate",
      "gate_bias": 4.0,
      "temperature": 1.0,
    }
  )
  model.embed = config_dict.ConfigDict(
    {
      "positions": "learned",
      "max_positions": config.data.seq_len,
      "table_init": "normal",
      "table_std": 0.02,
    }
  )
  model.head.norm = "layer"
  config.optim = config_dict.ConfigDict(
    {
      "name": "adamw",
      "learning_rate": 6e-4,
      "warmup_fraction": 0.1,
      "decay_fraction": 1.0,
      "floor_fraction": 0.1,
      "weight_decay": 0.1,
      "b1": 0.9,
      "b2": 0.95,
      "eps": 1e-8,
      "clip_norm": 1.0,
    }
  )
  if is_tiny:
    return config
  config.tokenizer.vocab_size = 50_304
  config.train.total_tokens = 0
  config.train.total_steps = 20_000
  config.train.batch_size = 480
  config.train.micro_batches = 4
  return config
