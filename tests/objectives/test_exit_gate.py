"""The learned exit gate: its distribution and the expected loss it is trained with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import visibility
from looped_lm.errors import UserError
from looped_lm.models import looped
from looped_lm.nn.token_loss import exit_distribution, token_figures
from looped_lm.objectives import clm
from looped_lm.types import Batch, Inputs, Vocabulary

VOCABULARY = Vocabulary(size=60, num_special=16, bos_id=1, pad_id=3, mask_id=4)


def test_the_exits_are_a_distribution_and_the_last_loop_takes_the_rest():
  leave = np.array([0.2, 0.5, 0.9])[:, None, None]
  p = np.asarray(exit_distribution(jnp.asarray(leave)))[:, 0, 0]
  np.testing.assert_allclose(p, [0.2, 0.8 * 0.5, 0.8 * 0.5], rtol=1e-6)


@pytest.fixture(scope="module")
def settings(tiny_config):
  settings = tiny_config()["model"]
  for group in ("block", "embed", "head"):
    settings[group] = {
      k: 0.0 if k.endswith("dropout_rate") else v for k, v in settings[group].items()
    }
  return settings | {"exit_gate": True, "prelude_layers": 0, "coda_layers": 1}


@pytest.mark.nightly
def test_the_loss_is_the_expected_one_less_the_entropy(settings):
  model = looped.build(settings, vocab_size=60)
  params = jax.jit(model.init)(jax.random.key(0))
  gate = params["exit_gate"]
  assert float(jnp.abs(gate["kernel"]).max()) == 0.0  # Every exit starts at a half.
  gate["kernel"] = 0.3 * jax.random.normal(jax.random.key(1), gate["kernel"].shape)
  gate["bias"] = gate["bias"] - 0.5
  tokens = jnp.asarray(np.random.default_rng(0).integers(16, 60, (2, 8)), jnp.int32)
  batch = Batch(tokens_BT=tokens, segments_BT=jnp.ones_like(tokens), row_B=jnp.arange(2))
  objective = clm.Objective(vocabulary=VOCABULARY, z_loss_weight=1e-3, exit_entropy_weight=0.1)
  task = objective.draw(batch, key=jax.random.key(0), progress=0.0)

  @jax.jit
  @jax.value_and_grad
  def ours(params):
    return objective.loss(model, params, task, key=jax.random.key(0)).sum_nats

  @jax.jit
  @jax.value_and_grad
  def theirs(params):
    """Loop by loop, each run on its own."""
    inputs = Inputs(
      tokens_BT=tokens,
      order_BT=visibility.causal(tokens),
      segments_BT=batch.segments_BT,
      row_B=batch.row_B,
    )
    cost, reached, entropy = 0.0, 1.0, 0.0
    for loops in (1, 2, 3):
      output = model.encode(params, inputs, num_loops=loops, keep_states=True)
      logits = model.readout(params, output.hidden_BTD, batch.row_B)
      nats, z, _ = token_figures(logits, task.targets_BT)
      leave = jax.nn.sigmoid(
        (output.states_RBTD[-1] @ params["exit_gate"]["kernel"])[..., 0]
        + params["exit_gate"]["bias"][0]
      )
      p = reached * (leave if loops < 3 else 1.0)
      reached = reached * (1.0 - leave)
      cost = cost + p * (nats + 1e-3 * z)
      entropy = entropy - p * jnp.log(p)
    return (task.weight_BT * (cost - 0.1 * entropy)).sum()

  (value, gradient), (expected, reference) = ours(params), theirs(params)
  assert float(value) == pytest.approx(float(expected), rel=1e-5)
  for mine, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(reference), strict=True):
    np.testing.assert_allclose(mine, other, atol=1e-5 * max(1.0, float(jnp.abs(other).max())))
  assert float(jnp.abs(gradient["exit_gate"]["kernel"]).max()) > 1e-4


@pytest.mark.parametrize("depth", [{"name": "fixed", "grad_loops": 2}, {"name": "poisson"}])
def test_a_gate_needs_every_loop_of_every_row(settings, depth):
  depth = settings["depth"] | depth
  with pytest.raises(UserError, match=r"model.exit_gate=True weighs every loop of every row"):
    looped.build(settings | {"depth": depth}, vocab_size=60)


def test_a_negative_entropy_weight_is_refused():
  with pytest.raises(UserError, match=r"objective.exit_entropy_weight=-0.1 must be at least 0"):
    clm.Objective(vocabulary=VOCABULARY, z_loss_weight=0.0, exit_entropy_weight=-0.1)
