"""RecursiveGPT (arXiv 2608.26973): one block sixteen times, told its depth by its norms.

Shows: one layer as the whole network, factorised embeddings, an untied factorised head, and a scale
and bias per loop in every norm.

Command: python -m looped_lm.main --config=configs/recursive_gpt.py --workdir=runs/recursive \
  --config.data.paths=babylm_10M
Training costs 2.71 GFLOP per token. Hardware: one accelerator. Time: not measured here. Result to
expect (the paper's 27.6M model on 10M words): BLiMP 70.95, against 68.97 for a standard model of
41.1M.

Depth is fixed, in training too: every loop has norms of its own.

Differs from the paper: the width is chosen here, and attention has no gate per head.

`:tiny` is the same system at a size for tests.
"""

import math

from ml_collections import config_dict

from looped_lm.configuration import chosen, sibling


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is "" or "tiny"."""
  _, is_tiny = chosen(arguments, file=__file__, sizes=["16x"])
  embed_dim, num_heads, loops, factor = (32, 2, 3, 16) if is_tiny else (1280, 20, 16, 192)
  std = math.sqrt(2 / (5 * embed_dim))
  config = sibling(__file__, "parcae", "tiny" if is_tiny else "")
  model = config.model
  model.embed_dim = embed_dim
  model.prelude_layers, model.core_layers, model.coda_layers = 0, 1, 0
  model.num_loops = loops
  model.depth.update(name="fixed", grad_loops=0, mean_loops=float(loops), max_loops=3 * loops)
  model.recurrence = config_dict.ConfigDict({})
  model.injection = config_dict.ConfigDict({"name": "none"})
  # Parcae's block, but for the following.
  model.block.update(
    num_heads=num_heads,
    num_kv_heads=num_heads,
    mlp_dim=4 * embed_dim,
    norm_bias=True,
    num_loop_norms=loops,
    weight_init="truncated_normal",
    weight_std=std,
    rope_theta=10_000.0,
    value_layers=(),
  )
  model.embed = config_dict.ConfigDict(
    {"factor_dim": factor, "table_init": "truncated_normal", "table_std": 0.1}
  )
  model.head.update(tied=False, factor_dim=factor, kernel_init="truncated_normal", kernel_std=std)
  if is_tiny:
    return config
  config.data.seq_len = 512
  config.tokenizer.vocab_size = 16_384
  config.train.total_tokens = 0
  config.train.total_epochs = 10.0
  config.train.batch_size = 64
  config.train.micro_batches = 1
  return config
