"""From the names of the public PyTorch implementations to our parameters.

Tensors come as numpy arrays in torch layout (a Linear weight is [out, in]); the same mapping serves
weights, their gradients and the parameters after an optimiser step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from looped_lm.errors import UserError
from looped_lm.types import Params

Tensors = Mapping[str, np.ndarray]


def family(config: Mapping[str, Any]) -> str:
  """Tells which reference implementation a config describes.

  Raises:
    UserError: None whose import is built.
  """
  if "position_bucket_size" in config:
    return "gpt_bert"
  named = config.get("injection_type") or config.get("model_type") or sorted(config)
  raise UserError(
    f"No import is built for the model family described by {named!r}; "
    f"looped_lm/init/torch_weights.py knows {sorted(_FAMILIES)}."
  )


def model_settings(config: Mapping[str, Any]) -> dict[str, Any]:
  """The `model` group of a config that describes the same network as a reference's config."""
  return _FAMILIES[family(config)][0](config)


def params(tensors: Tensors, config: Mapping[str, Any]) -> Params:
  """Our parameter tree from tensors under reference names.

  Raises:
    UserError: A tensor is missing or left over; all are named.
  """
  return _FAMILIES[family(config)][1](tensors, config)


def _gpt_bert_settings(config: Mapping[str, Any]) -> dict[str, Any]:
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


def _gpt_bert_params(tensors: Tensors, config: Mapping[str, Any]) -> Params:
  source = _Reader(tensors)

  def linear(name: str, *, bias: bool) -> dict[str, Any]:
    weights = {"kernel": source.take(f"{name}.weight").T}
    return weights | {"bias": source.take(f"{name}.bias")} if bias else weights

  def layer(index: int) -> dict[str, Any]:
    attention = f"transformer.attention_layers.{index}"
    mlp = f"transformer.mlp_layers.{index}.mlp"
    alphas = "transformer.dwa_modules.alphas"
    source.ignore(f"{attention}.position_indices")
    return {
      "qk": linear(f"{attention}.in_proj_qk", bias=True),
      "vg": linear(f"{attention}.in_proj_vg", bias=True),
      "out": linear(f"{attention}.out_proj", bias=True),
      "mlp": {"up": linear(f"{mlp}.1", bias=False), "down": linear(f"{mlp}.4", bias=False)},
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
      "transform": linear("classifier.nonlinearity.1", bias=True),
      "bias": source.take("classifier.nonlinearity.5.bias"),
    },
  }
  source.finish()
  return tree


_FAMILIES: dict[str, tuple[Callable[..., dict[str, Any]], Callable[..., Params]]] = {
  "gpt_bert": (_gpt_bert_settings, _gpt_bert_params),
}


class _Reader:
  """Hands tensors out by name and knows afterwards what was missing and what was left."""

  def __init__(self, tensors: Tensors):
    self._tensors = tensors
    self._left = set(tensors)
    self._missing: list[str] = []

  def take(self, name: str) -> Any:
    if name not in self._tensors:
      self._missing.append(name)
      return jnp.zeros(())
    self._left.discard(name)
    return jnp.asarray(self._tensors[name])

  def ignore(self, name: str) -> None:
    self._left.discard(name)

  def finish(self) -> None:
    if self._missing or self._left:
      raise UserError(
        f"The weights do not fit: missing {sorted(self._missing)}, unexpected {sorted(self._left)}."
      )
