"""Dense GPT-BERT: 12 layers, no loop, DWA over the whole stack: 29,892,164 parameters.

Shows: the baseline that Looped GPT-BERT is measured against, same data, objective and optimiser.

Command: python -m looped_lm.main --config=configs/gpt_bert.py --workdir=runs/dense \
  --config.data.paths=babylm_10M
Hardware: one accelerator. Time: not measured here. Result to expect (Looped GPT-BERT's Table 8, one
seed): BLiMP 70.54 at MNTP:CLM 1:3.

`:tiny` is the same system at a size for tests.
"""

from ml_collections import config_dict

from looped_lm.configuration import sibling


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is "" or "tiny"."""
  config = sibling(__file__, "looped_gpt_bert", arguments)
  config.model.injection.name = "none"
  config.model.core_layers = 2 if arguments == "tiny" else 12
  config.model.num_loops = 1
  config.model.depth = {"name": "fixed", "grad_loops": 0}
  config.model.block.dwa_scope = "stack"
  return config
