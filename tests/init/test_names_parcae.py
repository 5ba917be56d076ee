"""Every tensor of a Parcae checkpoint finds its place, for shapes that no golden file has."""

import json
import pathlib

import jax
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.init import torch_weights
from looped_lm.models import looped

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "parcae_diagonal.npz"


def config_with(**changes):
  with np.load(GOLDEN) as file:
    return json.loads(str(file["config"])) | changes


def reference_tensors(config):
  """Names and shapes as the reference's state dict has them, [outputs, inputs]."""
  V, D, F = config["padded_vocab_size"], config["n_embd"], config["intermediate_size"]
  N, K = config["num_attention_heads"], config["num_key_value_heads"]
  H = D // N
  prelude, core, coda = (
    config[f"n_layers_in_{stack}"] for stack in ("prelude", "recurrent_block", "coda")
  )
  norm = ("weight", "bias") if config["norm_class_name"] == "LayerNorm" else ("weight",)
  shapes = {"freqs_cis": (1, 9, 1, H // 2, 2), "transformer.wte.weight": (V, D)}
  shapes["lm_head.weight"] = (V, D)
  shapes["transformer.C.weight"] = (D, D)
  shapes |= {f"transformer.ln_f.{part}": (D,) for part in norm}
  if config["prelude_norm"]:
    shapes |= {f"transformer.ln_prelude.{part}": (D,) for part in norm}
  shapes |= {"transformer.adapter.A_log": (D,), "transformer.adapter.dt_bias": (D,)}
  shapes["transformer.adapter.B"] = (D, D)
  total = prelude + core + coda
  for i in range(total):
    if i % 2 == (total - 1) % 2:
      shapes[f"value_embeds.{i}.weight"] = (V, K * H)
  unrolled = prelude + core * config["mean_recurrence"]
  names = [(f"prelude.{i}", i, K) for i in range(prelude)]
  names += [(f"core_block.{i}", prelude + i, N) for i in range(core)]
  names += [(f"coda.{i}", unrolled + i, K) for i in range(coda)]
  for name, index, kv in names:
    own = {f"norm_{i}.{part}": (D,) for i in (1, 2) for part in norm}
    own |= {"attn.c_q.weight": (D, D), "attn.c_proj.weight": (D, D)}
    own |= {"attn.c_k.weight": (kv * H, D), "attn.c_v.weight": (kv * H, D)}
    width = 2 * F if config["mlp_class_name"] == "GatedMLP" else F
    own |= {"mlp.fc.weight": (width, D), "mlp.proj.weight": (D, F)}
    if index % 2 == (core * config["mean_backprop_depth"] - 1) % 2:
      own["attn.ve_gate.weight"] = (kv, 32)
    if config.get("qk_bias"):
      own["attn.qk_bias"] = (2, 1, N, H)
    shapes |= {f"transformer.{name}.{part}": shape for part, shape in own.items()}
  return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def layers(prelude, core, coda):
  return {
    "n_layers_in_prelude": prelude,
    "n_layers_in_recurrent_block": core,
    "n_layers_in_coda": coda,
  }


@pytest.mark.parametrize(
  "changes",
  [
    {},
    layers(1, 1, 1),
    layers(2, 1, 2),
    layers(3, 2, 1),
    layers(0, 3, 0),
    {"tie_embeddings": False, "prelude_norm": False, "logit_softcap": 15.0},
    {"qk_bias": True, "qk_norm": False},
    {"norm_class_name": "LayerNorm", "mlp_class_name": "GatedMLP", "nonlin_name": "SiLU"},
    # The core keeps as many key heads as query heads; no value embedding stands in it here.
    layers(1, 1, 1) | {"num_key_value_heads": 1},
  ],
  ids=str,
)
def test_every_tensor_finds_its_place(changes):
  config = config_with(**changes)
  settings = torch_weights.model_settings(config)
  model = looped.build(settings, vocab_size=torch_weights.vocab_size(config))
  expected = jax.eval_shape(model.init, jax.random.key(0))
  tensors = {f"module._orig_mod.{name}": x for name, x in reference_tensors(config).items()}
  ours = torch_weights.params(tensors, config)
  assert jax.tree.map(lambda x: x.shape, ours) == jax.tree.map(lambda x: x.shape, expected)
  assert settings["head"]["softcap"] == (config["logit_softcap"] or 0.0)


def test_a_missing_and_a_stray_tensor_are_named():
  config = config_with()
  tensors = reference_tensors(config)
  tensors["transformer.stray"] = tensors.pop("transformer.adapter.A_log")
  with pytest.raises(
    UserError, match=r"missing \['transformer.adapter.A_log'\].*transformer.stray"
  ):
    torch_weights.params(tensors, config)
