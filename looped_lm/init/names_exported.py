"""Folders that our own export wrote: the table of names, and the config.json."""

from collections.abc import Mapping
from typing import Any

import jax

from looped_lm.models.architecture import Architecture

_GROUPS = (
  "vocab_size",
  "prelude_layers",
  "core_layers",
  "coda_layers",
  "num_loops",
  "exit_gate",
  "block",
  "core_block",
  "injection",
  "recurrence",
  "attention",
  "embed",
  "head",
)


def described(config: Mapping[str, Any]) -> Architecture:
  """The architecture that a config.json tells."""
  return {"embed_dim": config["hidden_size"]} | {name: config[name] for name in _GROUPS}


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
  """The `model` group of a config that describes the network of a config.json.

  A folder does not say how its weights once began, and settings must be whole: what stands in for
  that decides nothing.
  """
  groups = described(config)
  block, injection, recurrence = groups["block"], groups["injection"], groups["recurrence"]
  if block["name"] == "gpt_bert":
    # The faster one; the numbers are the same.
    begins = {"position_lookup": "gather" if jax.default_backend() == "cpu" else "one_hot"}
  else:
    begins = {"weight_init": "normal", "weight_std": 1.0, "out_init_scale": 1.0}
  noise = {"state_std": 1.0} if injection.get("state_init") == "truncated_normal" else {}
  if injection["name"] == "linear":
    noise["kernel_std"] = 1.0
  own = {
    "remat": "none",
    "compute_dtype": "float32",
    "block": block | begins,
    "injection": injection | noise,
    "recurrence": recurrence | ({"readout_std": 1.0} if recurrence.get("readout") else {}),
  }
  del groups["vocab_size"]
  return groups | own
