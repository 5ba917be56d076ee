"""The command line as a user meets it: one line and exit code 1 for a mistake."""

import pathlib
import subprocess
import sys

import pytest

CONFIG = pathlib.Path(__file__).parents[1] / "configs" / "looped_gpt_bert.py"


def run(*arguments):
  command = [sys.executable, "-m", "looped_lm.main", *arguments]
  return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
  ("arguments", "expected"),
  [
    ([f"--config={CONFIG}:tiny", "--config.model.num_lops=3"], 'Did you mean "num_loops"'),
    ([f"--config={CONFIG}:tiny", "--config.model.num_loops=x"], "num_loops"),
    ([f"--config={CONFIG}:tiny"], "--workdir is missing"),
    ([f"--config={CONFIG}:huge"], "looped_gpt_bert.py:huge is unknown"),
    (["--workdir=x"], "--config is missing"),
    (["--config=configs/nothing.py"], "configs/nothing.py"),
    ([f"--config={CONFIG}:tiny", "--mode=trian"], "describe"),
  ],
)
def test_a_mistake_is_one_line(arguments, expected):
  done = run(*arguments)
  assert done.returncode == 1
  assert expected in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_describe_from_the_command_line():
  done = run(f"--config={CONFIG}", "--mode=describe")
  assert done.returncode == 0, done.stderr
  assert "12,330,004" in done.stdout
