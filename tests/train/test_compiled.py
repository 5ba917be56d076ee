"""What the compiler counts: memory by rematerialisation, and one program a run.

Temporary memory does not depend on the machine's load, so it is a better guard than a clock. The
model is the default config's, at its full size: it is compiled, never run.
"""

import logging

import jax
import jax.numpy as jnp
import pytest

from looped_lm import jobs
from looped_lm.models import looped
from looped_lm.objectives import clm
from looped_lm.train import parallel
from looped_lm.types import Batch, Vocabulary

pytestmark = pytest.mark.slow

ROWS, LENGTH = 8, 128


@pytest.fixture(scope="module")
def temporaries(tiny_config):
  """Bytes that a gradient of the loss needs besides its arguments and results."""
  config = tiny_config(arguments="")
  size = config["tokenizer"]["vocab_size"]
  vocabulary = Vocabulary(size=size, num_special=16, bos_id=1, pad_id=3, mask_id=4)

  def measure(*, remat, num_loops, chunk_tokens=0):
    changes = {"remat": remat, "num_loops": num_loops, "compute_dtype": "float32"}
    model = looped.build(config["model"] | changes, vocab_size=size)
    objective = clm.Objective(vocabulary=vocabulary, z_loss_weight=1e-4, chunk_tokens=chunk_tokens)

    def loss(params, tokens_BT, key):
      batch = Batch(
        tokens_BT=tokens_BT, segments_BT=jnp.ones_like(tokens_BT), row_B=jnp.arange(ROWS)
      )
      task = objective.draw(batch, key=key, progress=0.0)
      return objective.loss(model, params, task, key=key).sum_nats

    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(model.init, key)
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    program = jax.jit(jax.grad(loss)).lower(params, tokens, key).compile()
    return program.memory_analysis().temp_size_in_bytes

  return measure


def test_with_full_rematerialisation_memory_hardly_depends_on_the_loops(temporaries):
  one, many = (temporaries(remat="full", num_loops=loops) for loops in (1, 24))
  assert many <= 1.15 * one


def test_keeping_products_takes_a_third_of_keeping_all(temporaries):
  dots, none = (temporaries(remat=remat, num_loops=12) for remat in ("dots", "none"))
  assert dots <= 0.35 * none


@pytest.mark.parametrize("strategy", ["pmap", "mesh"])
def test_no_step_after_the_first_compiles_anything(tiny_config, strategy, caplog):
  """Whatever depth is drawn."""
  config = tiny_config()
  config["train"] |= {"total_steps": 5, "micro_batches": 2}
  config["model"]["depth"] |= {"name": "poisson", "mean_loops": 4.0, "max_loops": 9}
  config["model"]["depth"] |= {"grad_loops": 2, "curriculum": "linear"}
  config["parallel"] |= {"strategy": strategy}
  experiment = jobs.build(config)
  strategy = parallel.make(config["parallel"])
  compiled, state, depths = strategy.compile_step(experiment.train_step()), None, []
  state = experiment.create_state()
  for number in range(5):
    batch = strategy.split(experiment.pipeline.batch_at(number))
    caplog.clear()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
      state, figures = compiled(state, batch)
    depths.append(float(figures["loops/max"][0]))
    said = [record.getMessage() for record in caplog.records]
    compilations = [line for line in said if line.startswith("Compiling")]
    assert bool(compilations) == (number == 0), compilations
  assert len(set(depths)) > 1
