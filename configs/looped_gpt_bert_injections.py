"""Looped GPT-BERT with every injection there is: the same model but for how e enters the loop.

Shows: that a looped system is compared by changing one line.

Command: python -m looped_lm.main --config=configs/looped_gpt_bert_injections.py:gated \
  --workdir=runs/gated --config.data.paths=babylm_10M
Arguments, separated by a comma: `none` (the default), `add`, `add_norm`, `diagonal`,
`diagonal_zoh`, `linear`, `gated`, `hyper_connections`; `tiny` for tests.
Hardware and time: as looped_gpt_bert.py. Result to expect: not measured yet.
"""

import math

from ml_collections import config_dict

from looped_lm.configuration import chosen, sibling

INJECTIONS = {
  "none": {"name": "none"},
  "add": {"name": "add"},
  "add_norm": {"name": "add", "exit_norm": "rms"},
  "diagonal": {"name": "diagonal"},
  "diagonal_zoh": {"name": "diagonal_zoh"},
  "linear": {"name": "linear", "kernel_std": math.sqrt(2 / (5 * 384))},
  "gated": {"name": "gated", "noise_std": 0.1, "gate_noise_std": 0.1},
  "hyper_connections": {"name": "hyper_connections", "num_lanes": 2, "num_loops": 12},
}


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is an injection, "tiny", or both."""
  injection, is_tiny = chosen(arguments, file=__file__, sizes=INJECTIONS)
  config = sibling(__file__, "looped_gpt_bert", "tiny" if is_tiny else "")
  config.model.injection = config_dict.ConfigDict(INJECTIONS[injection])
  return config
