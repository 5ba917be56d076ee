"""Huginn (arXiv 2502.05171), 3.5B parameters: 2 + 4 × 32 + 2 layers.

Shows: the largest published recurrent depth model as a config; `--mode=describe` says its cost.
Depth is drawn once per step for the whole batch: 1 + Poisson of a log-normal rate of mean 32, 33
loops on average, the last 8 with gradient.

Command: python -m looped_lm.main --config=configs/huginn.py --workdir=runs/huginn --mode=describe
Arguments: `3_5b` (the default); `tiny` for tests.
Training costs 215 GFLOP per token on average.
Hardware: the paper used 4,096 GPUs for 800B tokens. Time and result: not measured here.

Differs from the paper: at most 256 loops (six draws in a million would be longer), and one draw for
all rows of a step and not one per micro-batch.
"""

import math

from ml_collections import config_dict

from looped_lm.configuration import chosen, sibling

_EFFECTIVE_LAYERS = 2 + 4 * 32 + 2


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is "3_5b", "tiny", or both."""
  _, is_tiny = chosen(arguments, file=__file__, sizes=["3_5b"])
  config = sibling(__file__, "rdm", "tiny" if is_tiny else "")
  model = config.model
  model.block.qk_bias = True
  model.depth.update(name="lognormal_poisson", log_std=0.5)
  if is_tiny:
    model.core_layers = 2
    return config
  embed_dim = 5280
  std = math.sqrt(2 / (5 * embed_dim))
  model.embed_dim = embed_dim
  model.prelude_layers, model.core_layers, model.coda_layers = 2, 4, 2
  model.num_loops = 32
  model.depth.update(mean_loops=32.0, max_loops=256, grad_loops=8)
  model.block.num_heads = 55
  model.block.num_kv_heads = 55
  model.block.mlp_dim = 17_920
  model.block.weight_std = std
  model.block.out_init_scale = 1 / math.sqrt(2 * _EFFECTIVE_LAYERS)
  model.injection.kernel_std = std
  model.embed.scale = math.sqrt(embed_dim)
  model.embed.table_std = std
  config.data.seq_len = 4096
  config.optim.learning_rate = 4e-5
  config.optim.weight_decay = 4e-5
  config.train.total_tokens = 800_000_000_000
  config.train.batch_size = 4096
  config.train.micro_batches = 8
  return config
