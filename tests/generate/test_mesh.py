"""Text from parameters that are split over a mesh: the same as from one device's."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import jobs
from looped_lm.data import tokenizer as tokenizers
from looped_lm.generate import continuation, infill, terminal
from looped_lm.generate.continuation import Generator
from looped_lm.generate.infill import Infiller
from looped_lm.generate.placing import together
from looped_lm.generate.sampling import Sampling
from looped_lm.models import looped
from looped_lm.nn.decode import Decoding
from looped_lm.train import checkpoint, run_record
from looped_lm.train.parallel.mesh import MeshStrategy
from looped_lm.types import Continuation, State

TEXTS = ["The old dog sees the small cat.", "A cat sat on the mat, and 12 dogs ran."] * 30
# Four rows divide over all devices, three over none.
PROMPTS = ["The old dog", "A", "", "the small cat sees the old dog on the mat and"]
MESHES = {"fsdp and tensor": (2, 2), "data": (1, 1)}
DECODING = Decoding(num_loops=2)


@pytest.fixture(scope="module")
def tokenizer():
  return tokenizers.train(TEXTS, vocab_size=300, min_frequency=2, add_prefix_space=True)


@pytest.fixture(scope="module")
def subject(tiny_config, tokenizer):
  settings = tiny_config()["model"] | {"num_loops": 2}
  model = looped.build(settings, vocab_size=tokenizer.vocab_size)
  params = jax.jit(model.init)(jax.random.key(0))
  # Away from the start, so that no bias is 0 and no two logits are close.
  params = jax.tree.map(
    lambda x: 2 * x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), params
  )
  return {"model": model, "params": params, "tokenizer": tokenizer}


@pytest.fixture(scope="module", params=MESHES.values(), ids=MESHES.keys())
def mesh(request):
  fsdp, tensor = request.param
  return MeshStrategy(fsdp=fsdp, tensor=tensor)


@pytest.fixture(scope="module")
def alone(subject):
  return generator(subject).run(PROMPTS)[0]


def generator(subject, **changes):
  settings = {"sampling": Sampling(temperature=0.0), "decoding": DECODING, "max_new_tokens": 4}
  return Generator(**subject | settings | changes)


def split(params):
  """Of the parameters that no device holds whole: whole shape -> the shape that one holds."""
  pairs = {x.shape: {s.data.shape for s in x.addressable_shards} for x in jax.tree.leaves(params)}
  return {whole: parts for whole, parts in pairs.items() if whole not in parts}


@pytest.mark.slow
def test_greedy_text_is_one_device_s(subject, alone, mesh):
  placed = generator(subject, params=mesh.replicate(subject["params"]), lay=mesh.laid)
  assert placed.run(PROMPTS)[0] == alone


@pytest.mark.slow
def test_rows_that_do_not_divide_give_the_same_text(subject, alone):
  mesh = MeshStrategy(fsdp=1, tensor=1)
  placed = generator(subject, params=mesh.replicate(subject["params"]), lay=mesh.laid)
  assert placed.run(PROMPTS[:3])[0] == alone[:3]


def advance(subject, params, lay):
  """The step's logits, of two chunks in turn, and the cache after them."""
  step = jax.jit(functools.partial(continuation._next_logits, subject["model"], DECODING, lay))
  past = continuation._empty_cache(subject["model"], 4, 12, DECODING, lay, params)
  real_BS = np.arange(12) >= np.arange(4)[:, None]
  found = []
  for start, length in ((0, 8), (8, 1)):
    tokens_BT = 20 + np.arange(4 * length, dtype=np.int32).reshape(4, length)
    chunk = Continuation(tokens_BT=tokens_BT, start=np.int32(start), real_BS=real_BS)
    logits_BV, _, past = step(params, past, chunk)
    found.append(np.asarray(logits_BV))
  return np.stack(found), step.lower(params, past, chunk).compile().as_text(), past


@pytest.fixture(scope="module")
def one(subject):
  return advance(subject, subject["params"], together)


@pytest.fixture(scope="module")
def four(subject, mesh):
  placed = mesh.replicate(subject["params"])
  return mesh, placed, advance(subject, placed, mesh.laid)


@pytest.mark.slow
def test_logits_are_one_device_s(one, four):
  assert np.abs(four[2][0] - one[0]).max() < 1e-5
  assert np.ptp(one[0]) > 1


