"""Which rematerialisation is chosen, and what is said of it."""

import jax
import pytest

from looped_lm import jobs
from looped_lm.errors import UserError
from looped_lm.jobs import experiment
from looped_lm.models import looped
from looped_lm.scaling import flops, memory, remat


@pytest.fixture(scope="module")
def whole(tiny_config):
  """The default config's model group, and its parameters' shapes."""
  model = tiny_config(arguments="")["model"] | {"compute_dtype": "float32"}
  return model, flops.abstract_params(looped.build(model, vocab_size=8192))


def choose(whole, gigabytes, *, platform="gpu", held=1.0):
  model, params = whole
  size = {"rows": 32, "seq_len": 128, "chunk_tokens": 0}
  room = {"held_bytes": int(held * 1e9), "device_bytes": int(gigabytes * 1e9)}
  return remat.choose(model, params, **size, **room, platform=platform)


def estimates(whole):
  model, params = whole
  return {
    name: memory.activation_bytes(model | {"remat": name}, params, rows=32, seq_len=128) / 1e9
    for name in ("none", "attention", "dots", "full")
  }


def test_more_memory_takes_what_recomputes_less(whole):
  sizes = estimates(whole)
  assert sorted(sizes, key=sizes.get, reverse=True) == list(sizes)
  for name, size in sizes.items():
    assert choose(whole, 1.0 + size / 0.7 + 0.01)[0] == name
  # A little less than needed is the next one.
  assert choose(whole, 1.0 + sizes["dots"] / 0.7 - 0.01)[0] == "full"


def test_what_a_device_holds_besides_counts(whole):
  assert choose(whole, 60)[0] == "none"
  assert choose(whole, 60, held=50)[0] != "none"


def test_on_cpu_everything_is_never_kept(whole):
  assert choose(whole, 1000, platform="cpu")[0] == "attention"


def test_the_line_gives_the_estimates_and_what_is_free(whole):
  _, line = choose(whole, 16)
  for name, size in estimates(whole).items():
    assert f"{name} {size:.2f}" in line
  assert "15.00 are free" in line
  assert "micro_batches" not in line


def test_where_nothing_fits_the_smallest_is_taken_and_help_is_named(whole):
  name, line = choose(whole, 1.1)
  assert name == "full"
  assert "None is sure to fit: raise train.micro_batches." in line


def test_a_run_takes_the_chosen_one_and_knows_why(tiny_config):
  config = tiny_config()
  assert config["model"]["remat"] == "auto"
  built = jobs.build(config)
  assert built.config["model"]["remat"] == "attention"
  assert built.choice.startswith("model.remat='auto' takes 'attention'")
  assert config["model"]["remat"] == "auto"
  assert jobs.build(built.config).choice == ""


def test_sharded_state_leaves_more_room(tiny_config, monkeypatch):
  seen = []
  monkeypatch.setattr(remat, "choose", lambda *_, **told: seen.append(told) or ("full", "line"))
  config = tiny_config()
  config["model"]["remat"] = "auto"
  for parallel in ({"strategy": "pmap"}, {"strategy": "mesh", "fsdp": 2, "tensor": 2}):
    config["parallel"] |= parallel
    experiment.rematerialised(config, vocab_size=600)
  # 16 P of state and 4 P of gradients; 16 P / 4, and 4 P / 2 each of gradients and parameters read.
  assert seen[1]["held_bytes"] == seen[0]["held_bytes"] * 8 // 20
  # The devices of a tensor group share rows.
  assert seen[1]["rows"] == 2 * seen[0]["rows"]


def test_a_system_that_does_not_tell_its_memory_asks_for_a_choice(monkeypatch):
  monkeypatch.setattr(remat.os, "sysconf", lambda _: (_ for _ in ()).throw(ValueError()))
  with pytest.raises(
    UserError, match="does not tell; choose 'none', 'attention', 'dots' or 'full'"
  ):
    remat.device_bytes(jax.devices()[0])
