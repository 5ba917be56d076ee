"""The names of the public GPT-BERT implementation, and its config."""

from collections.abc import Mapping
from typing import Any

from looped_lm.init.named_tensors import Reader, Tensors
from looped_lm.types import Params


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
  source = Reader(tensors)

  def layer(index: int) -> dict[str, Any]:
    attention = f"transformer.attention_layers.{index}"
    mlp = f"transformer.mlp_layers.{index}.mlp"
    alphas = "transformer.dwa_modules.alphas"
    source.ignore(f"{attention}.position_indices")
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

  source.ignore("classifier.nonlinearity.5.weight")  # The word table again.
  tree = {
    "embed": {"embedding": source.take("embedding.word_embedding.weight")},
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
