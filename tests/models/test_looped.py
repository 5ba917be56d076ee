"""The skeleton: its size, its loop, and what each position may depend on."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import visibility
from looped_lm.errors import UserError
from looped_lm.models import looped
from looped_lm.types import Inputs

VOCAB_SIZE = 50


@pytest.fixture(scope="session")
def settings(tiny_config):
  """A model small enough to run op by op: one layer, three loops."""
  model = tiny_config()["model"]
  model |= {"embed_dim": 16, "core_layers": 1, "num_loops": 3, "remat": "none"}
  model["block"] |= {"mlp_dim": 24, "num_heads": 2}
  return model


@pytest.fixture(scope="session")
def inputs():
  tokens_BT = jnp.asarray(np.random.default_rng(0).integers(16, VOCAB_SIZE, (3, 10)), jnp.int32)
  segments_BT = jnp.asarray([[1] * 10, [1] * 5 + [2] * 5, [1] * 7 + [0] * 3], jnp.int32)
  return Inputs(
    tokens_BT=tokens_BT,
    order_BT=visibility.causal(tokens_BT),
    segments_BT=segments_BT,
    row_B=jnp.arange(3, dtype=jnp.int32),
  )


@pytest.fixture(scope="session")
def params(settings):
  params = jax.jit(looped.build(settings, vocab_size=VOCAB_SIZE).init)(jax.random.key(0))
  # Away from the initial values, where mixing and biases would be trivial.
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  noisy = [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
  return jax.tree.unflatten(tree, noisy)


def variant(settings, **changes):
  changed = copy.deepcopy(settings)
  for name, value in changes.items():
    if isinstance(value, dict):
      changed[name].update(value)
    else:
      changed[name] = value
  return looped.build(changed, vocab_size=VOCAB_SIZE)


def core_alone(settings, inputs):
  """(params, x) -> F(x): the core's layers read as the coda of a model that sends x through it."""
  settings = copy.deepcopy(settings) | {"coda_layers": settings["core_layers"]}
  settings["injection"] = {"name": "none"}
  model = looped.build(settings, vocab_size=VOCAB_SIZE)
  return lambda params, x: model.finish(params | {"coda": params["core"]}, x, inputs)


@pytest.mark.parametrize(
  ("name", "scope", "vocab_size", "expected"),
  [
    ("looped_gpt_bert", "layer", 8192, 12_330_004),
    ("looped_gpt_bert_paper", "layer", 8192, 12_181_780),
    ("looped_gpt_bert_paper", "stack", 8192, 12_181_804),
    ("gpt_bert", "stack", 8192, 29_892_164),
    ("gpt_bert", "stack", 16384, 33_046_084),
  ],
)
def test_parameter_counts(tiny_config, name, scope, vocab_size, expected):
  model = tiny_config(name, "")["model"]
  model["block"]["dwa_scope"] = scope
  built = looped.build(model, vocab_size=vocab_size)
  shapes = jax.eval_shape(built.init, jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(shapes)) == expected


def test_initial_weights_are_cut_normals_scaled_by_depth(tiny_config):
  model = tiny_config()["model"]
  model |= {"embed_dim": 384, "core_layers": 2}
  model["block"] |= {"num_heads": 6, "mlp_dim": 640}
  params = jax.jit(looped.build(model, vocab_size=64).init)(jax.random.key(0))
  layers = params["core"]
  assert abs(float(layers["layers_0"]["qk"]["kernel"].std()) - 0.0284) < 2e-4
  assert float(jnp.abs(layers["layers_0"]["qk"]["kernel"]).max()) <= 0.06455
  for index, scale in ((0, 0.7071), (1, 0.5)):
    assert (
      abs(float(layers[f"layers_{index}"]["mlp"]["up"]["kernel"].std()) - scale * 0.0284) < 2e-4
    )
  injection = params["injection"]
  step = jax.nn.softplus(injection["dt_bias"])
  np.testing.assert_allclose(step, 0.8047, atol=1e-4)
  np.testing.assert_allclose(jnp.exp(-step * jnp.exp(injection["A_log"])), 0.4472, atol=1e-4)
  np.testing.assert_array_equal(injection["B"], np.eye(384))


