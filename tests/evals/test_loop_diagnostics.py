"""What diagnostics say: by hand, against runs of every depth, and without touching the program."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import visibility
from looped_lm.evals import loop_diagnostics
from looped_lm.models import looped
from looped_lm.nn import watch
from looped_lm.types import Inputs

VOCAB_SIZE = 40


@pytest.fixture(scope="module")
def inputs():
  tokens_BT = jnp.asarray(np.random.default_rng(0).integers(16, VOCAB_SIZE, (2, 6)), jnp.int32)
  return Inputs(
    tokens_BT=tokens_BT,
    order_BT=visibility.causal(tokens_BT),
    segments_BT=jnp.asarray([[1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 0, 0]], jnp.int32),
    row_B=jnp.arange(2, dtype=jnp.int32),
  )


@pytest.fixture(scope="module")
def gated(tiny_config, inputs):
  """A gated model, its parameters off their initial values, and all that a long run shows."""
  settings = tiny_config("grt")["model"] | {"embed_dim": 16, "num_loops": 3}
  model = looped.build(settings, vocab_size=VOCAB_SIZE)
  params = jax.jit(model.init)(jax.random.key(0))
  params = jax.tree.map(lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size).reshape(x.shape)), params)
  run = jax.jit(
    lambda p: model.encode(
      p, inputs, num_loops=6, keep_states=True, watch=(*watch.IN_LOOPS, watch.ATTENTION_OUTSIDE)
    )
  )
  return model, params, run(params), run


def test_depths_double_up_to_twice_the_model_s_own():
  assert loop_diagnostics.depths(1) == [1, 2]
  assert loop_diagnostics.depths(3) == [1, 2, 3, 4, 6]
  assert loop_diagnostics.depths(4) == [1, 2, 4, 8]
  assert loop_diagnostics.depths(12) == [1, 2, 4, 8, 12, 16, 24]


@pytest.mark.parametrize("lanes", [False, True])
def test_movement_by_hand(lanes):
  nan = math.nan
  # Three tokens of a row: the first two move, the last is padding and counts for nothing.
  states_RBTD = jnp.array(
    [[[[3.0, 0.0], [0.0, 1.0], [nan, nan]]], [[[0.0, 4.0], [0.0, 2.0], [nan, nan]]]]
  )
  if lanes:
    states_RBTD = states_RBTD[..., None]
  found = loop_diagnostics.movement(states_RBTD, jnp.array([[True, True, False]]))
  mean = {name: np.asarray(total / weight) for name, (total, weight) in found.items()}
  np.testing.assert_allclose(mean["step_size"], [(5 / 4 + 1 / 2) / 2])
  np.testing.assert_allclose(mean["cosine"], [(0 + 1) / 2])
  np.testing.assert_allclose(mean["token_correlation"], [0.0, 1.0], atol=1e-6)


@pytest.mark.parametrize("num_loops", [2, 6])
def test_the_state_after_a_loop_is_what_a_run_of_so_many_loops_ends_with(gated, inputs, num_loops):
  model, params, long, _ = gated
  short = jax.jit(lambda p: model.encode(p, inputs, num_loops=num_loops).hidden_BTD)(params)
  read = jax.jit(lambda p, h: model.finish(p, h, inputs))(params, long.states_RBTD[num_loops - 1])
  np.testing.assert_allclose(read, short, atol=1e-5)


def test_the_gate_shown_is_the_gate_that_moves_the_state(gated):
  _, params, long, run = gated
  (path, open_RBTD), *others = long.watched[watch.FIGURES].items()
  assert (path, others) == ("injection/gate_openness", [])
  assert open_RBTD.shape == long.states_RBTD.shape
  # It starts at 1 − σ(4); bolted, it is 0 and nothing moves; torn out, it is 1.
  assert 0.009 < open_RBTD.mean() < 0.036
  for bias, expected in ((1e9, 0.0), (-1e9, 1.0)):
    injection = params["injection"] | {"gate_out_bias": jnp.full(16, bias)}
    forced = run(params | {"injection": injection})
    assert (forced.watched[watch.FIGURES][path] == expected).all()
    moved = jnp.abs(forced.states_RBTD[1] - forced.states_RBTD[0]).max()
    assert (moved > 0.01) == (expected == 1.0)


def test_attention_is_shown_as_computed(gated, inputs):
  shown = gated[2].watched
  outside = shown[watch.ATTENTION_OUTSIDE]
  assert sorted(outside) == ["coda/layers_0/attend/layer_2", "prelude/layers_0/attend/layer_0"]
  assert {p_BNTS.shape for p_BNTS in outside.values()} == {(2, 2, 6, 6)}
  assert list(shown[watch.ATTENTION]) == ["core/layers_0/attend/layer_1"]
  p_RBNTS = shown[watch.ATTENTION]["core/layers_0/attend/layer_1"]
  assert p_RBNTS.shape == (6, 2, 2, 6, 6)
  see_BTS = np.asarray(visibility.visible(inputs.order_BT, inputs.segments_BT))
  assert ((np.asarray(p_RBNTS) > 0) == see_BTS[None, :, None]).all()
  some_BT = see_BTS.any(-1)
  np.testing.assert_allclose(p_RBNTS.sum(-1)[:, :, 0], [some_BT] * 6, rtol=1e-5)
  assert np.abs(p_RBNTS[0] - p_RBNTS[3]).max() > 1e-4  # Each loop has its own.


@pytest.mark.parametrize("name", ["looped_gpt_bert", "grt"])
def test_nobody_watching_leaves_no_trace_in_the_program(tiny_config, inputs, monkeypatch, name):
  settings = tiny_config(name)["model"] | {"remat": "none", "depth": {"name": "fixed"}}
  model = looped.build(settings, vocab_size=VOCAB_SIZE)
  params = jax.eval_shape(model.init, jax.random.key(0))

  def program(**arguments):
    def loss(params):
      return model.encode(params, inputs, key=jax.random.key(0), **arguments).hidden_BTD.sum()

    return str(jax.make_jaxpr(jax.grad(loss))(params))

  offered = program()
  watched = program(watch=(watch.ATTENTION,))
  monkeypatch.setattr(watch, "offer", lambda *_: None)
  assert len(offered) == len(program())  # Addresses of functions differ, nothing else.
  assert len(watched) > len(offered)
  assert jax.tree.structure(params) == jax.tree.structure(
    jax.eval_shape(model.init, jax.random.key(0))
  )
