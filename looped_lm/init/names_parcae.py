"""The names of the public Parcae implementation, its config, and its quirks.

Two rules decide in the reference who has a value embedding: the table by the physical index of a
layer, the gate by its index in the unrolled stack. They agree for even layer counts. For odd ones
some layers have a table and no gate, or a gate and no table, and use neither; here they have none,
and what the reference keeps unused is dropped.
"""

from collections.abc import Iterator, Mapping
import math
from typing import Any

import numpy as np

from looped_lm.errors import UserError
from looped_lm.init.named_tensors import Reader, Tensors
from looped_lm.types import Params

# Not in the reference's stored config: its rotary settings are an object of their own.
_ROPE_THETA = 50_000.0
_MLPS = {
  ("BaseMLP", "ReLU2"): "relu2",
  ("BaseMLP", "GELU"): "gelu",
  ("GatedMLP", "SiLU"): "swiglu",
  ("GatedMLP", "GELU"): "geglu",
}
_NORMS = {"RMSNorm": "rms", "LayerNorm": "layer"}
_PREFIXES = ("module.", "_orig_mod.", "model.")
_STACKS = {"prelude": "prelude", "core": "core_block", "coda": "coda"}


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
  """The `model` group that describes the same network.

  Raises:
    UserError: The reference has something that we do not.
  """
  embed_dim = config["n_embd"]
  eps, norm = config["norm_eps"], _known(config, "norm_class_name", _NORMS)
  std = math.sqrt(2.0 / (5.0 * embed_dim))
  heads = config["num_attention_heads"]
  core_heads = config.get("recurrent_num_attention_heads") or heads
  injection: dict[str, Any] = {"name": config["injection_type"]}
  if injection["name"] not in ("diagonal", "linear", "add"):
    raise UserError(f"injection_type={injection['name']!r} is none of diagonal, linear and add.")
  if injection["name"] == "linear":
    injection |= {"kernel_init": "truncated_normal", "kernel_std": std}
  emb_scale = config.get("emb_scale", 1.0)
  if config["state_init"] == "like-init":
    injection |= {"state_init": "truncated_normal", "state_std": std * emb_scale}
  _refuse(config)
  rope = config.get("rope_settings") or {}
  return {
    "embed_dim": embed_dim,
    "prelude_layers": config["n_layers_in_prelude"],
    "core_layers": config["n_layers_in_recurrent_block"],
    "coda_layers": config["n_layers_in_coda"],
    "num_loops": config["mean_recurrence"],
    "remat": "none",
    "compute_dtype": "float32",
    "block": {
      "name": "pre_norm",
      "num_heads": heads,
      "num_kv_heads": config.get("num_key_value_heads") or heads,
      "mlp_dim": config["intermediate_size"],
      "mlp": _mlp(config),
      "norm": norm,
      "norm_eps": eps,
      "norm_bias": norm == "layer",
      "weight_init": "orthogonal" if config.get("init_orthogonal") else "truncated_normal",
      "weight_std": std,
      "out_init_scale": 0.0 if config.get("init_strategy") == "scaled-zero" else 1.0,
      "positions": "rotary" if rope.get("use_rope", True) else "none",
      "rope_theta": float(rope.get("rope_base", _ROPE_THETA)),
      "qk_norm": bool(config.get("qk_norm")),
      "qk_bias": bool(config.get("qk_bias")),
      "value_layers": tuple(sorted(_tables(config) & _gates(config))),
    },
    # The reference gives its core as many key/value heads as query heads, whatever the rest has.
    "core_block": {
      "num_heads": core_heads,
      "num_kv_heads": core_heads,
      "mlp_dim": config.get("recurrent_intermediation_embedding_dimension")
      or config["intermediate_size"],
    },
    "injection": injection,
    "recurrence": {
      "prelude_norm": norm if config.get("prelude_norm") else "none",
      "norm_eps": eps,
      "norm_bias": norm == "layer",
      "readout": True,
      "readout_std": std,
    },
    "attention": {"name": "dense"},
    "embed": {"scale": emb_scale, "table_init": "truncated_normal", "table_std": std},
    "head": {
      "name": "linear",
      "norm": norm,
      "norm_eps": eps,
      "norm_bias": norm == "layer",
      "tied": bool(config.get("tie_embeddings")),
      "kernel_std": std,
      "logit_scale": config.get("logit_scale", 1.0),
      "softcap": config.get("logit_softcap") or 0.0,
    },
  }


