"""The numbers of the reference implementations, reproduced.

Takes every file of the folder in `LOOPED_LM_GOLDEN` (default: the project's own) and is driven by
the file's `config` alone. In float64 every tensor agrees to 1e-6 (largest difference over largest
entry), or to 2e-6 where the reference itself computes in float32 (Parcae); in float32 forward and
losses agree to 1e-4.
"""

import functools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from looped_lm import visibility
from looped_lm.errors import UserError
from looped_lm.init import torch_weights
from looped_lm.models import looped
from looped_lm.nn.token_loss import token_loss
from looped_lm.optim import lamb
from looped_lm.types import Inputs, Task

FOLDER = pathlib.Path(os.environ.get("LOOPED_LM_GOLDEN", pathlib.Path(__file__).parent / "golden"))
FILES = sorted(FOLDER.glob("*.npz"))
Z_LOSS_WEIGHT = 1e-4


def config_of(path):
  with np.load(path) as file:
    return json.loads(str(file["config"]))


def files_of(family):
  return [path for path in FILES if torch_weights.family(config_of(path)) == family]


def tensors_of(path):
  with np.load(path) as file:
    return {name: file[name] for name in file.files}


def each(family, *, slow=()):
  """A parameter per file; those that cover what others of the project's cover too may be slow."""
  return [
    pytest.param(path, id=path.stem, marks=pytest.mark.nightly if path.stem in slow else ())
    for path in files_of(family)
  ]


@pytest.fixture(params=each("gpt_bert"))
def golden(request):
  return tensors_of(request.param)


@pytest.fixture(
  params=each("gpt_bert", slow=("gpt_bert_dense", "looped_gpt_bert_L5", "looped_gpt_bert_stack_L4"))
)
def golden_steps(request):
  return tensors_of(request.param)


@pytest.fixture(params=each("parcae", slow=("parcae_add", "parcae_linear")))
def parcae(request):
  return tensors_of(request.param)


def tensors_under(golden, prefix):
  return {name[len(prefix) :]: golden[name] for name in golden if name.startswith(prefix)}


def as_inputs(golden, num_masked_rows):
  """Order and segments that say what the file's `allowed` says."""
  allowed = golden["allowed"]
  rows, length = golden["ids"].shape
  linked = allowed | allowed.swapaxes(1, 2)
  segments = np.zeros((rows, length), np.int32)
  for row in range(rows):
    for position in range(length):
      peers = np.flatnonzero(linked[row, position])
      segments[row, position] = peers[0] + 1 if peers.size else 0
  causal = np.arange(rows)[:, None] >= num_masked_rows
  order = np.where(causal, np.arange(length)[None, :], 0).astype(np.int32)
  np.testing.assert_array_equal(
    visibility.visible(jnp.asarray(order), jnp.asarray(segments)), allowed
  )
  return Inputs(
    tokens_BT=jnp.asarray(golden["ids"], jnp.int32),
    order_BT=jnp.asarray(order),
    segments_BT=jnp.asarray(segments),
    row_B=jnp.arange(rows),
  )


def assert_close(name, ours, theirs, tolerance):
  ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
  assert ours.shape == theirs.shape, name
  error = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30)
  assert error <= tolerance, f"{name}: {error:.2e} > {tolerance:.0e}"


def assert_trees_close(label, ours, theirs, tolerance):
  flat = jax.tree_util.tree_leaves_with_path(theirs)
  for (path, expected), actual in zip(flat, jax.tree.leaves(ours), strict=True):
    assert_close(label + jax.tree_util.keystr(path), actual, expected, tolerance)


