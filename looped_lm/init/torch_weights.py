"""Weights of PyTorch programs: published GPT-BERT and Parcae models, and our own exports.

The config must describe the same network as the folder: what differs is named, and so is every
tensor that is missing, left over or of another shape. Tensors come in torch layout (a Linear weight
is [out, in]); the mappings serve weights, their gradients and the parameters after a step alike.
"""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
import types
from typing import Any

import jax
import numpy as np

from looped_lm import tensor_files
from looped_lm.errors import UserError
from looped_lm.init import names_exported, names_gpt_bert, names_parcae
from looped_lm.init.named_tensors import Tensors
from looped_lm.models import tensor_names
from looped_lm.models.architecture import Architecture, architecture, differences
from looped_lm.types import Model, Params

_OURS = "looped_lm"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
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


def is_exported(folder: str) -> bool:
  """Whether a folder is one that our own export wrote."""
  path = pathlib.Path(folder).expanduser()
  return (path / "config.json").is_file() and read_config(path).get("model_type") == _OURS


def params(tensors: Tensors, config: Mapping[str, Any]) -> Params:
  """Our parameter tree from tensors under reference names.

  Raises:
    UserError: A tensor is missing or left over; all are named.
  """
  return _FAMILIES[family(config)].params(tensors, config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Init:
  """Starts from a folder with config.json and weights (.safetensors, or .bin of torch.save).

  Attributes:
    path: The folder, or a file of weights in it.
    allow_other_settings: Whether the config may describe another network than the folder, as long
      as all tensors fit: e.g. another injection, or other norms.
  """

  path: str = ""
  allow_other_settings: bool = False

  def load(self, model: Model, *, settings: Mapping[str, Any], tokenizer: Any) -> Params:
    """Reads the weights, on the host.

    Args:
      model: What they shall fit.
      settings: The `model` group of the config.
      tokenizer: The run's, a `data.tokenizer.Tokenizer`.

    Raises:
      UserError: There is no such folder, it describes another network or vocabulary, a tensor does
        not fit or is not finite, or a file holds more than tensors.
    """
    folder, file = _place(self.path)
    config = read_config(folder)
    self._compare(architecture(settings, vocab_size=model.vocab_size), _described(config), folder)
    _compare_vocabulary(folder, tokenizer)
    tensors = _read_tensors(folder, file)
    like = jax.eval_shape(model.init, jax.random.key(0))
    if config.get("model_type") == _OURS:
      tree = tensor_names.to_params(tensors, like)
    else:
      _FAMILIES[family(config)].verify(tensors, config)
      tree = params(tensors, config)
      _check_shapes(tree, like, tensors, config)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), tree)

  def params(self, model: Model, key: jax.Array, loaded: Params) -> Params:
    """The parameters before the first step: those that were read."""
    return loaded

  def _compare(self, ours: Architecture, theirs: Architecture, folder: pathlib.Path) -> None:
    found = differences(ours, theirs)
    vocab_size = found.pop("vocab_size", None)
    if vocab_size:
      raise UserError(
        f"{folder} has a vocabulary of {vocab_size[1]}, the run's tokenizer one of "
        f"{vocab_size[0]}; use the folder's: --config.tokenizer.path={folder}."
      )
    if found and not self.allow_other_settings:
      listed = "; ".join(
        f"model.{name} is {a!r} here and {b!r} there" for name, (a, b) in found.items()
      )
      raise UserError(
        f"{folder} holds another network: {listed}. Set these fields as they are there, or accept "
        "the difference with --config.init.allow_other_settings=True."
      )


def _place(path: str) -> tuple[pathlib.Path, str]:
  """The folder, and the name of the file of weights if one was given."""
  place = pathlib.Path(path).expanduser()
  if not path or not place.exists():
    raise UserError(f"init.path={path!r}: no such folder; give one with config.json and weights.")
  return (place, "") if place.is_dir() else (place.parent, place.name)


def read_config(folder: pathlib.Path) -> dict[str, Any]:
  """A folder's config.json.

  Raises:
    UserError: There is none, or it holds no settings.
  """
  file = folder / "config.json"
  if not file.is_file():
    raise UserError(f"{folder} has no config.json, so nothing tells what its weights are.")
  try:
    config = json.loads(file.read_text("utf-8"))
  except ValueError as error:
    raise UserError(f"{file} is not JSON ({error}).") from None
  if not isinstance(config, dict):
    raise UserError(f"{file} holds no settings.")
  return config


def _described(config: Mapping[str, Any]) -> Architecture:
  """The architecture a folder's config tells."""
  try:
    if config.get("model_type") == _OURS:
      return names_exported.described(config)
    return architecture(model_settings(config), vocab_size=vocab_size(config))
  except KeyError as error:
    raise UserError(f"config.json lacks {error.args[0]!r}.") from None


def _compare_vocabulary(folder: pathlib.Path, tokenizer: Any) -> None:
  """The same ids must stand for the same text."""
  if not (folder / "tokenizer.json").is_file():
    return
  if type(tokenizer).load(str(folder)).vocabulary() != tokenizer.vocabulary():
    raise UserError(
      f"{folder} has another vocabulary than the run's tokenizer: its ids stand for other text. "
      f"Use the folder's: --config.tokenizer.path={folder}."
    )


def _read_tensors(folder: pathlib.Path, file: str) -> Tensors:
  """All tensors of the folder, which may be spread over several files."""
  for name in [file] if file else _WEIGHTS:
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
      parts = [name]
    elif index.is_file():
      parts = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
      continue
    tensors: dict[str, np.ndarray] = {}
    for part in parts:
      tensors |= tensor_files.read(folder / part)
    bad = [n for n, t in tensors.items() if not np.isfinite(t.astype(np.float32)).all()]
    if bad:
      raise UserError(f"{folder}: not all numbers are finite in {sorted(bad)[:8]}.")
    return tensors
  raise UserError(f"{folder} has none of {list(_WEIGHTS)}; name the file: --config.init.path=FILE.")


def _check_shapes(tree: Params, like: Params, tensors: Tensors, config: Mapping[str, Any]) -> None:
  """Raises a UserError that names every tensor whose shape does not fit."""
  if jax.tree.structure(tree) != jax.tree.structure(like):
    ours, theirs = ({e.name for e in tensor_names.table(t)} for t in (like, tree))
    tensor_names.check(missing=ours - theirs, unexpected=theirs - ours, shapes={})
  # Tensors that hold nothing but their own number tell which of them came where.
  names = list(tensors)
  numbered = params(
    {n: np.full(tensors[n].shape, i, np.float32) for i, n in enumerate(names)}, config
  )
  wrong = {}
  entries = tensor_names.table(like)
  for entry, leaf, number in zip(entries, *map(jax.tree.leaves, (tree, numbered)), strict=True):
    found = leaf.shape[::-1] if entry.is_transposed else leaf.shape
    if found != entry.shape:
      wrong[names[int(np.ravel(number)[0])]] = (found, entry.shape)
  tensor_names.check(missing=(), unexpected=(), shapes=wrong)