def params(tensors: Tensors, config: Mapping[str, Any]) -> Params:
  """Our parameters from the reference's.

  Raises:
    UserError: A tensor is missing or left over.
  """
  source = Reader({_bare(name): tensor for name, tensor in tensors.items()})
  value_layers = _tables(config) & _gates(config)

  def norm(name: str) -> dict[str, Any]:
    weights = {"scale": source.take(f"{name}.weight")}
    layer = config["norm_class_name"] == "LayerNorm"
    return weights | {"bias": source.take(f"{name}.bias")} if layer else weights

  def layer(name: str, physical: int) -> dict[str, Any]:
    attention = {
      ours: source.linear(f"{name}.attn.{theirs}", bias=False)
      for ours, theirs in {"query": "c_q", "key": "c_k", "value": "c_v", "out": "c_proj"}.items()
    }
    if config.get("qk_bias"):
      both = source.take(f"{name}.attn.qk_bias")  # [2, 1, N, H]
      attention["query"]["bias"] = both[:1].reshape(-1)
      attention["key"]["bias"] = both[1:].reshape(-1)
    weights = {
      "norm_attention": norm(f"{name}.norm_1"),
      "norm_mlp": norm(f"{name}.norm_2"),
      "attend": attention,
      "feed": {
        "up": source.linear(f"{name}.mlp.fc", bias=False),
        "down": source.linear(f"{name}.mlp.proj", bias=False),
      },
    }
    if physical in value_layers:
      weights["value_embedding"] = {
        "embedding": source.take(f"value_embeds.{physical}.weight"),
        "gate": source.take(f"{name}.attn.ve_gate.weight").T,
      }
    else:
      source.ignore(f"value_embeds.{physical}.weight")
      source.ignore(f"{name}.attn.ve_gate.weight")
    return weights

  tree: dict[str, Any] = {
    "embed": {"embedding": source.take("transformer.wte.weight")},
    "head": {"norm": norm("transformer.ln_f")},
    "recurrence": {"readout_matrix": source.linear("transformer.C", bias=False)},
  }
  for stack, position, physical, _ in _layers(config):
    name = f"transformer.{_STACKS[stack]}.{position}"
    tree.setdefault(stack, {})[f"layers_{position}"] = layer(name, physical)
  adapter = "transformer.adapter"
  if config["injection_type"] == "diagonal":
    tree["injection"] = {n: source.take(f"{adapter}.{n}") for n in ("A_log", "dt_bias", "B")}
  elif config["injection_type"] == "linear":
    tree["injection"] = source.linear(f"{adapter}.adapter", bias=False)
  if config.get("prelude_norm"):
    tree["recurrence"]["norm_prelude"] = norm("transformer.ln_prelude")
  if config.get("tie_embeddings"):
    source.ignore("lm_head.weight")  # The token table again.
  else:
    tree["head"]["table"] = source.take("lm_head.weight")
  source.ignore("freqs_cis")  # The rotary angles.
  source.finish()
  return tree


def verify(tensors: Tensors, config: Mapping[str, Any]) -> None:
  """Checks the tied table, which a file may hold twice.

  Raises:
    UserError: The config ties the read-out to the token table, but they differ.
  """
  bare = {_bare(name): tensor for name, tensor in tensors.items()}
  head, table = bare.get("lm_head.weight"), bare.get("transformer.wte.weight")
  if not config.get("tie_embeddings") or head is None or table is None:
    return
  if not np.array_equal(head, table):
    raise UserError(
      "lm_head.weight differs from transformer.wte.weight, but tie_embeddings=True says that they "
      "are one."
    )


def _layers(config: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
  """Stack, position in it, physical index and the reference's index in the unrolled stack."""
  prelude, core = config["n_layers_in_prelude"], config["n_layers_in_recurrent_block"]
  unrolled = prelude + core * config["mean_recurrence"]
  for i in range(prelude):
    yield "prelude", i, i, i
  for i in range(core):
    yield "core", i, prelude + i, prelude + i
  for i in range(config["n_layers_in_coda"]):
    yield "coda", i, prelude + core + i, unrolled + i


def _tables(config: Mapping[str, Any]) -> set[int]:
  """Physical indices of the layers that have a table of value embeddings."""
  layers = list(_layers(config))
  return {physical for _, _, physical, _ in layers if physical % 2 == (len(layers) - 1) % 2}


def _gates(config: Mapping[str, Any]) -> set[int]:
  """Physical indices of the layers that have a gate for them."""
  last = config["n_layers_in_recurrent_block"] * config["mean_backprop_depth"] - 1
  return {physical for _, _, physical, unrolled in _layers(config) if unrolled % 2 == last % 2}


def _mlp(config: Mapping[str, Any]) -> str:
  pair = config["mlp_class_name"], config["nonlin_name"]
  if pair not in _MLPS:
    raise UserError(f"mlp_class_name, nonlin_name = {pair} is none of {sorted(_MLPS)}.")
  return _MLPS[pair]


def _known(config: Mapping[str, Any], name: str, known: Mapping[str, str]) -> str:
  if config[name] not in known:
    raise UserError(f"{name}={config[name]!r} is none of {sorted(known)}.")
  return known[config[name]]


def _refuse(config: Mapping[str, Any]) -> None:
  """Raises for what the reference can do and we cannot."""
  if config.get("recurrent_embedding_dimension", config["n_embd"]) != config["n_embd"]:
    raise UserError(
      f"recurrent_embedding_dimension={config['recurrent_embedding_dimension']} differs from "
      f"n_embd={config['n_embd']}; the recurrent state has the width of the embedding here."
    )
  if config["state_init"] not in ("zero", "like-init"):
    raise UserError(f"state_init={config['state_init']!r} is none of ['like-init', 'zero'].")
  if config.get("bias"):
    raise UserError("bias=True: the injection and the read-out matrix C have no biases here.")
  if config.get("clip_qkv") is not None:
    raise UserError(f"clip_qkv={config['clip_qkv']} is not built.")
  if config["block_class_name"] != "TransformerPreNormBlock":
    raise UserError(f"block_class_name={config['block_class_name']!r} is not built.")


def _bare(name: str) -> str:
  """A tensor's name without what wrappers put in front of it."""
  while name.startswith(_PREFIXES):
    name = name[name.index(".") + 1 :]
  return name