def test_the_program_does_not_grow_with_the_loops(settings, params, inputs):
  model = looped.build(settings, vocab_size=VOCAB_SIZE)

  def instructions(num_loops):
    def loss(params):
      return model.encode(params, inputs, num_loops=num_loops).hidden_BTD.sum()

    return len(jax.jit(jax.grad(loss)).lower(params).as_text().splitlines())

  assert instructions(3) == instructions(12)


@pytest.mark.parametrize("injection", [pytest.param("add", marks=pytest.mark.slow), "diagonal"])
def test_the_scan_equals_an_explicit_loop(settings, params, inputs, injection):
  """Values, states and gradients; the loop is written from the pieces, and names no injection."""
  model = variant(settings, injection={"name": injection}, remat="dots")
  core = core_alone(settings, inputs)

  def scanned(params):
    output = model.encode(params, inputs, keep_states=True)
    return jnp.square(output.hidden_BTD).mean(), output.states_RBTD

  def explicit(params):
    # The embedding's output, taken from a model whose blocks are switched off.
    x = params["embed"]["embedding"][inputs.tokens_BT]
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / jnp.sqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-5)
    own = params["injection"]
    step = jax.nn.softplus(own["dt_bias"])
    h, states = jnp.zeros_like(x), []
    for _ in range(3):
      if injection == "add":
        h = h + x
      else:
        h = jnp.exp(-step * jnp.exp(own["A_log"])) * h + step * (x @ own["B"].T)
      h = core(params, h)
      states.append(h)
    return jnp.square(h).mean(), jnp.stack(states)

  (value, states), gradient = jax.jit(jax.value_and_grad(scanned, has_aux=True))(params)
  (expected, wanted), reference = jax.jit(jax.value_and_grad(explicit, has_aux=True))(params)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(states, wanted, atol=2e-5)
  for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(reference), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * float(jnp.abs(theirs).max()) + 1e-8)


def test_causal_rows_leak_nothing_and_segments_do_not_mix(settings, params, inputs):
  model = looped.build(settings, vocab_size=VOCAB_SIZE)
  encode = jax.jit(lambda inputs: model.encode(params, inputs).hidden_BTD)
  before = encode(inputs)
  for position in (4, 9):
    changed = inputs.replace(tokens_BT=inputs.tokens_BT.at[:, position].set(20))
    moved = np.abs(np.asarray(encode(changed) - before)).max(axis=-1) > 0
    assert moved[0, position]
    assert not moved[:, :position].any()
  # The second piece of row 1 sees nothing of the first.
  changed = inputs.replace(tokens_BT=inputs.tokens_BT.at[1, :5].set(20))
  np.testing.assert_array_equal(encode(changed)[1, 5:], before[1, 5:])


@pytest.mark.slow
def test_remat_changes_no_gradient(settings, params, inputs):
  gradients = []
  for remat in ("none", "attention", "dots", "full"):
    model = variant(settings, remat=remat)

    def loss(params, model=model):
      return jnp.square(model.encode(params, inputs, key=jax.random.key(3)).hidden_BTD).mean()

    gradients.append(jax.jit(jax.grad(loss))(params))
  for other in gradients[1:]:
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), other, gradients[0])


