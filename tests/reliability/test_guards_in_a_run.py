"""What stops a run, or speaks of it, does so in a run and not only where it is called alone."""

import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

from looped_lm import jobs
from looped_lm.errors import UserError
from looped_lm.evals.suite import Suite
from looped_lm.jobs import training
from looped_lm.train import parallel, watchdog
from looped_lm.train.checkpoint import Checkpoints, saved_steps
from looped_lm.train.milestones import Milestones

pytestmark = pytest.mark.slow

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "looped_gpt_bert.py"
TRAIN = {"log_every_steps": 1, "eval_every_steps": 0, "save_every_steps": 4, "keep_latest": 9}
TRAIN |= {"total_steps": 12}


class Faulty(parallel.Pmap):
  """Traces the step once, because all runs here take the same; and spoils what comes out of it."""

  compiled = None

  def __init__(self):
    super().__init__()
    self.fault = lambda state: state

  def compile_step(self, train_step):
    self.compiled = self.compiled or super().compile_step(train_step)

    def step(state, batch):
      state, figures = self.compiled(state, batch)
      return self.fault(state), figures

    return step


@pytest.fixture(scope="module")
def shared():
  """The strategy of all runs here; none draws its report."""
  strategy = Faulty()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(parallel, "make", lambda _: strategy)
    patch.setattr(training, "print_report", lambda *_: None)
    yield strategy


@pytest.fixture
def strategy(shared):
  yield shared
  shared.fault = lambda state: state


@pytest.fixture
def config(tiny_config):
  config = tiny_config()
  config["train"] |= TRAIN
  config["evals"] |= {"names": ()}
  return config


def run(mode, config, workdir, **flags):
  flags = {"overrides": {}, "allow_config_change": False} | flags
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    jobs.run(mode, config, workdir=str(workdir), **flags)
  return printed.getvalue()


def reached_at(config, step):
  """The number of words that a step is the first to have shown."""
  return jobs.build(config).pipeline.words_seen(step)


def one_device_differs(state):
  """What a device that computes wrongly does to the copy that it holds."""
  decay = state.params["injection"]["A_log"]
  copies = [shard.data for shard in decay.addressable_shards]
  copies[2] = copies[2] + jnp.float32(0.125)
  decay = jax.make_array_from_single_device_arrays(decay.shape, decay.sharding, copies)
  injection = state.params["injection"] | {"A_log": decay}
  return state.replace(params=state.params | {"injection": injection})


@pytest.mark.parametrize(("milestone", "stops_at"), [(None, 8), (6, 6)])
def test_copies_that_differ_stop_the_run_before_they_are_saved(
  strategy, config, tmp_path, milestone, stops_at
):
  if milestone is not None:
    config["train"]["save_at_words"] = (reached_at(config, milestone),)
  strategy.fault = lambda state: one_device_differs(state) if state.step == 5 else state
  message = (
    rf"^At step {stops_at} the devices hold different values of state.params\['injection'\]"
    r"\['A_log'\].*; the last good checkpoint is step 4\."
  )
  with pytest.raises(UserError, match=message):
    run("train", config, tmp_path)
  assert saved_steps(str(tmp_path)) == [4]
  assert not (tmp_path / "milestones").exists()


class Dog(watchdog.Watchdog):
  """A watchdog whose time goes on as a test says, and that keeps what it says."""

  def __init__(self, seconds, *, where):
    self.now, self.said, self.heard, self.on_guard = 0.0, [], threading.Event(), False
    super().__init__(seconds, where=where, report=self.hear, clock=lambda: self.now)

  def hear(self, line):
    self.said.append(line)
    self.heard.set()

  def __enter__(self):
    self.on_guard = True
    return super().__enter__()

  def __exit__(self, *exception):
    self.on_guard = False
    super().__exit__(*exception)

  def hang(self):
    """A minute in which nothing ends; the thread that watches must find out by itself."""
    self.heard.clear()
    self.now += 60
    assert self.heard.wait(20), f"Nobody noticed; said so far: {self.said}"


@pytest.fixture
def dogs(monkeypatch):
  """The watchdog of each run, the latest last."""
  made = []

  def make(*arguments, **settings):
    made.append(Dog(*arguments, **settings))
    return made[-1]

  monkeypatch.setattr(watchdog, "Watchdog", make)
  return made


def hang_in(owner, name, dogs, monkeypatch):
  """Lets a method hang where it is called under guard, and not by another one that hangs."""
  function = getattr(owner, name)

  def hanging(*arguments, **settings):
    dog = dogs[-1]
    if not dog.on_guard:
      return function(*arguments, **settings)
    dog.hang()
    dog.on_guard = False
    try:
      return function(*arguments, **settings)
    finally:
      dog.on_guard = True

  monkeypatch.setattr(owner, name, hanging)


