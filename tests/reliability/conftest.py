"""The program as a process of its own, run to its end or killed."""

import pathlib
import signal
import subprocess
import sys

import pytest

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "looped_gpt_bert.py"


class Program:
  """Training of the default config's tiny form, a checkpoint every five steps."""

  @staticmethod
  def start(workdir, *settings):
    return subprocess.Popen(
      [
        sys.executable,
        "-u",
        "-m",
        "looped_lm.main",
        f"--config={CONFIG}:tiny",
        f"--workdir={workdir}",
        "--config.train.save_every_steps=5",
        "--config.train.log_every_steps=1",
        *settings,
      ],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  @classmethod
  def finish(cls, workdir, *settings):
    process = cls.start(workdir, *settings)
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    return output

  @classmethod
  def kill_in(cls, step, workdir, *settings):
    process = cls.start(workdir, *settings)
    for line in process.stdout:
      # The line of a step is printed while the next one runs.
      if line.startswith(f"step {step - 1}/"):
        process.send_signal(signal.SIGKILL)
        break
    process.wait(timeout=60)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL


@pytest.fixture(scope="session")
def program():
  return Program
