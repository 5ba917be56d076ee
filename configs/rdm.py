"""Recurrent depth models as Parcae's paper trains them: Huginn's architecture at 100M and 350M.

Shows: sandwich norms, a concat injection, one norm for the loop's exit and the read-out, and a
depth drawn once per step for the whole batch: max(1, Poisson(μ)) loops, half of μ with gradient.
Parameters: 114,242,560 and 382,765,056.

Command: python -m looped_lm.main --config=configs/rdm.py:100m --workdir=runs/rdm \
  --config.data.paths=huginn_data
Arguments, separated by a comma: `100m` (the default) or `350m`; `tiny` for tests.
Training costs 2.24 and 7.21 GFLOP per token on average.
Hardware: several accelerators. Time: not measured here. Result to expect (Parcae's paper):
perplexity 14.23 at 16 loops (100M) and 10.76 at 8 loops (350M).

Differs from the paper: at most 3 μ loops (one draw in 850,000 of 350m would be longer), one draw
for all rows of a step and not one per micro-batch, plain AdamW without update clipping; the tokens
of the run, 10B, are those of the paper's ablations.
"""

import math

from ml_collections import config_dict

from looped_lm.configuration import chosen, sibling

# Layers of prelude, core and coda; loops; D; F; heads; rate.
SIZES = {"100m": (1, 1, 1, 16, 1024, 3520, 8, 4e-4), "350m": (1, 2, 1, 8, 2048, 7040, 16, 2e-4)}


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is a size, "tiny", or both."""
  size, is_tiny = chosen(arguments, file=__file__, sizes=SIZES)
  prelude, core, coda, loops, embed_dim, mlp_dim, num_heads, rate = SIZES[size]
  if is_tiny:
    prelude, core, coda, loops, embed_dim, mlp_dim, num_heads = 1, 1, 1, 3, 32, 64, 2
  std = math.sqrt(2 / (5 * embed_dim))
  config = sibling(__file__, "parcae", "tiny" if is_tiny else "")
  model = config.model
  model.embed_dim = embed_dim
  model.prelude_layers, model.core_layers, model.coda_layers = prelude, core, coda
  model.num_loops = loops
  model.depth.update(
    per="batch", mean_loops=float(loops), max_loops=3 * loops, grad_loops=math.ceil(loops / 2)
  )
  model.recurrence = config_dict.ConfigDict({"exit_norm": "head"})
  model.block = config_dict.ConfigDict(
    {
      "name": "sandwich",
      "num_heads": num_heads,
      "num_kv_heads": num_heads,
      "mlp_dim": mlp_dim,
      "mlp": "swiglu",
      "norm": "rms",
      "norm_eps": 1e-6,
      "weight_init": "truncated_normal",
      "weight_std": std,
      "out_init_scale": 1 / math.sqrt(2 * (prelude + core * loops + coda)),
      "positions": "rotary",
      "rope_theta": 50_000.0,
    }
  )
  model.injection = config_dict.ConfigDict(
    {
      "name": "linear",
      "kernel_init": "truncated_normal",
      "kernel_std": std,
      "state_init": "truncated_normal",
      "state_std": math.sqrt(2 / 5),
    }
  )
  model.embed = config_dict.ConfigDict(
    {"scale": math.sqrt(embed_dim), "table_init": "truncated_normal", "table_std": std}
  )
  model.head.norm_eps = 1e-6
  config.optim = config_dict.ConfigDict(
    {
      "name": "adamw",
      "schedule": "trapezoid",
      "learning_rate": rate,
      # 4,096 of about 19,000 steps.
      "warmup_fraction": 0.2,
      "cooldown_fraction": 0.2,
      "floor_fraction": 0.0,
      "weight_decay": 1e-4,
      "b1": 0.9,
      "b2": 0.95,
      "eps": 1e-8,
      "clip_norm": 1.0,
    }
  )
  if not is_tiny:
    config.tokenizer.vocab_size = 65_536
    config.train.total_tokens = 10_000_000_000
  return config
