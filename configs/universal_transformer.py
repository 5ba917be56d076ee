"""A causal Universal Transformer (Dehghani et al., 2019): one layer, six loops, sinusoids for both.

Shows: the oldest looped transformer as a config: no injection, positions in the embedding, and a
sinusoid of the loop index added before every loop.

Command: python -m looped_lm.main --config=configs/universal_transformer.py \
  --workdir=runs/universal --config.data.paths=babylm_10M
Training costs 226 MFLOP per token. Hardware: one accelerator. Time and result: not measured here.

Differs from the paper: a decoder alone, norms before the sublayers, GELU, positions added once and
not again in every loop, a fixed number of loops.

`:tiny` is the same system at a size for tests.
"""

from ml_collections import config_dict

from looped_lm.configuration import chosen, sibling


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is "" or "tiny"."""
  _, is_tiny = chosen(arguments, file=__file__, sizes=["6x"])
  config = sibling(__file__, "grt", "tiny" if is_tiny else "")
  model = config.model
  model.prelude_layers = 0
  model.coda_layers = 0
  model.core_layers = 1
  model.num_loops = 3 if is_tiny else 6
  model.depth.name = "fixed"
  model.injection = config_dict.ConfigDict({"name": "none"})
  model.recurrence = config_dict.ConfigDict({"loop_embedding": "sinusoidal"})
  model.embed.positions = "sinusoidal"
  model.embed.max_positions = 0
  if is_tiny:
    return config
  model.embed_dim = 512
  model.block.num_heads = 8
  model.block.num_kv_heads = 8
  model.block.mlp_dim = 2048
  model.block.out_init_scale = (2 * 6) ** -0.5
  config.data.seq_len = 512
  config.tokenizer.vocab_size = 16_384
  config.train.total_steps = 0
  config.train.total_epochs = 10.0
  config.train.batch_size = 64
  config.train.micro_batches = 1
  return config
