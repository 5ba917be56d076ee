"""A long run holds no more memory, files and threads at its end than when it had warmed up."""

import collections
import contextlib
import gc
import io
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from looped_lm import jobs

pytestmark = pytest.mark.nightly

SCRIPT = pathlib.Path(__file__).with_name("memory_of_a_run.py")
STEPS, EVERY = 4000, 100
BYTES_PER_STEP = 2000


def train(config, workdir):
  with contextlib.redirect_stdout(io.StringIO()):
    jobs.run("train", config, workdir=str(workdir), overrides={}, allow_config_change=False)


def short(tiny_config, *, total_steps, every):
  config = tiny_config()
  config["train"] |= {"total_steps": total_steps, "log_every_steps": 10}
  config["train"] |= {"eval_every_steps": every, "save_every_steps": every}
  config["evals"] |= {"names": ("held_out",)}
  return config


def test_memory_does_not_grow(tmp_path):
  """2,000 steps, 20 evaluations and 20 checkpoints, after as many that warm up.

  Nearly all of what is left is what TensorStore keeps of every array it writes, and the bound is a
  little above it (docs/reliability.md).
  """
  process = subprocess.run(
    [sys.executable, str(SCRIPT), str(tmp_path), str(STEPS), str(EVERY)],
    env=os.environ | {"MALLOC_ARENA_MAX": "1"},
    capture_output=True,
    text=True,
    timeout=1800,
  )
  assert process.returncode == 0, process.stdout + process.stderr
  seen = json.loads(process.stdout.splitlines()[-1])
  assert len(seen) == STEPS // EVERY
  steps, resident = np.array([point for point in seen if point[0] > STEPS // 2]).T
  bytes_per_step = np.polyfit(steps, resident, 1)[0]
  print(f"{bytes_per_step:.0f} bytes per step;", [round(each / 1e6, 2) for _, each in seen])
  assert bytes_per_step < BYTES_PER_STEP


def open_files():
  """What each handle of this process is; pipes and sockets by kind."""
  names = []
  for number in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):
      names.append(os.readlink(f"/proc/self/fd/{number}").split(":")[0])
  return sorted(names)


def test_files_and_threads_are_closed(tiny_config, tmp_path):
  """What the first run leaves (pools of JAX and of TensorStore) serves the others, too."""
  files, tasks, threads = [], [], []
  for name in ("first", "second", "third", "fourth"):
    config = short(tiny_config, total_steps=20, every=5)
    config["evals"]["final_names"] = ("loop_diagnostics",)
    train(config, tmp_path / name)
    gc.collect()
    # A thread that has been told to end may need a moment on a busy machine.
    end = time.monotonic() + 30
    while threads and threading.active_count() > threads[-1] and time.monotonic() < end:
      time.sleep(0.1)
    files.append(collections.Counter(open_files()))
    tasks.append(len(os.listdir("/proc/self/task")))
    threads.append(threading.active_count())
  print(tasks, threads)
  assert not [file for file in files[-1] if str(tmp_path) in file]
  assert files[-1] - files[-2] == collections.Counter()
  assert threads[-1] == threads[-2]
  # Pools below may still grow, but not with every run.
  assert not tasks[-3] < tasks[-2] < tasks[-1]
