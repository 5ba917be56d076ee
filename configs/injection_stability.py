"""The small model with which injections are compared for stability: 1 + 1 × 8 + 1 layers, D = 64.

Shows: which ways of injecting the prelude's output into a loop bear a high learning rate. All else
is alike: pre-norm layers without query-key norm, no prelude norm, no read-out matrix, eight loops
with all their gradients, AdamW, so that nothing but the injection can hold the state.

Command: python benchmarks/injection_stability.py trains every injection at several learning rates;
one of them: python -m looped_lm.main --config=configs/injection_stability.py:linear \
  --config.optim.learning_rate=0.016 --workdir=runs/linear
Arguments, separated by commas: `none` (the default), `add`, `add_norm`, `diagonal`, `diagonal_zoh`,
`linear`, `gated`, `hyper_connections`; `d96` for another D, `r4` for another R; `tiny` for tests.
Hardware: one CPU core. Time and result to expect: docs/experiments.md.
"""

import math
import re

from ml_collections import config_dict

from looped_lm.configuration import sibling


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` may name an injection, sizes and "tiny"."""
  parts = arguments.split(",") if arguments else []
  is_tiny = "tiny" in parts
  sizes = {"d": 32, "r": 3} if is_tiny else {"d": 64, "r": 8}
  given = [part for part in parts if re.fullmatch(r"[dr][1-9]\d*", part)]
  sizes |= {part[0]: int(part[1:]) for part in given}
  embed_dim, loops = sizes["d"], sizes["r"]
  rest = ",".join(part for part in parts if part not in given)
  config = sibling(__file__, "looped_gpt_bert_injections", rest)
  std = math.sqrt(2 / (5 * embed_dim))
  model = config.model
  model.embed_dim = embed_dim
  model.prelude_layers, model.core_layers, model.coda_layers = 1, 1, 1
  model.num_loops = loops
  model.depth.update(mean_loops=float(loops), max_loops=3 * loops)
  model.remat = "none"
  model.compute_dtype = "float32"
  model.block = config_dict.ConfigDict(
    {
      "name": "pre_norm",
      "num_heads": 2,
      "num_kv_heads": 2,
      "mlp_dim": 3 * embed_dim,
      "mlp": "swiglu",
      "norm": "rms",
      "norm_eps": 1e-6,
      "weight_init": "truncated_normal",
      "weight_std": std,
      "out_init_scale": 1 / math.sqrt(2 * (1 + loops + 1)),
      "positions": "rotary",
      "rope_theta": 10_000.0,
    }
  )
  if "kernel_std" in model.injection:
    model.injection.kernel_std = std
  if "num_loops" in model.injection:
    model.injection.num_loops = loops
  model.embed = config_dict.ConfigDict(
    {"scale": math.sqrt(embed_dim), "table_init": "truncated_normal", "table_std": std}
  )
  model.head = config_dict.ConfigDict(
    {"name": "linear", "norm": "rms", "norm_eps": 1e-6, "tied": True}
  )
  config.objective = config_dict.ConfigDict({"name": "clm", "z_loss_weight": 0.0})
  config.optim = config_dict.ConfigDict(
    {
      "name": "adamw",
      "learning_rate": 0.004,
      "warmup_fraction": 0.05,
      "decay_fraction": 1.0,
      "floor_fraction": 0.1,
      "weight_decay": 0.1,
      "b1": 0.9,
      "b2": 0.95,
      "eps": 1e-8,
      "clip_norm": 1.0,
    }
  )
  config.evals.held_out = config_dict.ConfigDict({"modes": ("clm",)})
  config.train.ema_decay = 0.0
  config.train.log_every_steps = 1
  config.train.save_every_steps = 0
  if is_tiny:
    return config
  config.data.paths = ("corpus:quickstart",)
  config.data.packing = "documents"
  config.data.seq_len = 64
  config.tokenizer.vocab_size = 2048
  config.train.total_epochs = 0.0
  config.train.total_steps = 150
  config.train.eval_every_steps = 50
  config.train.batch_size = 8
  config.evals.batch_size = 8
  config.evals.num_batches = 8
  return config
