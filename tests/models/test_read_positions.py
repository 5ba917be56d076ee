"""Reading few positions gives what they have among all, and leaves the rest out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import visibility
from looped_lm.models import skeleton
from looped_lm.types import Inputs

pytestmark = pytest.mark.slow

READ_BK = jnp.array([[2, 6], [0, 0], [11, 3]])


@pytest.fixture(scope="module")
def inputs():
  tokens_BT = jnp.asarray(np.random.default_rng(0).integers(16, 60, (3, 12)), jnp.int32)
  return Inputs(
    tokens_BT=tokens_BT,
    order_BT=visibility.bidirectional(tokens_BT),
    segments_BT=jnp.array([[1] * 12, [1] * 7 + [0] * 5, [1] * 12], jnp.int32),
    row_B=jnp.arange(3, dtype=jnp.int32),
  )


def encode(model, inputs, **settings):
  return jax.jit(lambda params: model.encode(params, inputs, **settings).hidden_BTD)


def test_every_model_reads_them_as_among_all(build, inputs, monkeypatch, form):
  model, params = build(form)
  whole_BTD = encode(model, inputs, num_loops=3)(params)
  wanted_BKD = np.take_along_axis(np.asarray(whole_BTD), np.asarray(READ_BK)[..., None], axis=1)
  for most in (0, 100):  # All loops in one, and the last one apart.
    monkeypatch.setattr(skeleton, "_FEW_APPLICATIONS", most)
    few_BKD = encode(model, inputs, num_loops=3, read_BK=READ_BK)(params)
    np.testing.assert_allclose(few_BKD, wanted_BKD, rtol=1e-4, atol=1e-5)


def test_the_last_layer_works_on_what_is_read_alone(build, inputs):
  model, params = build("gpt_bert")

  def flops(read_BK):
    program = encode(model, inputs, num_loops=2, read_BK=read_BK)
    return program.lower(params).compile().cost_analysis()["flops"]

  everything_BK = jnp.broadcast_to(jnp.arange(12), (3, 12))
  assert flops(READ_BK) < 0.7 * flops(everything_BK)