def pose(golden, dtype):
  """The file's network, parameters, and a function from parameters to loss and everything else."""
  config = json.loads(str(golden["config"]))
  model = looped.build(torch_weights.model_settings(config), vocab_size=config["vocab_size"])
  params = torch_weights.params(tensors_under(golden, "param/"), config)
  params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), params)
  inputs = as_inputs(golden, config["num_masked_rows"])
  labels = golden["labels"]
  task = Task(
    inputs=inputs,
    targets_BT=jnp.asarray(np.where(labels >= 0, labels, 0), jnp.int32),
    weight_BT=jnp.asarray(labels >= 0, dtype),
    mode_B=jnp.zeros(labels.shape[0], jnp.int32),
  )

  def forward(params):
    parts = token_loss(model, params, task, key=None, z_loss_weight=Z_LOSS_WEIGHT, modes=("all",))
    output = model.encode(params, inputs, keep_states=True)
    logits = model.readout(params, output.hidden_BTD, inputs.row_B)
    return parts.sum_nats / parts.weight, (output, logits, parts.metrics)

  return config, params, forward


def assert_forward(golden, config, value, figures, tolerance):
  output, logits, metrics = figures
  valid = golden["valid_query"]
  assert_close("hidden", output.hidden_BTD[valid], golden["hidden"][valid], tolerance)
  assert_close("logits", logits[valid], golden["logits"][valid], tolerance)
  if config["loops"]:
    for loop, state in enumerate(golden["hidden_per_loop"]):
      ours = output.states_RBTD[loop][valid]
      assert_close(f"hidden after loop {loop + 1}", ours, state[valid], tolerance)
  assert_close("loss", value, golden["loss"], tolerance)
  for ours, theirs in {"loss_nats": "cross_entropy", "z_loss": "z_loss"}.items():
    total, weight = metrics[f"all/{ours}"]
    assert_close(theirs, total / weight, golden[theirs], tolerance)


def test_golden_float32(golden):
  config, params, forward = pose(golden, np.float32)
  assert_forward(golden, config, *jax.jit(forward)(params), 1e-4)


def test_golden_float64(golden_steps, x64):
  """Forward, loss, gradients, and four LAMB steps with their clipping."""
  golden = golden_steps
  config, params, forward = pose(golden, np.float64)
  hparams = json.loads(str(golden["lamb/hparams"]))
  optimizer = lamb.Optimizer(
    weight_decay=hparams["weight_decay"],
    b1=hparams["b1"],
    b2=hparams["b2"],
    eps=hparams["eps"],
    clip_norm=hparams["clip_global_norm"],
  )
  rates = jnp.asarray(golden["lamb/lrs"])
  tx = optimizer.build(lambda count: rates[count])

  @jax.jit
  def step(params, opt_state):
    (value, figures), grads = jax.value_and_grad(forward, has_aux=True)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value, figures, grads

  opt_state = jax.jit(tx.init)(params)
  for number in range(len(rates)):
    params, opt_state, value, figures, grads = step(params, opt_state)
    if number == 0:
      assert_forward(golden, config, value, figures, 1e-6)
      reference = torch_weights.params(tensors_under(golden, "grad/"), config)
      assert_trees_close("grad", grads, reference, 1e-6)
    assert_close(f"lamb loss {number}", value, golden["lamb/loss"][number], 1e-6)
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(grads)))
    assert_close(f"lamb norm {number}", norm, golden["lamb/grad_norm"][number], 1e-6)
  reference = torch_weights.params(tensors_under(golden, "lamb/param/"), config)
  assert_trees_close("lamb", params, reference, 1e-6)


def test_a_family_that_is_not_built_is_named():
  with pytest.raises(UserError, match="some_family"):
    torch_weights.model_settings({"model_type": "some_family"})


def test_weights_that_do_not_fit_are_named(golden):
  config = json.loads(str(golden["config"]))
  tensors = tensors_under(golden, "param/")
  tensors["stray"] = tensors.pop("embedding.word_embedding.weight")
  with pytest.raises(
    UserError, match=r"missing \['embedding.word_embedding.weight'\].*\['stray'\]"
  ):
    torch_weights.params(tensors, config)


