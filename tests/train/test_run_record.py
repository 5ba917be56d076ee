"""A run's record says what it was, and a workdir is not mixed up with another's."""

import json

import pytest

from looped_lm.errors import UserError
from looped_lm.train import run_record

CONFIG = {
  "seed": 3,
  "data": {"paths": ("a.txt", "b.txt"), "seq_len": 128},
  "train": {"log_every_steps": 10, "ema_decay": 0.0},
}


def changed(**fields):
  config = json.loads(json.dumps(CONFIG))
  for name, value in fields.items():
    group, field = name.split("__")
    config[group][field] = value
  return config


def start(workdir, config, *, allow_change=False, free=(), overrides=None, step=0):
  changes = run_record.check_same(str(workdir), config, allow_change=allow_change, free=free)
  run_record.write(str(workdir), config, overrides=overrides or {}, changes=changes, step=step)
  return changes


def test_the_record_of_a_start(tmp_path):
  start(tmp_path / "run", CONFIG, overrides={"data.seq_len": 128})
  assert json.loads((tmp_path / "run/config.json").read_text())["data"]["seq_len"] == 128
  (entry,) = json.loads((tmp_path / "run/run.json").read_text())["starts"]
  assert entry["seed"] == 3
  assert entry["overrides"] == {"data.seq_len": 128}
  assert {"jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "python"} <= set(
    entry["versions"]
  )
  assert entry["versions"]["jax"]
  assert entry["devices"]["platform"] == "cpu"
  assert sum(entry["devices"]["kinds"].values()) > 0
  assert entry["time"].endswith("+00:00")


def test_a_resume_adds_a_start(tmp_path):
  start(tmp_path, CONFIG)
  assert start(tmp_path, CONFIG, step=20) == {}
  entries = json.loads((tmp_path / "run.json").read_text())["starts"]
  assert [entry["step"] for entry in entries] == [0, 20]


def test_another_config_is_refused_with_its_fields(tmp_path):
  start(tmp_path, CONFIG)
  other = changed(data__seq_len=64, data__paths=["a.txt"])
  with pytest.raises(UserError) as error:
    run_record.check_same(str(tmp_path), other, allow_change=False)
  assert "data.seq_len: 128 -> 64" in str(error.value)
  assert 'data.paths: ["a.txt", "b.txt"] -> ["a.txt"]' in str(error.value)
  assert "--allow_config_change" in str(error.value)
  assert "\n" not in str(error.value)


def test_a_new_or_missing_field_is_a_change(tmp_path):
  start(tmp_path, CONFIG)
  other = changed(data__extra=None)
  del other["train"]["ema_decay"]
  changes = run_record.check_same(str(tmp_path), other, allow_change=True)
  assert changes == {"train.ema_decay": (0.0, "(absent)"), "data.extra": ("(absent)", None)}


def test_the_flag_allows_and_records_a_change(tmp_path):
  start(tmp_path, CONFIG)
  other = changed(data__seq_len=64)
  assert start(tmp_path, other, allow_change=True) == {"data.seq_len": (128, 64)}
  entries = json.loads((tmp_path / "run.json").read_text())["starts"]
  assert entries[1]["config_changes"] == {"data.seq_len": {"old": 128, "new": 64}}
  assert run_record.check_same(str(tmp_path), other, allow_change=False) == {}


def test_free_fields_need_no_flag(tmp_path):
  start(tmp_path, CONFIG)
  other = changed(train__log_every_steps=1)
  free = ("train.log_every_steps",)
  assert start(tmp_path, other, free=free) == {"train.log_every_steps": (10, 1)}


def test_a_workdir_that_is_not_ours(tmp_path):
  (tmp_path / "checkpoints" / "5").mkdir(parents=True)
  with pytest.raises(UserError, match=r"no config\.json"):
    run_record.check_same(str(tmp_path), CONFIG, allow_change=True)
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(UserError, match="not JSON"):
    run_record.check_same(str(tmp_path), CONFIG, allow_change=False)


def test_an_unwritable_workdir_is_one_line(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="cannot be written"):
    run_record.write(str(tmp_path / "file" / "run"), CONFIG, overrides={}, changes={}, step=0)


def test_git_state_is_of_the_checkout_or_none():
  state = run_record.git_state()
  assert state is None or (len(state["commit"]) == 40 and isinstance(state["dirty"], bool))