def test_bfloat16_keeps_the_stream_and_the_logits_wide(settings, params, inputs):
  model = variant(settings, compute_dtype="bfloat16")
  output = jax.eval_shape(lambda p: model.encode(p, inputs, keep_states=True), params)
  assert output.states_RBTD.dtype == jnp.float32
  hidden = output.hidden_BTD
  logits = jax.eval_shape(lambda p: model.readout(p, jnp.zeros(hidden.shape), inputs.row_B), params)
  assert logits.dtype == jnp.float32


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"block": {"num_heads": 3}},
      r"num_heads=3 must divide model.embed_dim=16.*\[1, 2, 4, 8, 16\]",
    ),
    ({"num_loops": 0}, "num_loops=0 must be at least 1"),
    ({"depth": {"name": "poison"}}, "Did you mean 'poisson'"),
    ({"depth": {"grad_loops": 4}}, r"grad_loops=4 must lie in \[1, model.num_loops=3\]"),
    ({"remat": "some"}, "remat='some' is none of"),
    ({"injection": {"name": "diagnal"}}, "Did you mean 'diagonal'"),
    ({"injection": {"nmae": 1}}, "model.injection.nmae is not a setting"),
    ({"compute_dtype": "float8"}, "compute_dtype='float8' is none of"),
    ({"block": {"dwa_scope": "loop"}}, "dwa_scope='loop' is none of"),
  ],
)
def test_bad_settings_get_one_clear_line(settings, changes, message):
  with pytest.raises(UserError, match=message) as error:
    variant(settings, **changes)
  assert "\n" not in str(error.value)


SAMPLED = {"name": "poisson", "mean_loops": 3.0, "max_loops": 7, "grad_loops": 2}


@pytest.mark.slow
def test_a_drawn_depth_is_the_one_that_is_told_and_no_row_minds_its_company(
  settings, params, inputs
):
  """With dropout: drawn, told, and each row alone in a plain scan of its own loops."""
  model = variant(settings, depth=SAMPLED)
  key = jax.random.key(4)
  loops_B = model.draw_loops(inputs.row_B, key=key)
  assert len(set(loops_B.tolist())) > 1
  drawn = jax.jit(lambda p: model.encode(p, inputs, key=key).hidden_BTD)(params)
  plain = variant(settings)
  for row, num_loops in enumerate(loops_B.tolist()):
    alone = jax.tree.map(lambda x, row=row: x[row : row + 1], inputs)
    output = plain.encode(params, alone, key=key, num_loops=num_loops)
    np.testing.assert_allclose(output.hidden_BTD[0], drawn[row], atol=2e-5)


def test_evaluation_draws_nothing(settings, params, inputs):
  model, plain = variant(settings, depth=SAMPLED), variant(settings)

  def program(model, **arguments):
    return str(jax.make_jaxpr(lambda p: model.encode(p, inputs, **arguments).hidden_BTD)(params))

  assert program(model) == program(plain) == program(plain, num_loops=3)
  assert program(model, num_loops=5) == program(plain, num_loops=5)
  # In training a fixed depth with all its gradients is the same plain scan, too.
  key = jax.random.key(0)
  assert program(plain, key=key) == program(plain, key=key, num_loops=3)
  assert "while" in program(model, key=key)
  assert "while" not in program(plain, key=key)


@pytest.mark.slow
def test_a_fixed_depth_may_be_truncated_in_training_alone(settings, params, inputs):
  model, plain = variant(settings, depth={"name": "fixed", "grad_loops": 1}), variant(settings)

  def gradient(model, key):
    return jax.grad(lambda p: jnp.square(model.encode(p, inputs, key=key).hidden_BTD).mean())

  key = jax.random.key(0)
  ours, full = (jax.jit(gradient(each, key))(params)["core"] for each in (model, plain))
  pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(full), strict=True)
  assert max(float(jnp.abs(a - b).max()) for a, b in pairs) > 1e-4
  programs = [str(jax.make_jaxpr(gradient(each, None))(params)) for each in (model, plain)]
  assert programs[0] == programs[1]


@pytest.mark.parametrize(
  ("num_loops", "message"),
  [
    (0, "num_loops=0 must be at least 1"),
    (np.array([1, 0, 2]), r"num_loops=\[1, 0, 2\].* must lie in \[1, 7\]"),
    (np.array([1, 8, 2]), r"num_loops=\[1, 8, 2\].* must lie in \[1, 7\]"),
  ],
)
def test_loops_that_cannot_be_get_one_clear_line(settings, params, inputs, num_loops, message):
  with pytest.raises(UserError, match=message):
    variant(settings, depth=SAMPLED).encode(params, inputs, num_loops=num_loops)