def parcae_parts(golden, dtype):
  """The file's settings, its parameters, and its rows: causal, one document each."""
  config = json.loads(str(golden["config"]))
  params = torch_weights.params(tensors_under(golden, "param/"), config)
  params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), params)
  tokens = jnp.asarray(golden["ids"], jnp.int32)
  inputs = Inputs(
    tokens_BT=tokens,
    order_BT=visibility.causal(tokens),
    segments_BT=jnp.ones_like(tokens),
    row_B=jnp.arange(tokens.shape[0]),
  )
  return config, torch_weights.model_settings(config), params, inputs


def assert_logits(golden, model, params, inputs, tolerance):
  """At every depth of the file."""

  @functools.partial(jax.jit, static_argnames="num_loops")
  def logits(params, num_loops):
    output = model.encode(params, inputs, num_loops=num_loops)
    return model.readout(params, output.hidden_BTD, inputs.row_B)

  for name, expected in tensors_under(golden, "logits/steps").items():
    assert_close(f"logits at {name}", logits(params, int(name)), expected, tolerance)


def test_parcae_float32(parcae):
  config, settings, params, inputs = parcae_parts(parcae, np.float32)
  model = looped.build(settings, vocab_size=torch_weights.vocab_size(config))
  assert_logits(parcae, model, params, inputs, 1e-4)


@pytest.mark.nightly
def test_parcae_float64(parcae, x64):
  """Logits at every depth, the loss and gradient of a truncated forward, the spectral norm."""
  config, settings, params, inputs = parcae_parts(parcae, np.float64)
  vocab_size = torch_weights.vocab_size(config)
  model = looped.build(settings, vocab_size=vocab_size)
  assert_logits(parcae, model, params, inputs, 2e-6)
  labels = parcae["labels"]

  free, trained = (int(parcae[f"train/num_steps_{part}_grad"]) for part in ("no", "with"))
  depth = {"name": "fixed", "grad_loops": trained}
  truncated = looped.build(
    settings | {"num_loops": free + trained, "depth": depth}, vocab_size=vocab_size
  )

  @jax.jit
  @jax.value_and_grad
  def loss(params):
    hidden = truncated.encode(params, inputs, key=jax.random.key(0)).hidden_BTD
    logits = model.readout(params, hidden, inputs.row_B)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, np.maximum(labels, 0))
    return (nats * (labels >= 0)).sum() / (labels >= 0).sum()

  value, grads = loss(params)
  assert_close("loss", value, parcae["train/loss"], 2e-6)
  reference = torch_weights.params(tensors_under(parcae, "grad/"), config)
  assert_trees_close("grad", grads, reference, 2e-6)
  if not np.isnan(parcae["spectral_norm"]):
    assert_close("spectral", model.diagnose(params)["rho_max"], parcae["spectral_norm"], 2e-6)


@pytest.mark.parametrize(
  ("layers", "value_layers"),
  # Tables by the physical index, gates by the unrolled one (6 loops, 3 of them trained).
  [((2, 2, 2), (1, 3, 5)), ((1, 1, 1), (0,)), ((2, 1, 2), (0, 2)), ((1, 2, 0), ())],
)
def test_odd_layer_counts_have_value_embeddings_where_the_reference_uses_them(layers, value_layers):
  config = config_of(files_of("parcae")[0])
  names = ("n_layers_in_prelude", "n_layers_in_recurrent_block", "n_layers_in_coda")
  config |= dict(zip(names, layers, strict=True))
  config |= {"mean_recurrence": 6, "mean_backprop_depth": 3}
  assert torch_weights.model_settings(config)["block"]["value_layers"] == value_layers


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"state_init": "unit"}, "state_init='unit'"),
    ({"mlp_class_name": "Other"}, "mlp_class_name"),
    ({"recurrent_embedding_dimension": 32}, "recurrent_embedding_dimension=32"),
    ({"bias": True}, "bias=True"),
    ({"clip_qkv": 8.0}, "clip_qkv=8"),
  ],
)
def test_what_the_import_does_not_know_is_refused(change, message):
  with pytest.raises(UserError, match=message):
    torch_weights.model_settings(config_of(files_of("parcae")[0]) | change)
