"""A killed run, started again, ends bit for bit where an undisturbed one ends."""

import json

import jax
import numpy as np
import pytest

from looped_lm import jobs
from looped_lm.train.checkpoint import Checkpoints

pytestmark = pytest.mark.slow  # Three processes; `make test` has the pieces in tests/train.

KILL_AT = 13


@pytest.fixture(scope="module")
def runs(program, tmp_path_factory):
  """Two finished runs: one undisturbed, one killed while it took step 13 and started again."""
  undisturbed, killed = (tmp_path_factory.mktemp(name) for name in ("undisturbed", "killed"))
  program.finish(undisturbed)
  program.kill_in(KILL_AT, killed)
  assert "Resuming" in program.finish(killed)
  return undisturbed, killed


def test_everything_ends_bit_for_bit_equal(runs, tiny_config):
  config = tiny_config()
  experiment = jobs.build(config)
  like = experiment.strategy.like_saved(experiment.abstract_state())
  states = []
  for workdir in runs:
    with Checkpoints(str(workdir / "checkpoints"), keep_latest=2, config=config) as checkpoints:
      assert checkpoints.latest_step() == 20
      states.append(checkpoints.restore(like))
  (ours, our_data), (theirs, their_data) = states
  assert our_data == their_data
  leaves = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
  for number, (a, b) in enumerate(leaves):
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
      a, b = jax.random.key_data(a), jax.random.key_data(b)
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=str(number))


def test_the_log_is_that_of_an_undisturbed_run(runs):
  def figures(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
      record.pop("train/tokens_per_second", None)  # The only figure that is a time.
    return records

  assert figures(runs[0]) == figures(runs[1])
  starts = json.loads((runs[1] / "run.json").read_text())["starts"]
  # From step 10, or from step 5 where the kill came before step 10 was written.
  assert [start["step"] for start in starts] in ([0, 5], [0, 10])
