"""What is looked at with parameters that no device holds whole."""

import jax
import numpy as np
import pytest

from looped_lm import jobs
from looped_lm.train.parallel.mesh import MeshStrategy


@pytest.mark.slow
def test_views_from_a_mesh_are_one_device_s(tiny_config):
  config = tiny_config("quickstart")
  config["evals"] |= {"names": (), "final_names": ("logit_lens", "attention_maps")}
  config["evals"]["logit_lens"] = {"top": 3}
  experiment = jobs.build(config)
  evaluators = experiment.evaluators()
  params = jax.jit(experiment.model.init)(jax.random.key(0))
  mesh = MeshStrategy(fsdp=2, tensor=2)
  split = mesh.one_copy(mesh.replicate(params))
  table = split["embed"]["embedding"]
  assert {shard.data.size for shard in table.addressable_shards} == {table.size // 4}
  wanted, found = evaluators.views(params), evaluators.views(split)
  assert sorted(found) == ["attention_maps", "logit_lens"]
  for name, arrays in wanted.items():
    for part, array in arrays.items():
      if np.issubdtype(array.dtype, np.floating):
        np.testing.assert_allclose(found[name][part], array, atol=1e-5)
      else:
        np.testing.assert_array_equal(found[name][part], array)
