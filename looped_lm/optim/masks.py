"""Which parameters are decayed, by the last part of their path."""

import jax

from looped_lm.types import Params

# Biases, norm scales and the injection's decay and step: plain Adam, no decay, no trust ratio.
PLAIN = ("bias", "scale", "A_log", "dt_bias")


def decayed(params: Params) -> Params:
  """True for every leaf that weight decay and LAMB's trust ratio apply to.

  That is the reference's group: all matrices, embeddings, DWA scalars and the injection's B.
  """
  return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in PLAIN, params)
