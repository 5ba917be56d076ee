"""The quickstart: a looped GPT-BERT of 1M parameters, from raw English to scores in minutes.

Shows: the whole system on a laptop. One layer x four loops reads the Bible in Basic English and
presidential addresses (or generated English where those packages are absent).

Command: make quickstart
Hardware: two CPU cores. Time: 4 min 37 s measured after installation. Result to expect (measured):
held-out causal loss 4.874 nats per token, 4.935 read after loop 1, against 6.406 by unigram.

`:tiny` is the same system at a size for tests.
"""

from ml_collections import config_dict

from looped_lm.configuration import sibling


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is "" or "tiny"."""
  config = sibling(__file__, "looped_gpt_bert", arguments)
  if arguments == "tiny":
    return config
  config.data.paths = ("corpus:quickstart",)
  config.data.packing = "documents"
  config.tokenizer.vocab_size = 4096
  config.model.embed_dim = 160
  config.model.core_layers = 1
  config.model.num_loops = 4
  config.model.depth.mean_loops = 4.0
  config.model.depth.max_loops = 12
  config.model.compute_dtype = "float32"
  config.model.block.num_heads = 5
  config.model.block.mlp_dim = 448
  config.model.block.position_lookup = "gather"  # The faster one on a CPU.
  config.model.block.attention_dropout_rate = 0.0
  config.model.block.hidden_dropout_rate = 0.0
  config.model.embed.dropout_rate = 0.0
  config.model.head.dropout_rate = 0.0
  config.optim.learning_rate = 0.01
  config.optim.decay_fraction = 1.0
  config.train.total_epochs = 0.0
  config.train.total_steps = 400
  config.train.batch_size = 8
  config.train.ema_decay = 0.0
  config.train.eval_every_steps = 200
  config.train.save_every_steps = 200
  config.evals.batch_size = 8
  config.evals.num_batches = 16
  # A run of twice the loops costs twice.
  config.evals.loop_diagnostics = {"num_batches": 4, "modes": ("clm",)}
  return config
