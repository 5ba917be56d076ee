"""Every injection against its equation, and what each promises."""

import copy
import math

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import visibility
from looped_lm.errors import UserError
from looped_lm.injection import gated, hyper_connections, linear
from looped_lm.models import looped
from looped_lm.nn import decay
from looped_lm.types import Inputs

pytestmark = pytest.mark.slow  # CI runs them; `make test` has the golden numbers instead.

VOCAB_SIZE = 50
# What may be set besides the name; noise is off unless a test turns it on.
INJECTIONS = {
  "none": {"name": "none"},
  "add": {"name": "add"},
  "add_norm": {"name": "add", "exit_norm": "rms"},
  "diagonal": {"name": "diagonal"},
  "diagonal_zoh": {"name": "diagonal_zoh"},
  "linear": {"name": "linear", "kernel_std": 0.1},
  "gated": {"name": "gated"},
  "gated_code": {"name": "gated", "gate_norm": "concatenation", "temperature": 2.0},
  "hyper_connections": {"name": "hyper_connections", "num_lanes": 3, "num_loops": 2},
}


@pytest.fixture(scope="session")
def settings(tiny_config):
  """(kind, changes) -> a GPT-2-like model with one core layer, three loops and no noise."""

  def make(kind, **changes):
    model = copy.deepcopy(tiny_config("grt", "tiny")["model"])
    model |= {"prelude_layers": 0, "core_layers": 1, "coda_layers": 0, "num_loops": 3}
    model["injection"] = dict(INJECTIONS[kind])
    return model | changes

  return make


@pytest.fixture(scope="session")
def inputs():
  tokens = jnp.asarray(np.random.default_rng(0).integers(16, VOCAB_SIZE, (2, 6)), jnp.int32)
  return Inputs(
    tokens_BT=tokens,
    order_BT=visibility.causal(tokens),
    segments_BT=jnp.ones_like(tokens),
    row_B=jnp.arange(2, dtype=jnp.int32),
  )


def noisy(params, size=0.1):
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  return jax.tree.unflatten(
    tree, [x + size * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
  )


def rms(x):
  return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)


def norm(x):
  x = x - x.mean(-1, keepdims=True)
  return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)


def one_loop(name, p, e, h, core, loop):
  """The equation of each injection, from its paper; h is None before the first loop."""
  if name == "none":
    return core(e if h is None else h)
  if name in ("add", "add_norm"):
    out = core(e if h is None else e + h)
    return rms(out) * p["norm_exit"]["scale"] if name == "add_norm" else out
  if name in ("diagonal", "diagonal_zoh"):
    step = jnp.log1p(jnp.exp(p["dt_bias"]))
    keep = jnp.exp(-step * jnp.exp(p["A_log"]))
    factor = step if name == "diagonal" else (1 - keep) / jnp.exp(p["A_log"])
    h = 0.0 if h is None else h
    return core(keep * h + factor * (e @ p["B"].T))
  if name == "linear":
    h = jnp.zeros_like(e) if h is None else h
    return core(jnp.concatenate([h, e], -1) @ p["kernel"])
  if name in ("gated", "gated_code"):
    h = e if h is None else h
    both = jnp.concatenate([h, e], -1)
    out = core(both @ p["project_kernel"] + p["project_bias"])
    seen = norm(both) if name == "gated_code" else jnp.concatenate([norm(h), norm(e)], -1)
    hidden = seen * p["norm_scale"] @ p["gate_kernel"] + p["gate_hidden_bias"]
    logits = jax.nn.silu(hidden) @ p["gate_out_kernel"] + p["gate_out_bias"]
    g = jax.nn.sigmoid(logits / (2.0 if name == "gated_code" else 1.0))
    return g * h + (1 - g) * out
  assert name == "hyper_connections"
  h = jnp.stack([e] * 3, axis=2) if h is None else h
  loop = min(loop, 1)
  a, b, M = (p[f"lane_{part}"][loop] for part in ("read", "write", "mix"))
  size_a, size_b, size_M = p["dynamic_scale"][loop]
  a = a + size_a * jnp.tanh(rms(h) @ p["read_kernel"][loop])
  b = b + size_b * jnp.tanh(rms(h) @ p["write_kernel"][loop])
  M = M + size_M * jnp.tanh(rms(h) @ p["mix_kernel"][loop])
  x = sum(a[:, :, i, None] * h[:, :, i] for i in range(3))
  change = core(x) - x
  lanes = [
    sum(M[:, :, i, j, None] * h[:, :, j] for j in range(3)) + b[:, :, i, None] * change
    for i in range(3)
  ]
  return jnp.stack(lanes, axis=2)


