"""Which parameters are decayed, by the last part of their path."""

import jax

from looped_lm.types import Params

# Biases and scales, the stable injection's decay, per-loop step sizes, the mixing of lanes: plain
# Adam, no decay, no trust ratio.
_PLAIN_ENDS = ("bias", "scale")
_PLAIN = ("A_log", "step_size", "lane_read", "lane_write", "lane_mix", "lane_out")


def decayed(params: Params) -> Params:
  """True for every leaf that weight decay and LAMB's trust ratio apply to.

  That is the reference's group: all matrices, embeddings, DWA scalars and the injection's B.
  """
  return jax.tree_util.tree_map_with_path(lambda path, _: not plain(path[-1].key), params)


def plain(name: str) -> bool:
  """Whether a leaf of this name is a bias, a scale or another number that must not shrink."""
  return name.endswith(_PLAIN_ENDS) or name in _PLAIN
