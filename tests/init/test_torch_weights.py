"""Starting from a folder of weights: published GPT-BERT families, and what does not fit."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import tensor_files
from looped_lm.errors import UserError
from looped_lm.init import torch_weights
from looped_lm.models import looped
from looped_lm.nn.positions import bucket_table
from looped_lm.types import Inputs

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "gpt_bert_dense.npz"
WORDS = "embedding.word_embedding.weight"


@pytest.fixture(scope="module")
def golden():
  with np.load(GOLDEN) as file:
    tensors = {name: file[name] for name in file.files}
  config = json.loads(str(tensors["config"]))
  return config, tensors


def published(golden, family):
  """The golden model as a folder of the family would hold it: config and state dict."""
  config, tensors = golden
  names = "hidden_size intermediate_size num_attention_heads num_hidden_layers vocab_size"
  names += " max_position_embeddings position_bucket_size layer_norm_eps hidden_dropout_prob"
  stored = {name: config[name] for name in (names + " attention_probs_dropout_prob").split()}
  state = {n.removeprefix("param/"): t for n, t in tensors.items() if n.startswith("param/")}
  state = {name: np.asarray(tensor, np.float32) for name, tensor in state.items()}
  state["classifier.nonlinearity.5.weight"] = state[WORDS]
  M, K = config["max_position_embeddings"], config["position_bucket_size"]
  if family != "F2":
    for layer in range(config["num_hidden_layers"]):
      table = bucket_table(M, num_buckets=K, max_distance=M).astype(np.int64)
      state[f"transformer.attention_layers.{layer}.position_indices"] = table
  if family == "F2":
    state = {name.replace("transformer.", ""): tensor for name, tensor in state.items()}
    state = {
      name if name.startswith("classifier.") else f"model.{name}": tensor
      for name, tensor in state.items()
    }
    state = {name.replace("classifier.", "lm_head."): tensor for name, tensor in state.items()}
  if family == "F3":
    state = {f"model.{name}": tensor for name, tensor in state.items()}
    stored["model_type"] = "gpt_bert"
  return stored, state


def write(folder, config, state):
  folder.mkdir(exist_ok=True)
  (folder / "config.json").write_text(json.dumps(config))
  tensor_files.write_safetensors(folder / "model.safetensors", state)
  return str(folder)


def load(path, config, *, settings=None, tokenizer=None, **changes):
  settings = settings or torch_weights.model_settings(config)
  model = looped.build(settings, vocab_size=config["vocab_size"])
  init = torch_weights.Init(path=path, **changes)
  loaded = init.load(model, settings=settings, tokenizer=tokenizer)
  return model, init.params(model, jax.random.key(0), loaded)


@pytest.mark.parametrize("family", ["F1", "F2", "F3"])
def test_a_published_family_gives_the_reference_logits(golden, tmp_path, family):
  config, state = published(golden, family)
  model, params = load(write(tmp_path / "x", config, state), config)
  tensors = golden[1]
  rows, length = tensors["ids"].shape
  causal = np.arange(rows) >= golden[0]["num_masked_rows"]
  allowed = tensors["allowed"]
  linked = allowed | allowed.swapaxes(1, 2)
  first = linked.argmax(-1) + 1
  inputs = Inputs(
    tokens_BT=jnp.asarray(tensors["ids"], jnp.int32),
    order_BT=jnp.where(causal[:, None], jnp.arange(length)[None], 0),
    segments_BT=jnp.asarray(np.where(linked.any(-1), first, 0), jnp.int32),
    row_B=jnp.arange(rows),
  )

  @jax.jit
  def logits(params):
    hidden = model.encode(params, inputs).hidden_BTD
    return model.readout(params, hidden, inputs.row_B)

  valid = tensors["valid_query"]
  np.testing.assert_allclose(np.asarray(logits(params))[valid], tensors["logits"][valid], atol=1e-4)


def test_every_tensor_that_does_not_fit_is_named_as_the_file_names_it(golden, tmp_path):
  config, state = published(golden, "F1")
  settings = torch_weights.model_settings(config)
  short = state | {"transformer.attention_layers.0.in_proj_qk.weight": np.zeros((4, 6), np.float32)}
  short["transformer.dwa_modules.alphas.2"] = np.zeros(9, np.float32)
  path = write(tmp_path / "x", config, short)
  D = config["hidden_size"]
  with pytest.raises(UserError) as error:
    load(path, config)
  assert str(error.value) == (
    "The weights do not fit the model: of another shape "
    f"transformer.attention_layers.0.in_proj_qk.weight [4, 6] instead of [{2 * D}, {D}], "
    "transformer.dwa_modules.alphas.2 [9] instead of [4]."
  )
  del short["embedding.relative_embedding"]
  short["stray"] = np.zeros(1, np.float32)
  path = write(tmp_path / "x", config, short)
  with pytest.raises(UserError, match=r"missing \['embedding.relative_embedding'\].*\['stray'\]"):
    load(path, config, settings=settings)


@pytest.mark.parametrize(
  ("name", "value", "message"),
  [
    (
      "transformer.attention_layers.1.position_indices",
      np.zeros((64, 64), np.int64),
      r"attention_layers.1.position_indices differs from the buckets.*first row \[0, 0, 0, 0\]",
    ),
    (
      "classifier.nonlinearity.5.weight",
      np.zeros((101, 48), np.float32),
      "classifier.nonlinearity.5.weight differs from embedding.word_embedding.weight",
    ),
    (
      "embedding.relative_layer_norm.bias",
      np.full(48, np.nan, np.float32),
      r"not all numbers are finite in \['embedding.relative_layer_norm.bias'\]",
    ),
  ],
)
def test_what_a_file_says_wrongly_is_refused(golden, tmp_path, name, value, message):
  config, state = published(golden, "F1")
  assert name in state
  with pytest.raises(UserError, match=message):
    load(write(tmp_path / "x", config, state | {name: value}), config)


def test_another_network_is_named_field_by_field_and_may_be_accepted(golden, tmp_path):
  config, state = published(golden, "F1")
  path = write(tmp_path / "x", config | {"layer_norm_eps": 1e-7}, state)
  settings = torch_weights.model_settings(config)
  looped_settings = settings | {"injection": {"name": "add"}, "num_loops": 3}
  with pytest.raises(UserError) as error:
    load(path, config, settings=looped_settings)
  for part in (
    "model.block.norm_eps is 1e-05 here and 1e-07 there",
    "model.injection.name is 'add' here and 'none' there",
    "--config.init.allow_other_settings=True",
  ):
    assert part in str(error.value)
  assert "num_loops" not in str(error.value)
  _, params = load(path, config, settings=looped_settings, allow_other_settings=True)
  np.testing.assert_array_equal(params["embed"]["embedding"], state[WORDS])
  with pytest.raises(UserError, match="vocabulary of 101, the run's tokenizer one of 99"):
    load(path, config | {"vocab_size": 99}, settings=settings)


@pytest.mark.parametrize(
  ("break_", "message"),
  [
    (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
    (lambda folder: (folder / "config.json").write_text("[]"), "holds no settings"),
    (lambda folder: (folder / "model.safetensors").unlink(), "has none of"),
    (
      lambda folder: (folder / "config.json").write_text('{"position_bucket_size": 8}'),
      "config.json lacks 'hidden_dropout_prob'",
    ),
    (lambda folder: (folder / "config.json").write_text('{"model_type": "x"}'), "'x'"),
  ],
)
def test_a_folder_that_cannot_be_read_gets_one_line(golden, tmp_path, break_, message):
  config, state = published(golden, "F1")
  path = write(tmp_path / "x", config, state)
  break_(tmp_path / "x")
  with pytest.raises(UserError, match=message):
    load(path, config)
  with pytest.raises(UserError, match=r"init.path='nowhere': no such folder"):
    load("nowhere", config)
  with pytest.raises(UserError, match=r"init.path='': no such folder"):
    load("", config)
