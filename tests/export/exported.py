"""Tiny models of every kind with random parameters, as exported folders, and our own logits.

Every parameter is moved from its initial value: a zero or a one at the start would hide a fault.
"""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm.configuration import sibling
from looped_lm.data import tokenizer as tokenizers
from looped_lm.export import huggingface, model_card
from looped_lm.models import looped
from looped_lm.types import Inputs

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "x.py"
CHILD = pathlib.Path(__file__).with_name("read_folder.py")
LENGTH = 20

# A model that uses what no config does.
_CORNERS = {
  "embed_dim": 32,
  "prelude_layers": 1,
  "core_layers": 2,
  "coda_layers": 1,
  "num_loops": 2,
  "exit_gate": True,
  "remat": "none",
  "compute_dtype": "float32",
  "block": {
    "name": "pre_norm",
    "num_heads": 4,
    "num_kv_heads": 2,
    "mlp_dim": 48,
    "mlp": "geglu",
    "norm": "layer",
    "norm_eps": 1e-5,
    "norm_bias": True,
    "use_bias": True,
    "num_loop_norms": 2,
    "value_layers": (0, 2),
    "weight_init": "normal",
    "weight_std": 0.1,
    "out_init_scale": 1.0,
    "rope_theta": 500.0,
  },
  "core_block": {"num_heads": 2, "num_kv_heads": 2, "mlp_dim": 40},
  "injection": {"name": "gated", "gate_norm": "concatenation", "temperature": 0.7},
  "recurrence": {
    "prelude_norm": "layer",
    "entry_norm": "layer",
    "exit_norm": "rms",
    "norm_bias": True,
    "loop_embedding": "learned",
    "step_sizes": True,
    "readout": True,
    "readout_std": 0.2,
  },
  "attention": {"name": "dense"},
  "embed": {"factor_dim": 12, "scale": 2.0, "norm": True, "positions": "learned"},
  "head": {
    "name": "linear",
    "norm": "layer",
    "norm_bias": True,
    "logit_scale": 0.5,
    "softcap": 3.0,
  },
}
_CORNERS["embed"]["max_positions"] = 24

# Name -> (config, its arguments, changes by group).
MODELS = {
  "looped_layer_diagonal": ("looped_gpt_bert", "tiny", {}),
  "looped_stack_diagonal": (
    "looped_gpt_bert",
    "tiny",
    {"core_layers": 2, "block": {"dwa_scope": "stack"}},
  ),
  "looped_layer_add": ("looped_gpt_bert_paper", "tiny", {"core_layers": 2}),
  "looped_stack_add": (
    "looped_gpt_bert_paper",
    "tiny",
    {
      "prelude_layers": 1,
      "core_layers": 2,
      "coda_layers": 1,
      "block": {"dwa_scope": "stack", "max_distance": 16},
    },
  ),
  "dense": ("gpt_bert", "tiny", {}),
  "parcae": ("parcae", "tiny", {}),
  "grt": ("grt", "tiny", {}),
  "recursive_gpt": ("recursive_gpt", "tiny", {}),
  "huginn": ("huginn", "tiny", {}),
  "universal": ("universal_transformer", "tiny", {}),
  "corners": ("looped_gpt_bert", "tiny", _CORNERS),
  **{
    name: ("looped_gpt_bert_injections", f"{name},tiny", {})
    for name in ("none", "add_norm", "diagonal_zoh", "linear", "gated", "hyper_connections")
  },
}
MODELS["hyper_connections"][2]["injection"] = {"num_lanes": 3, "num_loops": 2}


def train_tokenizer(*, add_prefix_space=True):
  words = ["the", "cat", "dog", "king", "sat", "saw", "ran", "on", "in", "to", "mat", "red", "old"]
  texts = [" ".join(words[i % 7 : i % 7 + 8]) + f" {i}." for i in range(60)]
  return tokenizers.train(texts, vocab_size=290, min_frequency=1, add_prefix_space=add_prefix_space)


def config_of(name):
  file, arguments, changes = MODELS[name]
  config = sibling(str(CONFIGS), file, arguments).to_dict()
  for field, value in changes.items():
    old = config["model"].get(field)
    merge = isinstance(value, dict) and "name" not in value and isinstance(old, dict)
    config["model"][field] = old | value if merge and changes is not _CORNERS else value
  if changes is _CORNERS:
    config["model"] = _CORNERS
  return config


def random_params(model, seed=0):
  """Noise, around 1 where a model without changes would have ones."""
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  rng = np.random.default_rng(seed)

  def leaf(path, shape):
    array = 0.2 * rng.standard_normal(shape.shape, np.float32)
    if path[-1].key in ("scale", "step_size", "lane_read", "lane_write"):
      array += 1.0
    if path[-1].key == "alpha":
      array[-1] += 1.0
    return array

  return jax.tree_util.tree_map_with_path(leaf, shapes)


class Exported:
  """A model, its parameters and its folder."""

  def __init__(self, name, folder, tokenizer, **flags):
    self.config = config_of(name)
    self.settings = self.config["model"]
    self.model = looped.build(self.settings, vocab_size=tokenizer.vocab_size)
    self.params = random_params(self.model)
    self.tokenizer = tokenizer
    self.loops = self.settings["num_loops"]
    self._run = jax.jit(self._both_depths, static_argnums=2)
    self.folder = huggingface.export(
      str(folder),
      self.params,
      model=self.settings,
      tokenizer=tokenizer,
      causal=flags.pop("causal", False),
      seq_len=32,
      facts=facts(self.config, **flags),
    )

  def _both_depths(self, params, inputs, deeper):
    output = self.model.encode(params, inputs, num_loops=deeper, keep_states=True)
    state = jax.tree.map(lambda x: x[self.loops - 1], output.states_RBTD)
    hidden = self.model.finish(params, state, inputs)
    return [self.model.readout(params, x, inputs.row_B) for x in (hidden, output.hidden_BTD)]

  def logits(self, ids, *, lengths, causal, deeper):
    """Of rows that end early; at the model's loops, and at more."""
    ids = jnp.asarray(ids, jnp.int32)
    index = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    inputs = Inputs(
      tokens_BT=ids,
      order_BT=jnp.where(jnp.asarray(causal)[:, None], index, 0),
      segments_BT=(index < jnp.asarray(lengths)[:, None]).astype(jnp.int32),
      row_B=jnp.arange(ids.shape[0]),
    )
    # Float64 where it is switched on.
    params = jax.tree.map(lambda x: x.astype(jnp.zeros(()).dtype), self.params)
    return [np.asarray(x) for x in self._run(params, inputs, deeper)]


def facts(config, **changes):
  known = {
    "name": "a-model",
    "license": "mit",
    "weights": "raw",
    "step": 20,
    "words_seen": 1234,
    "tokens_seen": 2000,
    "epochs_seen": 0.5,
    "figures": {"eval/clm/loss_nats": 4.5},
    "config": config,
  }
  return model_card.Facts(**known | changes)


def read_with_torch(jobs, folder):
  """Runs the jobs of `read_folder.py` in a fresh process."""
  (folder / "jobs.json").write_text(json.dumps(jobs))
  done = subprocess.run(
    [sys.executable, str(CHILD), str(folder / "jobs.json"), str(folder / "result.npz")],
    env={**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  return dict(np.load(folder / "result.npz"))