def test_the_watchdog_names_whatever_hangs_and_nothing_else(
  strategy, config, tmp_path, dogs, monkeypatch
):
  config["train"] |= {"watchdog_seconds": 1.0, "eval_every_steps": 8}
  config["train"]["save_at_words"] = (reached_at(config, 10),)

  def in_time(state):
    """One step does not take too long; two would."""
    dogs[-1].now += 0.75
    dogs[-1].look()
    return state

  strategy.fault = in_time
  with monkeypatch.context() as patch:
    patch.setattr(Suite, "figures", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    assert "Stopped after step 8" in run("train", config, tmp_path)
  assert dogs[-1].said == []

  def hang_at_step_9(state):
    if state.step == 9:
      dogs[-1].hang()
    return state

  strategy.fault = hang_at_step_9
  for owner, name in ((Suite, "figures"), (Milestones, "save")):
    hang_in(owner, name, dogs, monkeypatch)
  for name in ("save", "wait"):
    hang_in(Checkpoints, name, dogs, monkeypatch)
  run("train", config, tmp_path)
  said = [re.split(" (?:has not ended|went on) after 60 s", line)[0] for line in dogs[-1].said]
  assert said[::2] == [
    f"Watchdog: {what}"
    for what in (
      "the evaluation of step 8",
      "step 9",
      "the milestone of step 10",
      "the evaluation of step 12",
      "the checkpoint of step 12",
      "writing the last checkpoint",
    )
  ]
  assert said[1::2] == said[:-1:2], "each but the last is said to have gone on"


FULL_AT_STEP_8 = """
import resource
from looped_lm import main
from looped_lm.train.checkpoint import Checkpoints

save = Checkpoints.save

def full(self, state, **given):
  if state.step == 8:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
  return save(self, state, **given)

Checkpoints.save = full
main.main()
"""


def figures(workdir):
  """All lines of the log but for the only figure that is a time."""
  records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  for record in records:
    record.pop("train/tokens_per_second", None)
  return records


def test_a_disk_that_fills_stops_the_run_and_with_room_it_goes_on(strategy, config, tmp_path):
  """A limit on the size of files stands for the full disk: writing step 8 fails half-way."""
  calm, full = tmp_path / "calm", tmp_path / "full"
  run("train", config, calm)
  settings = [f"--config.train.{name}={value}" for name, value in TRAIN.items()]
  done = subprocess.run(
    [
      sys.executable,
      "-c",
      FULL_AT_STEP_8,
      f"--config={CONFIG}:tiny",
      f"--workdir={full}",
      "--config.evals.names=()",
      *settings,
    ],
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 1, done.stdout + done.stderr
  (line,) = done.stderr.splitlines()
  assert line.startswith(f"looped_lm: No room to write checkpoint 8 in {full}/checkpoints; ")
  assert "the last good one is step 4." in line
  assert saved_steps(str(full)) == [4]
  assert f"Resuming {full} at step 4." in run("train", config, full)
  assert saved_steps(str(full)) == [4, 8, 12]
  assert figures(full) == figures(calm)


def huge(state):
  """Parameters that are finite, and nothing that is computed from them."""
  return state.replace(params=jax.tree.map(lambda x: jnp.full_like(x, 3e38), state.params))


@pytest.mark.parametrize(("log_every_steps", "stops_at"), [(1, 6), (100, 8)])
def test_a_loss_that_is_not_finite_stops_the_run_and_is_seen_again(
  strategy, config, tmp_path, log_every_steps, stops_at
):
  """By the log, a line later; or by the next checkpoint, which would hold what came of it."""
  config["train"]["log_every_steps"] = log_every_steps
  taken = []

  def spoil(state):
    taken.append(int(state.step))
    return huge(state) if state.step == 4 else state

  strategy.fault = spoil
  with pytest.raises(UserError) as error:
    run("train", config, tmp_path)
  text = str(error.value)
  rows = jobs.build(config).pipeline.indices(4).tolist()
  assert text.startswith("Step 5 is not finite: loss nan nats, ")
  assert f"on training rows {', '.join(map(str, rows))}; " in text
  assert "the last good checkpoint is step 4." in text
  assert taken[-1] == stops_at
  assert saved_steps(str(tmp_path)) == [4]

  strategy.fault = lambda state: state
  (step,) = re.findall(r"with --mode=replay --step=(\d+)\.", text)
  printed = run("replay", config, tmp_path, replay_step=int(step))
  assert "Starting from the checkpoint of step 4." in printed
  assert [int(row) for row in re.findall(r"  row (\d+): ", printed)] == rows
  assert re.search(r"^train/loss_nats +nan$", printed, re.M)
  assert re.search(r"^Not finite after step 5: parameters\[", printed, re.M)