@pytest.mark.parametrize("name", INJECTIONS)
def test_the_loop_is_the_paper_s_equation(settings, inputs, name):
  module = looped.assemble(settings(name), vocab_size=VOCAB_SIZE)
  params = noisy(jax.jit(module.init)(jax.random.key(0), inputs)["params"])
  own = params.get("injection", {})

  def explicit(module):
    context = module._context(inputs, None)
    core = lambda x: module.core(x, context, module.core.invariants(context))  # noqa: E731
    e, h, states = module.embedder(inputs.tokens_BT, None), None, []
    for loop in range(3):
      h = one_loop(name, own, e, h, core, loop)
      states.append(h)
    if name == "hyper_connections":
      h = jnp.einsum("n,BTnD->BTD", own["lane_out"], h)
    return jnp.stack(states), h

  @jax.jit
  def both(params):
    variables = {"params": params}
    return (
      module.apply(variables, inputs, None, 3, 3, True, method="encode"),
      module.apply(variables, method=explicit),
    )

  output, (states, hidden) = both(params)
  size = float(jnp.abs(states).max())
  np.testing.assert_allclose(output.states_RBTD, states, atol=1e-5 * size)
  np.testing.assert_allclose(output.hidden_BTD, hidden, atol=1e-5 * size)


ANYTHING = hnp.arrays(
  np.float32, 16, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)


@hypothesis.given(ANYTHING, ANYTHING)
@hypothesis.example(np.full(16, -200.0, np.float32), np.full(16, -200.0, np.float32))
@hypothesis.example(np.full(16, 3e38, np.float32), np.full(16, -3e38, np.float32))
@hypothesis.example(np.full(16, 100.0, np.float32), np.full(16, -110.0, np.float32))
def test_the_decay_is_a_contraction_for_any_parameters(A_log, dt_bias):
  kept = np.asarray(_decay(A_log, dt_bias))
  assert np.all((kept >= 0.0) & (kept < 1.0)), kept


_decay = jax.jit(decay.decay)


def test_the_decay_starts_at_the_paper_s_value_and_is_exact_in_between():
  A_log, dt_bias = np.linspace(-3, 3, 13), np.linspace(-40, 3, 13)
  exact = np.exp(-np.log1p(np.exp(dt_bias)) * np.exp(A_log))
  np.testing.assert_allclose(_decay(np.float32(A_log), np.float32(dt_bias)), exact, rtol=1e-5)


def test_the_exact_hold_tends_to_the_step_and_to_the_fixed_point():
  A_log = jnp.array([-30.0, 0.0, 5.0])
  dt_bias = jnp.array([0.5, 0.5, 20.0])
  step = math.log1p(math.exp(0.5))
  expected = [step, 1 - math.exp(-step), math.exp(-5.0)]
  np.testing.assert_allclose(decay.held_step(A_log, dt_bias), expected, rtol=1e-5)


# The gate of the Gated Recurrent Transformer.


def logits_of(model, params, inputs, **options):
  hidden = model.encode(params, inputs, **options).hidden_BTD
  return model.readout(params, hidden, inputs.row_B)


@pytest.fixture(scope="session")
def grt(settings, inputs):
  model = looped.build(settings("gated", prelude_layers=1, coda_layers=1), vocab_size=VOCAB_SIZE)
  return model, jax.jit(model.init)(jax.random.key(0))


def with_injection(params, **changes):
  return params | {"injection": params["injection"] | changes}


def test_the_gate_starts_nearly_closed(grt, inputs):
  _, params = grt
  injection = gated.Injection(embed_dim=32)
  rng = np.random.default_rng(0)
  e, h = (jnp.asarray(rng.normal(size=(2, 6, 32)), jnp.float32) for _ in range(2))
  keep = injection.apply(
    {"params": params["injection"]},
    method=lambda m: jax.nn.sigmoid(m.gate_logits(h, m.prepare(e))),
  )
  np.testing.assert_allclose(keep, 0.98201, atol=1e-4)


def test_a_gate_forced_shut_makes_the_loops_idle(grt, inputs):
  model, params = grt
  shut = with_injection(noisy(params), gate_out_bias=jnp.full(32, 1e9))
  run = jax.jit(
    lambda num_loops: logits_of(model, shut, inputs, num_loops=num_loops), static_argnums=0
  )
  np.testing.assert_array_equal(run(1), run(4))


def test_an_open_gate_and_an_identity_projection_are_the_dense_stack(grt, settings, inputs):
  model, params = grt
  params = noisy(params)
  identity = jnp.concatenate([jnp.eye(32), jnp.zeros((32, 32))])
  opened = with_injection(
    params,
    gate_out_bias=jnp.full(32, -1e9),
    project_kernel=identity,
    project_bias=jnp.zeros(32),
  )
  dense = looped.build(
    settings("none", prelude_layers=1, coda_layers=1, num_loops=1), vocab_size=VOCAB_SIZE
  )
  plain = {name: tree for name, tree in params.items() if name != "injection"}
  ours, theirs = jax.jit(
    lambda: (logits_of(model, opened, inputs, num_loops=1), logits_of(dense, plain, inputs))
  )()
  np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_noise_is_keyed_and_can_be_off(settings, inputs):
  """Without noise no key matters; with it each key gives its own states, the same every time."""
  noise = {"noise_std": 0.1, "gate_noise_std": 0.1}
  loud = looped.build(
    settings("gated", injection=INJECTIONS["gated"] | noise), vocab_size=VOCAB_SIZE
  )
  quiet = looped.build(settings("gated"), vocab_size=VOCAB_SIZE)
  params = noisy(jax.jit(quiet.init)(jax.random.key(0)))

  @jax.jit
  def run(key):
    return [m.encode(params, inputs, key=key).hidden_BTD for m in (loud, quiet)]

  first, again, other = (run(jax.random.key(seed)) for seed in (1, 1, 2))
  np.testing.assert_array_equal(first[0], again[0])
  assert np.abs(first[0] - other[0]).max() > 1e-3
  np.testing.assert_array_equal(first[1], other[1])


