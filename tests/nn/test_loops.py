"""Rows of different depth: the loop in two phases equals each row's own plain loop.

What guards what; each fault was seeded once and made these tests fail:

| fault | fails |
|---|---|
| rows begin together instead of ending together | `…equal_their_own_loops`, gradients |
| gradient through the prefix | `…equal_their_own_loops`, gradients |
| the initial state loses its gradient | `…equal_their_own_loops[none-…]` |
| the injection beside the core instead of before it | `…equal_their_own_loops[add…, diagonal…]` |
| a norm where the loop ends | `…equal_their_own_loops` |
| a row counts the batch's loops instead of its own | `…equal_their_own_loops`, `…draws_noise…` |
| states placed by the batch's count | `…states_are_counted_from_a_row_s_own_first_loop` |
"""

import importlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.nn import dropout
from looped_lm.nn.context import Context
from looped_lm.nn.loops import recur

pytestmark = pytest.mark.slow  # CI runs them; `make test` has the golden numbers instead.

DIM, TOKENS, MAX_LOOPS = 4, 3, 20
DEPTHS = ([1, 3, 4, 5, 9, 12], [1, 2, 3, 1, 2, 3], [8] * 6, [20, 1, 4, 4])


class Core(nn.Module):
  """One small layer with all that a core may have: an invariant, a weight per loop, dropout."""

  dropout_rate: float

  def setup(self):
    normal = nn.initializers.normal(0.2)
    self.kernel = self.param("kernel", normal, (DIM, DIM))
    self.shift_D = self.param("shift", normal, (DIM,))
    self.gain_R = self.param("gain", normal, (MAX_LOOPS,))

  def invariants(self):
    return jnp.sin(self.shift_D)

  def __call__(self, x_BTD, context, shift_D):
    gain = self.gain_R[context.loop_B]
    y_BTD = jnp.tanh(x_BTD @ self.kernel + shift_D)
    y_BTD = (1.0 + gain[..., None, None]) * y_BTD
    return 0.6 * x_BTD + dropout.dropout(y_BTD, self.dropout_rate, context.keys_B, site=5)


class Loop(nn.Module):
  """A prelude of one matrix, then the loop."""

  injection_: type[nn.Module]
  grad_loops: int
  dropout_rate: float = 0.0
  remat: str = "none"
  keep_states: bool = False
  may_skip: bool = False

  def setup(self):
    self.prelude = self.param("prelude", nn.initializers.normal(0.5), (DIM, DIM))
    self.injection = self.injection_(embed_dim=DIM)
    self.core = Core(self.dropout_rate)

  def one_loop(self, h_BTD, anchor, context, invariants):
    own = {"loop_B": context.loop_B, "keys_B": context.keys_B}
    out_BTD = self.core(self.injection.enter(h_BTD, anchor, **own), context, invariants)
    return self.injection.update(h_BTD, anchor, out_BTD, **own)

  def __call__(self, x_BTD, num_loops, keys_B):
    e_BTD = x_BTD @ self.prelude
    blank = jnp.zeros(x_BTD.shape[:2], jnp.int32)
    context = Context(
      see_BTS=blank[..., None], tokens_BT=blank, shared=None, key=None, keys_B=keys_B
    )
    return recur(
      self,
      self.injection.start(e_BTD, keys_B=keys_B),
      self.injection.prepare(e_BTD),
      context,
      self.core.invariants(),
      num_loops=num_loops,
      grad_loops=self.grad_loops,
      max_loops=MAX_LOOPS,
      may_skip=self.may_skip,
      remat=self.remat,
      keep_states=self.keep_states,
    )


def make(injection, **fields):
  """The module, its parameters away from their initial values, and the input of six rows."""
  cls = importlib.import_module(f"looped_lm.injection.{injection}").Injection
  module = Loop(injection_=cls, **{"grad_loops": 3, **fields})
  x_BTD = jax.random.normal(jax.random.key(2), (6, TOKENS, DIM))
  params = module.init(jax.random.key(0), x_BTD, 1, None)["params"]
  leaves, tree = jax.tree.flatten(params)
  # In float64 where that is switched on.
  leaves = [x.astype(x_BTD.dtype) for x in leaves]
  keys = jax.random.split(jax.random.key(1), len(leaves))
  params = jax.tree.unflatten(
    tree,
    [x + 0.1 * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)],
  )
  return module, params, x_BTD


def own_loop(params, x_TD, injection, num_loops, grad_loops):
  """One row by a Python loop, written out; the states after its loops."""
  e_TD = x_TD @ params["prelude"]
  h_TD = e_TD if injection == "none" else jnp.zeros_like(e_TD)
  states = []
  for number in range(num_loops):
    p, e = params, e_TD
    if number < num_loops - grad_loops:
      p, e, h_TD = jax.tree.map(jax.lax.stop_gradient, (p, e, h_TD))
    if injection == "add":
      h_TD = h_TD + e
    if injection == "diagonal":
      step = jax.nn.softplus(p["injection"]["dt_bias"])
      decay = jnp.exp(-step * jnp.exp(p["injection"]["A_log"]))
      h_TD = decay * h_TD + step * (e @ p["injection"]["B"].T)
    core = p["core"]
    y_TD = jnp.tanh(h_TD @ core["kernel"] + jnp.sin(core["shift"]))
    h_TD = 0.6 * h_TD + (1.0 + core["gain"][number]) * y_TD
    if number < num_loops - grad_loops:
      h_TD = jax.lax.stop_gradient(h_TD)
    states.append(h_TD)
  return states


