"""Prints the resident bytes of a run as it goes on; for test_memory.py.

A process of its own, because the allocator of glibc is told at a process's start (MALLOC_ARENA_MAX)
to keep one heap for all threads: what one has freed is then reused by all, and what stays is held.
"""

import ctypes
import gc
import json
import os
import sys

import jax

from looped_lm import jobs
from looped_lm.configuration import sibling
from looped_lm.train import window

CONFIG = os.path.join(os.path.dirname(__file__), "..", "..", "configs", "x.py")


def resident_bytes():
  gc.collect()
  getattr(ctypes.CDLL(None), "malloc_trim", lambda keep: None)(0)
  with open("/proc/self/statm") as file:
    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def train(workdir, steps, every):
  """Gives pairs of step and bytes."""
  config = sibling(CONFIG, "looped_gpt_bert", "tiny").to_dict()
  config["train"] |= {"total_steps": steps, "log_every_steps": 10}
  config["train"] |= {"eval_every_steps": every, "save_every_steps": every}
  config["evals"] |= {"names": ("held_out",)}
  add, seen = window.add, []

  def measured(*arguments):
    step = arguments[2]
    # Before a save begins and long after the one before it has ended.
    if step % every == every - 1:
      jax.block_until_ready(arguments[1])  # Else steps in flight would be counted.
      seen.append((step, resident_bytes()))
    return add(*arguments)

  window.add = measured
  jobs.run("train", config, workdir=workdir, overrides={}, allow_config_change=False)
  return seen


if __name__ == "__main__":
  print(json.dumps(train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
