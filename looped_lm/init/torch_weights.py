"""From the names of the public PyTorch implementations to our parameters.

Tensors come as numpy arrays in torch layout (a Linear weight is [out, in]); the same mapping serves
weights, their gradients and the parameters after an optimiser step.
"""

from collections.abc import Mapping
import types
from typing import Any

from looped_lm.errors import UserError
from looped_lm.init import names_gpt_bert, names_parcae
from looped_lm.init.named_tensors import Tensors
from looped_lm.types import Params

# Name -> the module that knows it.
_FAMILIES: dict[str, types.ModuleType] = {"gpt_bert": names_gpt_bert, "parcae": names_parcae}


def family(config: Mapping[str, Any]) -> str:
  """Tells which reference implementation a config describes.

  Raises:
    UserError: None whose import is built.
  """
  if "position_bucket_size" in config:
    return "gpt_bert"
  if "injection_type" in config:
    return "parcae"
  named = config.get("model_type") or sorted(config)
  raise UserError(
    f"No import is built for the model family described by {named!r}; "
    f"looped_lm/init/torch_weights.py knows {sorted(_FAMILIES)}."
  )


def model_settings(config: Mapping[str, Any]) -> dict[str, Any]:
  """The `model` group of a config that describes the same network as a reference's config.

  Raises:
    UserError: The reference has something that we do not.
  """
  return _FAMILIES[family(config)].settings(config)


def vocab_size(config: Mapping[str, Any]) -> int:
  """Rows of the reference's token table, padding included."""
  return config.get("padded_vocab_size") or config["vocab_size"]


def params(tensors: Tensors, config: Mapping[str, Any]) -> Params:
  """Our parameter tree from tensors under reference names.

  Raises:
    UserError: A tensor is missing or left over; all are named.
  """
  return _FAMILIES[family(config)].params(tensors, config)