@pytest.mark.slow
def test_rows_and_heads_of_the_cache_are_split(four):
  mesh, _, (_, _, past) = four
  for store in jax.tree.leaves(past["cache"]):
    slots, rows, heads, capacity, head_dim = store.shape
    part = (slots, rows // mesh.data, heads // mesh.tensor, capacity, head_dim)
    assert {shard.data.shape for shard in store.addressable_shards} == {part}
  for kept in jax.tree.leaves(past["fixed"]):
    buckets, heads, head_dim = kept.shape
    part = (buckets, heads // mesh.tensor, head_dim)
    assert {shard.data.shape for shard in kept.addressable_shards} == {part}


@pytest.mark.slow
def test_no_parameter_is_gathered_for_a_token(four):
  """Neither whole nor over one of its axes, in the program of a step."""
  mesh, placed, (_, program, _) = four
  parts = split(placed)
  assert bool(parts) == (mesh.fsdp * mesh.tensor > 1)
  larger = set(parts)
  for whole, held in parts.items():
    for part in held:
      larger |= {(whole[0], *part[1:]), (*part[:-1], whole[-1])} - {part}
  found = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather\(", program)
  gathered = {tuple(int(n) for n in shape.split(",") if n and n != "1") for shape in found}
  # Activations begin with the rows, and no parameter has 4 of anything.
  assert not gathered & larger


@pytest.mark.slow
def test_a_filled_mask_is_one_device_s(subject, mesh):
  settings = {"sampling": Sampling(temperature=0.0), "num_loops": 2}
  texts = ["The <mask> dog sees the<mask> cat."]
  placed = subject | {"params": mesh.replicate(subject["params"])}
  (wanted,) = Infiller(**subject, **settings).run(texts)
  (found,) = Infiller(**placed, **settings, lay=mesh.laid).run(texts)
  assert (found.text, found.fills) == (wanted.text, wanted.fills)
  assert found.probabilities == pytest.approx(wanted.probabilities, abs=1e-5)
  read = [
    infill._program(subject["model"], 2, frozenset(), lay)(
      params, np.arange(20, 52, dtype=np.int32)[None], np.int32(9)
    )[0][:9]
    for params, lay in ((subject["params"], together), (placed["params"], mesh.laid))
  ]
  assert np.abs(np.asarray(read[0]) - np.asarray(read[1])).max() < 1e-5


@pytest.fixture(scope="module")
def workdir(tiny_config, subject, tmp_path_factory):
  """A folder with what a run leaves: parameters, tokenizer, record."""
  place, config = tmp_path_factory.mktemp("run"), tiny_config()
  config["model"] |= {"num_loops": 2}
  config["evals"] |= {"weights": "raw"}
  state = State(
    step=jnp.int32(1), params=subject["params"], ema=None, opt_state=(), key=jax.random.key(0)
  )
  with checkpoint.Checkpoints(
    str(place / "checkpoints"), keep_latest=1, config=config
  ) as checkpoints:
    checkpoints.save(state, data={"next_step": 1}, weights_alone=True)
  run_record.write(str(place), config, overrides={}, changes={}, step=0)
  subject["tokenizer"].save(str(place / "tokenizer.json"))
  return config, place


@pytest.mark.slow
@pytest.mark.parametrize("task", ["continue", "infill"])
def test_the_command_gives_each_device_its_part_and_prints_the_same(
  subject, workdir, task, monkeypatch, capsys
):
  config, place = workdir
  seen, printed = [], []

  def spied(function):
    def spy(made, *arguments, **settings):
      seen.append(split(made.params))
      function(made, *arguments, **settings)
      seen.append(split(made.params))

    return spy

  monkeypatch.setattr(terminal, "go_on", spied(terminal.go_on))
  monkeypatch.setattr(terminal, "fill", spied(terminal.fill))
  given = {"prompts": ["The<mask> dog"] if task == "infill" else PROMPTS, "task": task}
  given |= {"max_new_tokens": 3, "temperature": 0.0}
  for parallel in ({"strategy": "pmap"}, {"strategy": "mesh", "fsdp": 2, "tensor": 2}):
    changed = config | {"parallel": config["parallel"] | parallel}
    changed["generate"] = config["generate"] | given
    jobs.run("generate", changed, workdir=str(place), overrides={}, allow_config_change=False)
    printed.append(re.sub(r"tokens in .* compiled", "", capsys.readouterr().out))
  assert printed[0] == printed[1]
  assert seen[:2] == [{}, {}]
  table = subject["params"]["embed"]["embedding"].shape
  assert seen[2] == seen[3]
  assert seen[2].get(table) == {(table[0] // 2, table[1] // 2)}


def test_what_one_process_looks_at_is_split_over_its_devices(subject, mesh):
  params = subject["params"]
  copied = mesh.one_copy(mesh.replicate(params))
  jax.tree.map(np.testing.assert_array_equal, copied, params)
  table = copied["embed"]["embedding"]
  assert {shard.data.size for shard in table.addressable_shards} == {table.size // 4}
