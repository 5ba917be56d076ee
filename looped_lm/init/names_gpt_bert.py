"""The names of the public GPT-BERT implementation, and its config.

Three families of published models have the same tensors under slightly different names: those of
2024 as the implementation has them; the BabyLM baselines of 2025 with `model.` in front,
without `transformer.`, and `lm_head` for `classifier`; the multilingual ones of 2026 with `model.`
in front.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from looped_lm.errors import UserError
from looped_lm.init.named_tensors import Reader, Tensors
from looped_lm.nn.positions import bucket_table
from looped_lm.types import Params

_WORDS = "embedding.word_embedding.weight"
_TIED = "classifier.nonlinearity.5.weight"
_POSITIONS = ".position_indices"


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
  """The `model` group that describes the same network."""
  loops = config.get("loops", 0)
  hidden_dropout = config["hidden_dropout_prob"]
  eps = config["layer_norm_eps"]
  return {
    "embed_dim": config["hidden_size"],
    "prelude_layers": 0,
    "core_layers": config["num_hidden_layers"],
    "coda_layers": 0,
    "num_loops": max(1, loops),
    "remat": "none",
    "compute_dtype": "float32",
    "block": {
      "name": "gpt_bert",
      "num_heads": config["num_attention_heads"],
      "mlp_dim": config["intermediate_size"],
      "num_buckets": config["position_bucket_size"],
      "max_distance": config["max_position_embeddings"],
      "attention_dropout_rate": config["attention_probs_dropout_prob"],
      "hidden_dropout_rate": hidden_dropout,
      "norm_eps": eps,
      "dwa_scope": config.get("dwa_scope", "stack"),
      "position_lookup": "one_hot",
    },
    "injection": {"name": "add" if loops else "none"},
    "attention": {"name": "dense"},
    "embed": {"norm": True, "norm_eps": eps, "dropout_rate": hidden_dropout},
    "head": {"name": "transform", "norm_eps": eps, "dropout_rate": hidden_dropout},
  }


def params(tensors: Tensors, config: Mapping[str, Any]) -> Params:
  """Our parameters from the reference's.

  Raises:
    UserError: A tensor is missing or left over.
  """
  source = Reader({_bare(name): tensor for name, tensor in tensors.items()})

  def layer(index: int) -> dict[str, Any]:
    attention = f"transformer.attention_layers.{index}"
    mlp = f"transformer.mlp_layers.{index}.mlp"
    alphas = "transformer.dwa_modules.alphas"
    source.ignore(attention + _POSITIONS)
    return {
      "qk": source.linear(f"{attention}.in_proj_qk", bias=True),
      "vg": source.linear(f"{attention}.in_proj_vg", bias=True),
      "out": source.linear(f"{attention}.out_proj", bias=True),
      "mlp": {
        "up": source.linear(f"{mlp}.1", bias=False),
        "down": source.linear(f"{mlp}.4", bias=False),
      },
      "mix_attention": {"alpha": source.take(f"{alphas}.{2 * index}")},
      "mix_mlp": {"alpha": source.take(f"{alphas}.{2 * index + 1}")},
    }

  source.ignore(_TIED)  # The word table again.
  tree = {
    "embed": {"embedding": source.take(_WORDS)},
    "shared": {
      "positions": {
        "embedding": source.take("embedding.relative_embedding"),
        "norm": {
          "scale": source.take("embedding.relative_layer_norm.weight"),
          "bias": source.take("embedding.relative_layer_norm.bias"),
        },
      }
    },
    "core": {f"layers_{index}": layer(index) for index in range(config["num_hidden_layers"])},
    "head": {
      "transform": source.linear("classifier.nonlinearity.1", bias=True),
      "bias": source.take("classifier.nonlinearity.5.bias"),
    },
  }
  source.finish()
  return tree


def verify(tensors: Tensors, config: Mapping[str, Any]) -> None:
  """Checks what a file of weights says twice: the tied table, and the table of distances.

  Raises:
    UserError: The read-out is not the word table, or distances have other buckets than here.
  """
  bare = {_bare(name): tensor for name, tensor in tensors.items()}
  if _TIED in bare and _WORDS in bare and not np.array_equal(bare[_TIED], bare[_WORDS]):
    raise UserError(
      f"{_TIED} differs from {_WORDS}: the read-out of a GPT-BERT is its word table, so one of "
      "them was not stored as it was trained."
    )
  for name, tensor in bare.items():
    if name.endswith(_POSITIONS):
      ours = bucket_table(
        tensor.shape[0],
        num_buckets=config["position_bucket_size"],
        max_distance=config["max_position_embeddings"],
      )
      if not np.array_equal(tensor, ours):
        raise UserError(
          f"{name} differs from the buckets of position_bucket_size="
          f"{config['position_bucket_size']}, max_position_embeddings="
          f"{config['max_position_embeddings']}: first row {tensor[0, :4].tolist()} ... instead of "
          f"{ours[0, :4].tolist()} ..."
        )


def _bare(name: str) -> str:
  """A tensor's name as the implementation itself has it."""
  name = name.removeprefix("model.")
  if name.startswith(("attention_layers.", "mlp_layers.", "dwa_modules.")):
    name = "transformer." + name
  return "classifier." + name.removeprefix("lm_head.") if name.startswith("lm_head.") else name
