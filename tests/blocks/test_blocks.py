"""The pre-norm and sandwich blocks: what they compute and what each position may depend on."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import visibility
from looped_lm.attention.dense import Attention
from looped_lm.errors import UserError
from looped_lm.models import looped
from looped_lm.nn.attend import SelfAttention
from looped_lm.nn.context import Context
from looped_lm.nn.mlp import ACTIVATIONS
from looped_lm.types import Inputs

pytestmark = pytest.mark.slow  # CI runs them; `make test` has the golden numbers instead.

VOCAB_SIZE = 50


@pytest.fixture(scope="session", params=["parcae", "rdm"])
def settings(request, tiny_config):
  """One model per block; core of one layer, two loops, everything that draws or turns is on."""
  model = tiny_config(request.param, "tiny")["model"]
  model |= {"prelude_layers": 1, "core_layers": 1, "coda_layers": 0, "num_loops": 2}
  model["block"]["value_layers"] = (1,)
  return model


def noisy(params, seed=1):
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  return jax.tree.unflatten(
    tree, [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
  )


def build(settings):
  model = looped.build(settings, vocab_size=VOCAB_SIZE)
  return model, noisy(jax.jit(model.init)(jax.random.key(0)))


def batch():
  """Row 0 causal, row 1 sees both ways in two pieces, row 2 causal with padding: a hybrid batch."""
  tokens = jnp.asarray(np.random.default_rng(0).integers(16, VOCAB_SIZE, (3, 8)), jnp.int32)
  order = visibility.causal(tokens).at[1].set(0)
  segments = jnp.asarray([[1] * 8, [1] * 4 + [2] * 4, [1] * 6 + [0] * 2], jnp.int32)
  return Inputs(
    tokens_BT=tokens, order_BT=order, segments_BT=segments, row_B=jnp.arange(3, dtype=jnp.int32)
  )


def test_a_hybrid_batch_sees_what_it_may(settings):
  model, params = build(settings)
  inputs = batch()
  encode = jax.jit(lambda inputs: model.encode(params, inputs).hidden_BTD)
  before = np.asarray(encode(inputs))
  assert np.isfinite(before).all()

  def moved(position):
    changed = inputs.replace(tokens_BT=inputs.tokens_BT.at[:, position].set(20))
    return np.abs(np.asarray(encode(changed)) - before).max(axis=-1) > 0

  # Causal: itself and what comes after. Bidirectional: its whole piece and nothing else.
  np.testing.assert_array_equal(moved(3)[0], np.arange(8) >= 3)
  np.testing.assert_array_equal(moved(3)[1], np.arange(8) < 4)
  np.testing.assert_array_equal(moved(6)[1], np.arange(8) >= 4)
  # Padding is seen by nobody.
  assert not moved(7)[2, :6].any()


def test_bfloat16_keeps_the_stream_and_the_logits_wide(settings):
  model = looped.build(settings | {"compute_dtype": "bfloat16"}, vocab_size=VOCAB_SIZE)
  inputs = batch()
  params = jax.eval_shape(model.init, jax.random.key(0))
  output = jax.eval_shape(lambda p: model.encode(p, inputs, keep_states=True), params)
  assert output.states_RBTD.dtype == jnp.float32
  logits = jax.eval_shape(
    lambda p: model.readout(p, jnp.zeros(output.hidden_BTD.shape), inputs.row_B), params
  )
  assert logits.dtype == jnp.float32


@pytest.mark.parametrize("layers", [(0, 2, 0), (1, 0, 1), (2, 0, 0), (0, 0, 0), (0, 1, 2)])
def test_stacks_of_any_size_build_and_run(settings, layers):
  sizes = dict(zip(("prelude_layers", "core_layers", "coda_layers"), layers, strict=True))
  model = looped.build(settings | sizes, vocab_size=VOCAB_SIZE)
  params = jax.eval_shape(model.init, jax.random.key(0))
  hidden = jax.eval_shape(lambda p: model.encode(p, batch()).hidden_BTD, params)
  assert hidden.shape == (3, 8, 32)


def attention(num_heads, num_kv_heads, **options):
  ones = jax.nn.initializers.ones
  defaults = {"positions": "rotary", "qk_norm": False, "qk_bias": False, "use_bias": False}
  return SelfAttention(
    embed_dim=8,
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    kernel_init=ones,
    out_init=ones,
    attention=Attention(),
    layer_index=0,
    rope_theta=100.0,
    dropout_rate=0.0,
    compute_dtype="float32",
    **(defaults | options),
  )


@pytest.fixture
def attended():
  rng = np.random.default_rng(0)
  u = jnp.asarray(rng.normal(size=(1, 5, 8)), jnp.float32)
  see = jnp.tril(jnp.ones((1, 5, 5), bool))
  tokens = jnp.zeros((1, 5), jnp.int32)
  context = Context(see_BTS=see, tokens_BT=tokens, shared=None, key=None, keys_B=None)
  kernels = {
    name: {"kernel": jnp.asarray(rng.normal(size=(8, 8)), jnp.float32)}
    for name in ("query", "key", "value", "out")
  }
  return u, context, kernels


def test_grouped_heads_are_full_heads_with_repeated_keys_and_values(attended):
  u, context, kernels = attended
  grouped, full = dict(kernels), dict(kernels)
  for name in ("key", "value"):
    two_heads = kernels[name]["kernel"][:, :4]
    grouped[name] = {"kernel": two_heads}
    # Query heads 0 and 1 share the first, 2 and 3 the second.
    repeated = jnp.repeat(two_heads.reshape(8, 2, 2), 2, axis=1)
    full[name] = {"kernel": repeated.reshape(8, 8)}
  ours = attention(4, 2).apply({"params": grouped}, u, None, context)
  np.testing.assert_allclose(
    ours, attention(4, 4).apply({"params": full}, u, None, context), rtol=1e-5
  )


def test_normed_queries_and_keys_do_not_care_for_their_size(attended):
  u, context, kernels = attended
  larger = kernels | {"query": {"kernel": 7.0 * kernels["query"]["kernel"]}}
  outputs = [
    attention(2, 2, qk_norm=norm).apply({"params": p}, u, None, context)
    for norm in (True, False)
    for p in (kernels, larger)
  ]
  np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
  assert np.abs(outputs[2] - outputs[3]).max() > 1e-2


def test_without_positions_the_order_of_what_is_seen_is_lost(attended):
  u, context, kernels = attended
  everything = context.replace(see_BTS=jnp.ones((1, 5, 5), bool))
  swapped = u[:, jnp.array([1, 0, 2, 3, 4])]
  for positions, same in (("none", True), ("rotary", False)):
    layer = attention(2, 2, positions=positions)
    first = layer.apply({"params": kernels}, u, None, everything)[0, 4]
    second = layer.apply({"params": kernels}, swapped, None, everything)[0, 4]
    assert np.allclose(first, second, rtol=1e-4) == same


@pytest.mark.parametrize(
  ("name", "expected"),
  [("relu2", [0.0, 2.0]), ("gelu", [-0.158655, 1.954500]), ("swiglu", [-0.268941, 1.761594])],
)
def test_activations_by_hand(name, expected):
  activate, gated = ACTIVATIONS[name]
  np.testing.assert_allclose(activate(jnp.array([-1.0, 2.0])), expected, rtol=1e-5)
  assert gated == (name == "swiglu")


def test_a_row_is_treated_by_its_own_count_of_loops(tiny_config):
  """Per-loop norms, embeddings and step sizes: a mixed batch equals each row alone."""
  model = tiny_config("recursive_gpt")["model"]
  model["recurrence"] = {"loop_embedding": "learned", "step_sizes": True, "entry_norm": "layer"}
  module = looped.assemble(model, vocab_size=VOCAB_SIZE)
  inputs = batch()
  params = noisy(jax.jit(module.init)(jax.random.key(0), inputs)["params"], seed=2)

  def once(module, loop):
    context = module._context(inputs, None)
    x = module.embedder(inputs.tokens_BT, None)
    return module.one_loop(x, None, context.in_loop(loop), module.core.invariants(context))

  run = jax.jit(lambda loop_B: module.apply({"params": params}, loop_B, method=once))
  mixed = run(jnp.array([0, 2, 1]))
  alone = [run(jnp.full(3, loop))[row] for row, loop in enumerate((0, 2, 1))]
  np.testing.assert_allclose(mixed, np.stack(alone), atol=1e-6)
  assert np.abs(mixed[1] - run(jnp.full(3, 0))[1]).max() > 1e-2
  # Loops beyond the tables use their last entry.
  np.testing.assert_array_equal(run(jnp.full(3, 2)), run(jnp.full(3, 9)))


@pytest.mark.parametrize(
  ("group", "changes", "message"),
  [
    ("block", {"num_heads": 3}, r"num_heads=3 must divide model.embed_dim=32"),
    (
      "block",
      {"num_kv_heads": 3},
      r"num_kv_heads=3 must divide num_heads=2; choose one of \[1, 2\]",
    ),
    ("block", {"mlp": "relu3"}, "mlp='relu3' is none of"),
    ("block", {"norm": "batch"}, "norm='batch' is none of"),
    ("block", {"positions": "absolute"}, "positions='absolute' is none of"),
    ("block", {"num_heads": 32, "num_kv_heads": 32}, "= 1 is odd"),
    ("block", {"weight_init": "xavier"}, "weight_init='xavier' is none of"),
    ("block", {"hidden_dropout_rate": 1.0}, r"hidden_dropout_rate=1.0 must lie in \[0, 1\)"),
    ("head", {"norm": "batch"}, "model.head.norm='batch' is none of"),
    ("head", {"softcap": -1.0}, "softcap=-1.0 must be at least 0"),
    ("head", {"factor_dim": 4}, "set model.head.tied=False"),
    ("embed", {"positions": "learned"}, "max_positions=0 must be above 0"),
    ("embed", {"table_std": 0.0}, "table_std must be above 0"),
    ("injection", {"state_std": 0.0}, "state_std=0.0 must be above 0"),
    ("injection", {"state_init": "ones"}, "state_init='ones' is none of"),
  ],
)
def test_bad_settings_get_one_clear_line(settings, group, changes, message):
  changed = copy.deepcopy(settings)
  changed[group] |= changes
  with pytest.raises(UserError, match=message) as error:
    looped.build(changed, vocab_size=VOCAB_SIZE)
  assert "\n" not in str(error.value)


def test_rows_longer_than_the_learned_positions_are_refused(tiny_config):
  settings = tiny_config("grt", "tiny")["model"]
  settings["embed"]["max_positions"] = 8
  model = looped.build(settings, vocab_size=VOCAB_SIZE)
  params = jax.eval_shape(model.init, jax.random.key(0))
  tokens = jnp.zeros((1, 9), jnp.int32)
  inputs = Inputs(tokens_BT=tokens, order_BT=tokens, segments_BT=tokens + 1, row_B=jnp.arange(1))
  with pytest.raises(UserError, match="Rows of 9 tokens"):
    jax.eval_shape(lambda p: model.encode(p, inputs), params)
