"""Parcae (arXiv 2604.12946): prelude, stable looped core, coda; 140M to 1.3B parameters.

Shows: the diagonal injection with a normed prelude, a read-out matrix and value embeddings,
trained causally with Muon and AdamW at a depth drawn for every row: max(1, Poisson(8)) loops, the
last 4 with gradient. Parameters: 144,323,136 / 388,003,328 / 776,655,680 /
1,338,591,744, of which about half are value embeddings.

Command: python -m looped_lm.main --config=configs/parcae.py:140m --workdir=runs/parcae \
  --config.data.paths=fineweb_edu
Arguments, separated by a comma: `140m` (the default), `370m`, `770m`, `1_3b`; `tiny` for tests.
Hardware: several accelerators; the largest reads 104B tokens. Time: not measured here.
Training costs 1.21 / 3.68 / 7.99 / 14.6 GFLOP per token on average if no row waited; 64 rows that
go through a device together run 15.3 loops, for their longest, and cost 1.52 / 4.69 / 10.2 / 18.8.
Result to expect (the paper's): validation loss 2.948 / 2.673 / 2.525 / 2.435 nats at 8 loops.

Differs from the paper: a row takes at most 24 loops (one draw in 850,000 would be longer), weight
decay follows the learning rate and has no schedule of its own, no step is skipped, rows are packed
without padding, and evaluation starts from a zero state.
"""

import math

from ml_collections import config_dict

from looped_lm.configuration import chosen, sibling

# Layers of prelude, core and coda each; D; heads; AdamW's rate; tokens of the paper's run.
SIZES = {
  "140m": (2, 768, 6, 8e-3, 11_200_000_000),
  "370m": (4, 1024, 8, 8e-3, 29_600_000_000),
  "770m": (6, 1280, 10, 6e-3, 61_600_000_000),
  "1_3b": (8, 1536, 12, 6e-3, 104_000_000_000),
}


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is a size, "tiny", or both."""
  size, is_tiny = chosen(arguments, file=__file__, sizes=SIZES)
  layers, embed_dim, num_heads, learning_rate, tokens = SIZES[size]
  if is_tiny:
    layers, embed_dim, num_heads = 2, 32, 2
  std = math.sqrt(2 / (5 * embed_dim))
  config = sibling(__file__, "looped_gpt_bert", "tiny" if is_tiny else "")
  config.data.packing = "documents"
  config.tokenizer.add_prefix_space = False
  depth = config.model.depth
  depth.update(name="poisson", per="sequence", mean_loops=8.0, max_loops=24, grad_loops=4)
  config.model = config_dict.ConfigDict(
    {
      "embed_dim": embed_dim,
      "prelude_layers": layers,
      "core_layers": layers,
      "coda_layers": layers,
      "num_loops": 8,
      "depth": depth,
      "remat": "full",
      "compute_dtype": "bfloat16",
      "block": {
        "name": "pre_norm",
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "mlp_dim": 4 * embed_dim,
        "mlp": "relu2",
        "norm": "rms",
        "norm_eps": 1e-5,
        "weight_init": "orthogonal",
        "weight_std": std,
        "out_init_scale": 0.0,
        "positions": "rotary",
        "rope_theta": 50_000.0,
        "qk_norm": True,
        # Every second layer, the last one included.
        "value_layers": tuple(range(1, 3 * layers, 2)),
      },
      "injection": {"name": "diagonal", "state_init": "truncated_normal", "state_std": std},
      "recurrence": {
        "prelude_norm": "rms",
        "readout": True,
        "readout_init": "orthogonal",
        # Orthogonal times sqrt(2 / 5).
        "readout_std": std,
      },
      "attention": {"name": "dense"},
      "embed": {"table_init": "orthogonal", "table_std": std},
      "head": {"name": "linear", "norm": "rms", "norm_eps": 1e-5, "tied": True},
    }
  )
  config.objective = config_dict.ConfigDict({"name": "clm", "z_loss_weight": 0.0})
  config.evals.held_out = config_dict.ConfigDict({"modes": ("clm",)})
  config.evals.loop_diagnostics = config_dict.ConfigDict({"modes": ("clm",)})
  config.optim = config_dict.ConfigDict(
    {
      "name": "muon_adamw",
      "schedule": "trapezoid",
      "learning_rate": learning_rate,
      "warmup_fraction": 0.0,
      "cooldown_fraction": 0.5,
      "floor_fraction": 0.0,
      "weight_decay": 0.2,
      "b1": 0.8,
      "b2": 0.95,
      "eps": 1e-10,
      "clip_norm": 1.0,
      # The paper's rate for Muon is 8e-3 at every size.
      "muon_rate_factor": 8e-3 / learning_rate,
      "muon_momentum_start": 0.85,
      "muon_momentum": 0.95,
      "muon_momentum_steps": 300,
      "muon_b2": 0.95,
    }
  )
  if is_tiny:
    config.model.num_loops = 3
    depth.update(mean_loops=3.0, max_loops=6, grad_loops=2)
    config.model.compute_dtype = "float32"
    config.model.remat = "none"
    return config
  config.data.seq_len = 2048
  config.tokenizer.vocab_size = 32_768
  config.train.total_epochs = 0.0
  config.train.total_tokens = tokens
  config.train.batch_size = 256
  config.train.micro_batches = 4
  config.train.ema_decay = 0.0
  return config