@pytest.mark.parametrize("kind", ["channel", "token"])
def test_gate_noise_is_per_channel_or_per_token(kind):
  injection = gated.Injection(embed_dim=8, gate_noise_std=1.0, gate_noise=kind)
  h, out = jnp.zeros((2, 3, 8)), jnp.ones((2, 3, 8))
  keys_B = jax.random.split(jax.random.key(0), 2)

  def run(m):
    return m.update(h, m.prepare(h), out, loop_B=jnp.zeros(2, jnp.int32), keys_B=keys_B)

  opened, _ = injection.init_with_output(jax.random.key(0), method=run)
  assert (np.ptp(opened, axis=-1) < 1e-6).all() == (kind == "token")
  assert np.ptp(opened[..., 0]) > 1e-3


# Hyper-connections and the state.


def test_one_fresh_lane_is_plain_repetition(settings, inputs):
  one = {"name": "hyper_connections", "num_lanes": 1}
  lanes = looped.build(settings("none", injection=one), vocab_size=VOCAB_SIZE)
  plain = looped.build(settings("none"), vocab_size=VOCAB_SIZE)
  params = jax.jit(lanes.init)(jax.random.key(0))
  rest = {name: tree for name, tree in params.items() if name != "injection"}
  ours, theirs = jax.jit(
    lambda: (lanes.encode(params, inputs).hidden_BTD, plain.encode(rest, inputs).hidden_BTD)
  )()
  np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_the_state_starts_as_it_is_told():
  e = jnp.asarray(np.random.default_rng(0).normal(size=(2, 50, 32)), jnp.float32)
  keys_B = jax.random.split(jax.random.key(0), 2)

  def start(keys_B, **settings):
    injection = linear.Injection(embed_dim=32, kernel_std=0.1, **settings)
    run = lambda m: m.start(e, keys_B=keys_B)  # noqa: E731
    return np.asarray(injection.init_with_output(jax.random.key(0), method=run)[0])

  np.testing.assert_array_equal(start(keys_B), 0.0)
  np.testing.assert_array_equal(start(keys_B, state_init="prelude"), e)
  drawn = start(keys_B, state_init="truncated_normal", state_std=0.5)
  assert abs(drawn.std() - 0.5 * 0.9866) < 0.02
  assert np.abs(drawn).max() <= 1.5
  assert np.abs(drawn[0] - drawn[1]).max() > 0.1
  # A row's draw is its own, whatever rows stand beside it.
  swapped = start(keys_B[::-1], state_init="truncated_normal", state_std=0.5)
  np.testing.assert_array_equal(swapped[0], drawn[1])
  np.testing.assert_array_equal(start(None, state_init="truncated_normal", state_std=0.5), 0.0)


def test_the_spectral_bound_is_close_from_above():
  kernel = 0.3 * np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
  figures = linear.diagnostics({"kernel": jnp.asarray(kernel)})
  radius = np.abs(np.linalg.eigvals(kernel[:8])).max()
  assert radius <= float(figures["rho_bound"]) * (1 + 1e-5)
  assert float(figures["rho_bound"]) < 1.3 * radius


@pytest.mark.parametrize(
  ("injection", "message"),
  [
    ({"name": "add", "exit_norm": "batch"}, "exit_norm='batch' is none of"),
    ({"name": "linear"}, "kernel_std=0.0 must be above 0"),
    ({"name": "gated", "gate_norm": "both"}, "gate_norm='both' is none of"),
    ({"name": "gated", "temperature": 0.0}, "temperature=0.0 must be above 0"),
    ({"name": "gated", "noise_std": -0.1}, "noise_std=-0.1 must be at least 0"),
    ({"name": "hyper_connections", "num_lanes": 0}, "num_lanes=0 must be at least 1"),
    ({"name": "diagonal", "state_std": 1.0}, "state_std=1.0 must be above 0 for"),
  ],
)
def test_bad_settings_get_one_clear_line(settings, injection, message):
  with pytest.raises(UserError, match=message) as error:
    looped.build(settings("none", injection=injection), vocab_size=VOCAB_SIZE)
  assert "\n" not in str(error.value)


def test_lanes_report_their_mixing():
  lanes = hyper_connections.Injection(embed_dim=4)
  e = jnp.ones((1, 2, 4))
  run = lambda m: m.start(e, keys_B=None)  # noqa: E731
  _, variables = lanes.init_with_output(jax.random.key(0), method=run)
  figures = hyper_connections.diagnostics(variables["params"])
  assert float(figures["mix_norm"]) == pytest.approx(1.0)
  assert float(figures["mix_off_diagonal"]) == 0.0
