"""What decides a model's numbers: its settings, complete, without those of training alone.

Two models with equal architectures and equal parameters give equal logits. Exports carry it, and
imports compare by it.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from looped_lm.models import looped

Architecture = dict[str, Any]
# Of initial values, precision and speed: without a say in what the parameters compute.
_TRAINING = {
  *("gate_bias", "gate_noise", "gate_noise_std", "noise_std", "state_std"),
  *("kernel_init", "readout_init", "table_init", "weight_init"),
  *("kernel_std", "readout_std", "table_std", "weight_std", "out_init_scale"),
  *("compute_dtype", "position_lookup"),
}
# May differ: the length of per-loop tables, where there are any, shows in their tensors.
_FREE = ("num_loops", "recurrence.num_loops")
# Said once, for the whole model, or by the place in it.
_ELSEWHERE = {
  "attention",
  "embed_dim",
  "layer_index",
  "name",
  "parent",
  "stack_index",
  "vocab_size",
}


def architecture(settings: Mapping[str, Any], *, vocab_size: int) -> Architecture:
  """Completes the `model` group of a config with all defaults.

  Args:
    settings: The group.
    vocab_size: V.

  Returns:
    Sizes, whether there is an exit gate, and the groups block, core_block, injection, recurrence,
    attention, embed and head.

  Raises:
    UserError: As `looped.build`.
  """
  module = looped.assemble(settings, vocab_size=vocab_size)
  block, given = module.block
  attention = given["attention"]
  return {
    "vocab_size": vocab_size,
    "embed_dim": settings["embed_dim"],
    "prelude_layers": module.prelude_layers,
    "core_layers": module.core_layers,
    "coda_layers": module.coda_layers,
    "num_loops": settings["num_loops"],
    "exit_gate": module.exit_gate,
    "block": {"name": settings["block"]["name"], **_complete(block, given)},
    "core_block": _complete(block, module.core_block, defaults=False),
    "injection": {"name": settings["injection"]["name"], **_complete(*module.injection_)},
    "recurrence": _complete(looped.Recurrence, module.recurrence_),
    "attention": {"name": settings["attention"]["name"], **dataclasses.asdict(attention)},
    "embed": _complete(looped.Embed, module.embed),
    "head": {"name": settings["head"]["name"], **_complete(*module.head)},
  }


def differences(ours: Architecture, theirs: Architecture) -> dict[str, tuple[Any, Any]]:
  """Lists what differs: dotted name -> (ours, theirs). Loops and dropout may always differ."""
  flat_ours, flat_theirs = _flat(ours), _flat(theirs)
  names = [*flat_ours, *(name for name in flat_theirs if name not in flat_ours)]
  pairs = {name: (flat_ours.get(name), flat_theirs.get(name)) for name in names}
  return {
    name: pair
    for name, pair in pairs.items()
    if pair[0] != pair[1] and name not in _FREE and not name.endswith("dropout_rate")
  }


def _complete(cls: Any, values: Mapping[str, Any], *, defaults: bool = True) -> dict[str, Any]:
  """A class's settings, with its defaults or without."""
  found = {}
  for field in dataclasses.fields(cls):
    if field.name in _TRAINING | _ELSEWHERE or not (defaults or field.name in values):
      continue
    value = values.get(field.name, field.default)
    found[field.name] = list(value) if isinstance(value, tuple) else value
  return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  flat: dict[str, Any] = {}
  for key, value in tree.items():
    flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
  return flat
