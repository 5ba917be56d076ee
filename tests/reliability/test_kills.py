"""kill -9 at random moments of a run, saving included, and each time the same command again."""

import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from looped_lm import jobs
from looped_lm.train.checkpoint import Checkpoints

pytestmark = pytest.mark.nightly  # Thirty starts of the program.

SERVER = pathlib.Path(__file__).with_name("fork_server.py")
TOTAL_STEPS = 240
KILLS = 30
MOMENTS = ("starting", "stepping", "saving", "saving", "anywhere")


class Life:
  """One start of the run; the server has one at a time."""

  def __init__(self, server, workdir):
    self.server, self.workdir = server, workdir
    self.checkpoints = workdir / "checkpoints"
    server.stdin.write(f"{workdir}\n")
    server.stdin.flush()
    self.pid = int(server.stdout.readline())

  def end(self):
    return int(self.server.stdout.readline())

  def kill(self):
    # A child that has just ended is gone for good: the test has made the run too short.
    os.kill(self.pid, signal.SIGKILL)
    assert self.end() == -signal.SIGKILL, self.said()[-3000:]

  def said(self):
    log = self.workdir / "log.txt"
    return log.read_text(errors="replace") if log.exists() else ""

  def names(self):
    with contextlib.suppress(FileNotFoundError):
      return os.listdir(self.checkpoints)
    return []

  def until(self, happened):
    end = time.monotonic() + 300
    while not happened():
      assert time.monotonic() < end, self.said()[-3000:]
      time.sleep(0.002)

  def steps(self):
    return self.said().count("\nstep ")


def unfinished(names):
  return [name for name in names if "tmp" in name]


def wait_for(moment, life, rng):
  """Waits for a random moment of a kind."""
  if moment == "starting":
    time.sleep(rng.uniform(0, 3))
    return
  before = life.steps()
  life.until(lambda: life.steps() > before)
  if moment == "stepping":
    target = before + rng.randint(2, 7)
    life.until(lambda: life.steps() > target)
  elif moment == "saving":
    for _ in range(rng.randint(1, 2)):
      life.until(lambda: not unfinished(life.names()))
      life.until(lambda: unfinished(life.names()))
    time.sleep(rng.choice([0, rng.uniform(0, 0.03)]))
  else:
    time.sleep(rng.uniform(0, 0.3))


@pytest.fixture(scope="module")
def server():
  process = subprocess.Popen(
    [sys.executable, "-W", "ignore", str(SERVER), str(TOTAL_STEPS)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"},
  )
  yield process
  process.stdin.close()
  process.stdout.close()
  process.wait(timeout=60)


@pytest.fixture(scope="module")
def runs(server, tmp_path_factory):
  """An undisturbed run and one that was killed again and again; what was seen at the kills."""
  calm, killed = (tmp_path_factory.mktemp(name) for name in ("calm", "killed"))
  life = Life(server, calm)
  assert life.end() == 0, life.said()[-3000:]
  rng = random.Random(20)
  seen = collections.Counter()
  for number in range(KILLS):
    moment = MOMENTS[number % len(MOMENTS)]
    life = Life(server, killed)
    wait_for(moment, life, rng)
    life.kill()
    seen[moment] += 1
    seen["a checkpoint was half written"] += bool(unfinished(life.names()))
  life = Life(server, killed)
  assert life.end() == 0, life.said()[-3000:]
  print(dict(seen), life.said().count("Resuming"))
  return calm, killed, seen


def test_the_kills_were_at_all_moments(runs):
  calm, killed, seen = runs
  assert sum(seen[moment] for moment in set(MOMENTS)) == KILLS
  assert seen["a checkpoint was half written"] >= 3
  starts = json.loads((killed / "run.json").read_text())["starts"]
  steps = [start["step"] for start in starts]
  assert steps == sorted(steps), "no start may go on from an older checkpoint than the one before"
  assert len(set(steps)) >= 8
  assert "Traceback" not in (killed / "log.txt").read_text()


def test_the_end_is_bit_for_bit_that_of_the_undisturbed_run(runs, tiny_config):
  experiment = jobs.build(tiny_config())
  like = experiment.strategy.like_saved(experiment.abstract_state())
  states = []
  for workdir in runs[:2]:
    with Checkpoints(str(workdir / "checkpoints"), keep_latest=2, config={}) as checkpoints:
      assert checkpoints.latest_step() == TOTAL_STEPS
      state, data = checkpoints.restore(like)
      states.append((state.replace(key=jax.random.key_data(state.key)), data))
  (ours, our_data), (theirs, their_data) = states
  assert our_data == their_data
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_the_log_is_that_of_the_undisturbed_run(runs):
  def figures(workdir):
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if k != "train/tokens_per_second"} for r in records]

  assert figures(runs[0]) == figures(runs[1])
