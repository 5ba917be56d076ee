"""The dense twins of Parcae: the same block without a loop, 143M to 1.33B parameters.

Shows: the baseline that Parcae is measured against: same data, tokens, optimiser and layers, each
applied once. Parameters: 143,141,184 / 385,903,104 / 773,375,040 / 1,333,868,544.

Command: python -m looped_lm.main --config=configs/gpt2.py:140m --workdir=runs/gpt2 \
  --config.data.paths=fineweb_edu
Arguments, separated by a comma: `140m` (the default), `370m`, `770m`, `1_3b`; `tiny` for tests.
Hardware: as Parcae. Time: not measured here. Result to expect (Parcae's paper): validation loss
3.067 / 2.759 / 2.571 / 2.481 nats.
"""

from ml_collections import config_dict

from looped_lm.configuration import sibling


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is a size, "tiny", or both."""
  config = sibling(__file__, "parcae", arguments)
  config.model.core_layers = 3 * config.model.core_layers
  config.model.prelude_layers = 0
  config.model.coda_layers = 0
  config.model.num_loops = 1
  config.model.depth.update(name="fixed", grad_loops=0)
  config.model.injection = config_dict.ConfigDict({"name": "none"})
  config.model.recurrence = config_dict.ConfigDict({})
  return config
