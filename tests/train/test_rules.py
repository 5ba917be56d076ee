"""Which dimension of which array is split over which axis, and sizes that cannot be."""

import jax
from jax.sharding import PartitionSpec as P
import pytest

from looped_lm import jobs
from looped_lm.errors import UserError
from looped_lm.train import parallel
from looped_lm.train.parallel import rules

SETTINGS = {"strategy": "mesh", "fsdp": 1, "tensor": 1, "lost_process_seconds": 100}


@pytest.mark.parametrize(
  ("name", "shape", "fsdp", "tensor", "expected"),
  [
    ("params/embed/embedding", (600, 32), 4, 2, P("tensor", "fsdp")),
    ("params/embed/embedding", (600, 32), 4, 1, P("fsdp", None)),
    ("params/core/layers_0/attend/query/kernel", (32, 64), 2, 2, P("fsdp", "tensor")),
    ("params/core/layers_0/attend/out/kernel", (64, 32), 1, 2, P("tensor", None)),
    ("params/core/layers_3/out/kernel", (64, 32), 1, 2, P("tensor", None)),
    ("params/core/layers_0/qk/bias", (64,), 4, 2, P("tensor")),
    ("params/core/layers_0/out/bias", (64,), 4, 2, P(None)),
    ("opt_state/1/mu/core/layers_0/mlp/down/kernel", (64, 32), 2, 2, P("tensor", "fsdp")),
    ("ema/core/layers_0/feed/up/kernel", (32, 64), 2, 2, P("fsdp", "tensor")),
    ("opt_state/1/nu/core/layers_0/attend/out/kernel", (1, 2048), 2, 4, P(None, "fsdp")),
    ("params/head/down/kernel", (64, 32), 2, 2, P("fsdp", None)),
    ("params/anything/of/yours", (50, 64), 4, 2, P(None, "fsdp")),
    ("params/injection/A_log", (32,), 4, 2, P(None)),
    ("params/odd", (63, 65), 4, 1, P(None, None)),
    ("opt_state/1/count", (), 4, 2, P()),
  ],
)
def test_the_table(name, shape, fsdp, tensor, expected):
  assert rules.spec(name, shape, fsdp=fsdp, tensor=tensor) == expected


def test_a_size_that_does_not_divide_a_dimension_names_the_nearest():
  with pytest.raises(UserError, match=r"tensor=4 does not divide the 30 of 'mlp'.*nearest .* is 3"):
    rules.spec("core/layers_0/mlp/up/kernel", (32, 30), fsdp=1, tensor=4)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"strategy": "pmap", "fsdp": 2}, "parallel.fsdp=2 and parallel.tensor=1 need .*'mesh'"),
    ({"fsdp": 3}, "parallel.fsdp=3 x parallel.tensor=1 must divide the 4 devices.*fsdp is 2"),
    ({"fsdp": 4, "tensor": 2}, "parallel.fsdp=4 x parallel.tensor=2 must divide .*fsdp is 2"),
    ({"tensor": 3}, "parallel.tensor=3 must divide the 4 devices of a process.*nearest is 2"),
    ({"fsdp": 0}, "parallel.fsdp=0 must be at least 1"),
    ({"lost_process_seconds": 0}, "lost_process_seconds=0 must be at least 1"),
    ({"fdsp": 2}, "parallel.fdsp is not a setting"),
  ],
)
def test_sizes_that_cannot_be(change, message):
  with pytest.raises(UserError, match=message):
    parallel.make(SETTINGS | change)


@pytest.mark.parametrize(
  ("block", "core_block", "tensor", "message"),
  [
    ({"num_heads": 6}, {}, 4, r"tensor=4 must .* model\.block\.num_heads=6; the nearest .* is 2"),
    ({"num_heads": 4, "num_kv_heads": 2}, {}, 4, r"block\.num_kv_heads=2; the nearest .* is 2"),
    ({"num_heads": 4}, {"num_heads": 1}, 2, r"model\.core_block\.num_heads=1; the nearest .* is 1"),
  ],
)
def test_heads_stay_whole(block, core_block, tensor, message):
  model = {"block": block, "core_block": core_block}
  with pytest.raises(UserError, match=message):
    parallel.make(SETTINGS | {"tensor": tensor}).check_model(model)
  parallel.make(SETTINGS).check_model(model)
  parallel.make(SETTINGS | {"strategy": "pmap"}).check_model(model)


def test_a_config_whose_heads_do_not_split_is_refused_before_anything_is_built(tiny_config):
  config = tiny_config()
  config["parallel"] |= {"strategy": "mesh", "tensor": 4}
  with pytest.raises(UserError, match="num_heads=2; the nearest that does is 2"):
    jobs.check(config)


def test_rows_are_split_over_data_and_fsdp_alone():
  strategy = parallel.make(SETTINGS | {"fsdp": 2, "tensor": 2})
  strategy.check_batch(6, micro_batches=1)
  with pytest.raises(UserError, match="of 2 devices x 2 micro-batches = 4; the nearest is"):
    strategy.check_batch(6, micro_batches=2)
  with pytest.raises(UserError, match=r"evals\.batch_size=3 must be a multiple of 2"):
    strategy.check_eval_batch(3)


def test_state_is_split_and_no_device_holds_more_than_its_part(tiny_config):
  """Of the tiny default model all but small leaves are split, the optimiser's and the average's
  as the parameters'."""
  config = tiny_config()
  config["parallel"] |= {"strategy": "mesh", "fsdp": 4}
  experiment = jobs.build(config)
  like = experiment.strategy.like_saved(experiment.abstract_state())
  held = sum(
    jax.numpy.prod(jax.numpy.array(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize
    for x in jax.tree.leaves(like.replace(key=None))
  )
  total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(like.replace(key=None)))
  assert total / 4 <= held < total / 3.5