def row_losses(h_BTD):
  """One number per row, in which every entry weighs differently."""
  weight_TD = jnp.cos(jnp.arange(TOKENS * DIM, dtype=h_BTD.dtype)).reshape(TOKENS, DIM)
  return (jnp.tanh(0.2 * h_BTD) * weight_TD).sum(axis=(-2, -1))


def assert_close(ours, theirs, tolerance):
  """Every entry within the tolerance of the largest entry of all."""
  largest = max(float(np.abs(b).max()) for b in jax.tree.leaves(theirs))
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def check_rows_equal_their_own_loops(injection, *, tolerance, **fields):
  """Losses and gradients for all sets of depths, and one compiled program for those of one size."""
  module, params, x_BTD = make(injection, **fields)

  def summed(params, x_BTD, loops_B):
    losses_B = row_losses(module.apply({"params": params}, x_BTD, loops_B, None)[0])
    return (losses_B * jnp.arange(1.0, 1.0 + len(losses_B))).sum(), losses_B

  program = jax.jit(jax.value_and_grad(summed, has_aux=True))
  for depths in DEPTHS:
    # A set of four stands in a batch of six, so that the same program serves it.
    filled = depths + [2] * (6 - len(depths))

    def wanted(params, filled=filled):
      losses = [
        row_losses(own_loop(params, x_BTD[i], injection, num_loops, module.grad_loops)[-1])
        for i, num_loops in enumerate(filled)
      ]
      return sum(loss * (1.0 + i) for i, loss in enumerate(losses)), jnp.stack(losses)

    (_, losses_B), grads = program(params, x_BTD, jnp.asarray(filled, jnp.int32))
    # Not compiled: the operations are few and small, the program would be long.
    (_, reference_B), reference = jax.value_and_grad(wanted, has_aux=True)(params)
    assert_close(losses_B, reference_B, tolerance)
    assert_close(grads, reference, tolerance)
  assert program._cache_size() == 1


@pytest.mark.parametrize("grad_loops", [3, 4])
@pytest.mark.parametrize("injection", ["none", "add", "diagonal"])
def test_rows_equal_their_own_loops(injection, grad_loops):
  check_rows_equal_their_own_loops(injection, tolerance=1e-6, grad_loops=grad_loops)


@pytest.mark.parametrize(
  "fields", [{"remat": "full"}, {"remat": "dots", "may_skip": True}], ids=str
)
def test_recomputing_and_skipping_change_nothing(fields):
  check_rows_equal_their_own_loops("diagonal", tolerance=1e-6, **fields)


def test_gradients_are_exact_in_float64(x64):
  check_rows_equal_their_own_loops("diagonal", tolerance=1e-13)


def test_a_row_draws_noise_as_if_it_were_alone():
  """In the prefix, in the last loops and where rows begin late: the own loop is the key."""
  module, params, x_BTD = make("add", dropout_rate=0.3)
  keys_B = dropout.row_keys(jax.random.key(5), jnp.arange(6))
  loops_B = [1, 3, 4, 5, 9, 12]
  together = jax.jit(module.apply)({"params": params}, x_BTD, jnp.asarray(loops_B), keys_B)[0]
  for i, num_loops in enumerate(loops_B):
    alone = module.apply({"params": params}, x_BTD[i : i + 1], num_loops, keys_B[i : i + 1])[0]
    np.testing.assert_allclose(together[i], alone[0], atol=1e-6)


def test_states_are_counted_from_a_row_s_own_first_loop():
  """They equal a lone row's, its last one repeats, and they carry gradient where loops do."""
  module, params, x_BTD = make("diagonal", keep_states=True)
  loops_B = [1, 3, 4, 5, 9, 12]

  @jax.jit
  def states_of(params):
    return module.apply({"params": params}, x_BTD, jnp.asarray(loops_B), None)

  last_BTD, states_RBTD = states_of(params)
  assert states_RBTD.shape == (MAX_LOOPS, *x_BTD.shape)
  np.testing.assert_array_equal(states_RBTD[-1], last_BTD)
  for i, num_loops in enumerate(loops_B):
    own = own_loop(params, x_BTD[i], "diagonal", num_loops, 3)
    own += [own[-1]] * (MAX_LOOPS - num_loops)
    np.testing.assert_allclose(states_RBTD[:, i], jnp.stack(own), atol=1e-6)

  def second_state(params, row):
    return jnp.square(states_of(params)[1][1, row]).sum()

  slope = jax.jit(jax.grad(second_state))(params, jnp.int32(2))["core"]["kernel"]
  own = jax.grad(lambda params: jnp.square(own_loop(params, x_BTD[2], "diagonal", 4, 3)[1]).sum())(
    params
  )["core"]["kernel"]
  assert_close(slope, own, 1e-6)
  # Row 5 has 12 loops, 3 of them with gradient: its second state lies in the prefix.
  assert not np.any(jax.jit(jax.grad(second_state))(params, jnp.int32(5))["core"]["kernel"])


def test_the_plain_scan_is_the_case_of_equal_depths_and_all_gradients():
  module, params, x_BTD = make("diagonal", grad_loops=5)

  def loss(params, num_loops):
    return row_losses(module.apply({"params": params}, x_BTD, num_loops, None)[0]).sum()

  ours = jax.jit(jax.value_and_grad(loss))(params, jnp.full(6, 5))
  plain = jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, 5)
  assert_close(ours, plain, 1e-6)
