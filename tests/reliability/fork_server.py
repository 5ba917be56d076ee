"""Trains in forked children, so that imports are paid once; run by test_kills.py.

Reads the folder of a run per line. Forks a child that trains there, prints its process id, waits
for it and prints its exit code. Nothing here touches a device: a fork of threads would hang.
"""

import os
import pathlib
import sys
import traceback

from looped_lm import jobs
from looped_lm.configuration import sibling

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
TRAIN = {"log_every_steps": 1, "save_every_steps": 3, "eval_every_steps": 20}


def make_config(total_steps):
  config = sibling(str(CONFIGS / "x.py"), "looped_gpt_bert", "tiny").to_dict()
  config["train"] |= TRAIN | {"total_steps": total_steps}
  config["evals"] |= {"names": ("held_out",)}
  return config


def train(config, workdir):
  os.makedirs(workdir, exist_ok=True)
  log = os.open(os.path.join(workdir, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  for number in (1, 2):
    os.dup2(log, number)
  sys.stdout = sys.stderr = os.fdopen(log, "w", buffering=1)
  try:
    code = jobs.run("train", config, workdir=workdir, overrides={}, allow_config_change=False)
  except BaseException:
    traceback.print_exc()
    code = 1
  sys.stdout.flush()
  os._exit(code)


def serve(config):
  for line in sys.stdin:
    child = os.fork()
    if child == 0:
      train(config, line.strip())
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
  serve(make_config(int(sys.argv[1])))
