"""Folders that our own export wrote: the table of names, and the config.json."""

from collections.abc import Mapping
from typing import Any

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
