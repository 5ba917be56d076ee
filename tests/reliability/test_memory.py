"""A long run holds no more memory, files and threads at its end than when it had warmed up."""

import collections
import contextlib
import gc
import io
import os
import threading

import numpy as np
import pytest

from looped_lm import jobs
from looped_lm.train import window

pytestmark = pytest.mark.slow

STEPS = 2000
BYTES_PER_STEP = 2000


def train(config, workdir):
  with contextlib.redirect_stdout(io.StringIO()):
    jobs.run("train", config, workdir=str(workdir), overrides={}, allow_config_change=False)


def resident_bytes():
  with open("/proc/self/statm") as file:
    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def short(tiny_config, *, total_steps, every):
  config = tiny_config()
  config["train"] |= {"total_steps": total_steps, "log_every_steps": 10}
  config["train"] |= {"eval_every_steps": every, "save_every_steps": every}
  config["evals"] |= {"names": ("held_out",)}
  return config


def test_memory_does_not_grow(tiny_config, tmp_path, monkeypatch):
  """2,000 steps, 20 evaluations and 20 checkpoints; the first half is warm-up."""
  add, seen = window.add, {}

  def measured(*arguments):
    step = arguments[2]
    if step % 20 == 0:
      gc.collect()
      seen[step] = resident_bytes()
    return add(*arguments)

  monkeypatch.setattr(window, "add", measured)
  train(short(tiny_config, total_steps=STEPS, every=STEPS // 20), tmp_path)
  steps = np.array([step for step in seen if step > STEPS // 2])
  slope = np.polyfit(steps, [seen[step] for step in steps], 1)[0]
  print(f"{slope:.0f} bytes per step; {seen[STEPS // 2] / 1e6:.0f} MB, {seen[STEPS] / 1e6:.0f} MB")
  assert slope < BYTES_PER_STEP


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
  for name in ("first", "second", "third"):
    config = short(tiny_config, total_steps=20, every=5)
    config["evals"]["final_names"] = ("loop_diagnostics",)
    train(config, tmp_path / name)
    gc.collect()
    files.append(collections.Counter(open_files()))
    tasks.append(len(os.listdir("/proc/self/task")))
    threads.append(threading.active_count())
  assert not [file for file in files[2] if str(tmp_path) in file]
  assert files[2] - files[1] == collections.Counter()
  assert threads[2] == threads[1]
  # Pools below may still grow, but not with every run.
  assert not tasks[0] < tasks[1] < tasks[2]
