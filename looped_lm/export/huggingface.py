"""A folder that Hugging Face `transformers` loads: weights, config, tokenizer, code, card.

The code in it is `export/hf/`, copied: it needs torch and transformers alone. Neither is needed to
write the folder.
"""

from collections.abc import Mapping
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import tokenizers
from tokenizers import processors

from looped_lm import tensor_files
from looped_lm.errors import UserError
from looped_lm.export import model_card
from looped_lm.models import tensor_names
from looped_lm.models.architecture import architecture
from looped_lm.types import Params

CODE = pathlib.Path(__file__).parent / "hf"
MODEL_TYPE = "looped_lm"
_CLASSES = {
  "AutoModel": "LoopedLMModel",
  "AutoModelForCausalLM": "LoopedLMForCausalLM",
  "AutoModelForMaskedLM": "LoopedLMForMaskedLM",
  "AutoModelForSequenceClassification": "LoopedLMForSequenceClassification",
}
# What the PyTorch code knows, by group.
_KNOWN = {
  "block": ("gpt_bert", "pre_norm", "sandwich"),
  "injection": (
    "none",
    "add",
    "diagonal",
    "diagonal_zoh",
    "linear",
    "gated",
    "hyper_connections",
  ),
  "attention": ("dense", "fused"),
  "head": ("linear", "transform"),
}
# Rows of this length work for all positions but learned ones.
_LEAST_POSITIONS = 512


def export(
  folder: str,
  params: Params,
  *,
  model: Mapping[str, Any],
  tokenizer: Any,
  causal: bool,
  seq_len: int,
  facts: model_card.Facts,
) -> pathlib.Path:
  """Writes the folder.

  Args:
    folder: A new one, or an earlier export, which is replaced.
    params: The weights.
    model: The `model` group of the config.
    tokenizer: The tokenizer, a `data.tokenizer.Tokenizer`.
    causal: Whether the model was trained left to right alone.
    seq_len: Tokens of a training row.
    facts: For the model card.

  Returns:
    The folder's path.

  Raises:
    UserError: The PyTorch code does not know a part of the model, the folder holds something else,
      or it cannot be written.
  """
  settings = hf_config(model, tokenizer=tokenizer, causal=causal, seq_len=seq_len)
  path = check_folder(folder)
  new = path.parent / (path.name + ".new")
  try:
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    tensors = tensor_names.to_tensors(params)
    floats = {name: np.asarray(array, np.float32) for name, array in tensors.items()}
    tensor_files.write_safetensors(new / "model.safetensors", floats)
    _write_json(new / "config.json", settings)
    ids = {name: settings[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(new / "generation_config.json", ids | {"use_cache": False})
    _write_tokenizer(new, tokenizer, settings)
    for file in sorted(CODE.glob("*.py")):
      shutil.copyfile(file, new / file.name)
    (new / "README.md").write_text(model_card.text(facts, settings, tensors))
    if path.exists():
      shutil.rmtree(path)
    new.replace(path)
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}); give another --output."
    ) from error
  return path


def check_folder(folder: str) -> pathlib.Path:
  """Gives the path to write to.

  Raises:
    UserError: It is no local folder, or it holds something that is no export.
  """
  if "://" in folder:
    raise UserError(f"--output={folder} is not on this machine; export to a local folder.")
  path = pathlib.Path(folder).expanduser().resolve()
  if path.is_dir() and any(path.iterdir()):
    config = path / "config.json"
    if not config.is_file() or f'"model_type": "{MODEL_TYPE}"' not in config.read_text():
      raise UserError(f"{path} holds something that is no export; give another --output.")
  elif path.exists() and not path.is_dir():
    raise UserError(f"{path} is a file; give another --output.")
  return path


def hf_config(
  model: Mapping[str, Any], *, tokenizer: Any, causal: bool, seq_len: int
) -> dict[str, Any]:
  """The config.json. The arguments are those of `export`.

  Raises:
    UserError: The PyTorch code does not know a part of the model.
  """
  for group, known in _KNOWN.items():
    if model[group]["name"] not in known:
      raise UserError(
        f"model.{group}.name={model[group]['name']!r} cannot be exported: the PyTorch code knows "
        f"{list(known)}. To add it, extend looped_lm/export/hf."
      )
  arch = architecture(model, vocab_size=tokenizer.vocab_size)
  learned = arch["embed"]["max_positions"]
  return {
    "architectures": [_CLASSES["AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"]],
    "auto_map": {
      "AutoConfig": "configuration_looped_lm.LoopedLMConfig",
      **{auto: f"modeling_looped_lm.{name}" for auto, name in _CLASSES.items()},
    },
    "model_type": MODEL_TYPE,
    "torch_dtype": "float32",
    "hidden_size": arch.pop("embed_dim"),
    **arch,
    "causal": causal,
    "trained_length": seq_len,
    "tie_word_embeddings": arch["head"].get("tied", True),
    "max_position_embeddings": learned or max(_LEAST_POSITIONS, seq_len),
    "bos_token_id": tokenizer.bos_id,
    "eos_token_id": tokenizer.eos_id,
    "pad_token_id": tokenizer.pad_id,
    "mask_token_id": tokenizer.mask_id,
  }


def _write_tokenizer(path: pathlib.Path, tokenizer: Any, settings: Mapping[str, Any]) -> None:
  """The fast tokenizer, and what transformers wants to know besides."""
  file = path / "tokenizer.json"
  tokenizer.save(str(file))
  core = tokenizers.Tokenizer.from_file(str(file))
  name = core.id_to_token
  bos = name(tokenizer.bos_id)
  # The model was trained on texts that start so, whatever a foreign tokenizer puts there.
  core.post_processor = processors.TemplateProcessing(
    single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.bos_id)]
  )
  core.save(str(file))
  spec = json.loads(file.read_text())
  added = {str(token.pop("id")): token for token in spec["added_tokens"]}
  specials = {
    "bos_token": bos,
    "cls_token": bos,
    "eos_token": name(tokenizer.eos_id),
    "sep_token": name(tokenizer.eos_id),
    "pad_token": name(tokenizer.pad_id),
    "mask_token": name(tokenizer.mask_id),
    "unk_token": name(tokenizer.unk_id),
  }
  learned = settings["embed"]["max_positions"]
  # Some versions set a pre-tokenizer's own switch to this one's value.
  prefix = (spec["normalizer"] or {}).get("prepend") == " "
  prefix = (spec["pre_tokenizer"] or {}).get("add_prefix_space", prefix)
  _write_json(
    path / "tokenizer_config.json",
    {
      # Both generations of transformers know this name.
      "tokenizer_class": "PreTrainedTokenizerFast",
      "added_tokens_decoder": added,
      **specials,
      "add_prefix_space": prefix,
      "clean_up_tokenization_spaces": False,
      "model_input_names": ["input_ids", "attention_mask"],
      "padding_side": "right",
      **({"model_max_length": learned} if learned else {}),
    },
  )
  tokens = {token["content"]: token for token in added.values()}
  _write_json(
    path / "special_tokens_map.json", {role: tokens[text] for role, text in specials.items()}
  )


def _write_json(path: pathlib.Path, tree: Mapping[str, Any]) -> None:
  path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
