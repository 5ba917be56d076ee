"""The command line as a user meets it: one line and exit code 1 for a mistake."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

CONFIG = pathlib.Path(__file__).parents[1] / "configs" / "looped_gpt_bert.py"
TINY = f"--config={CONFIG}:tiny"

MISTAKES = {
  'Did you mean "num_loops"': [TINY, "--config.model.num_lops=3"],
  "num_loops": [TINY, "--config.model.num_loops=x"],
  "--workdir is missing": [TINY],
  "looped_gpt_bert.py:huge is unknown": [f"--config={CONFIG}:huge"],
  "--config is missing": ["--workdir=x"],
  "configs/nothing.py": ["--config=configs/nothing.py"],
  "describe": [TINY, "--mode=trian"],
  "--prompt is for --mode=generate": [TINY, "--mode=describe", "--prompt=Hello"],
  "--compiled is for --mode=describe, not --mode=eval": [TINY, "--mode=eval", "--compiled"],
  "--milestones is for --mode=export, not --mode=describe": [
    TINY,
    "--mode=describe",
    "--milestones",
  ],
  "--seeds is for --mode=train, not --mode=eval": [TINY, "--mode=eval", "--seeds=1,2"],
  "--seeds is for --mode=train, not --mode=compare": ["--mode=compare", "--seeds=1,2"],
  "--seeds=7 is one seed": [TINY, "--workdir=x", "--seeds=7"],
  "--distributed=on, but JAX finds no cluster here": [TINY, "--distributed=on"],
  "--coordinator has no meaning with --distributed=off": [
    TINY,
    "--distributed=off",
    "--coordinator=127.0.0.1:1234",
  ],
  "should be one of <auto|on|off>": [TINY, "--distributed=yes"],
  "leave --config.seed out": [TINY, "--workdir=x", "--seeds=1,2", "--config.seed=3"],
}
# Every command in a process of its own, which has imported everything already.
FORKS = """
import io, json, os, sys
from looped_lm import main
for number, arguments in enumerate(json.loads(sys.argv[1])):
  child = os.fork()
  if not child:
    out, err = (os.open(f"{sys.argv[2]}/{number}.{end}", os.O_CREAT | os.O_WRONLY)
                for end in ("out", "err"))
    os.dup2(out, 1), os.dup2(err, 2)
    sys.argv = ["looped_lm.main", *arguments]
    main.main()
    sys.exit(0)
  print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
  """What each mistaken command answers: exit code and error output."""
  folder = tmp_path_factory.mktemp("answers")
  done = subprocess.run(
    [sys.executable, "-c", FORKS, json.dumps(list(MISTAKES.values())), folder],
    capture_output=True,
    text=True,
    timeout=300,
    check=True,
  )
  codes = [int(line) for line in done.stdout.split()]
  return {
    expected: (code, (folder / f"{number}.err").read_text())
    for number, (expected, code) in enumerate(zip(MISTAKES, codes, strict=True))
  }


@pytest.mark.parametrize("expected", MISTAKES)
def test_a_mistake_is_one_line(answers, expected):
  code, error = answers[expected]
  assert code == 1
  assert expected in error
  assert len(error.strip().splitlines()) == 1, error


@pytest.mark.slow
def test_describe_from_the_command_line():
  command = [sys.executable, "-m", "looped_lm.main", f"--config={CONFIG}", "--mode=describe"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  assert "12,330,004" in done.stdout


COMPILES = """
import looped_lm.main
import jax, jax.numpy as jnp
print(jax.jit(lambda x: jnp.tanh(x @ x).sum())(jnp.ones((8, 8))))
"""


@pytest.mark.slow
def test_a_program_out_of_the_cache_is_taken_in_silence(tmp_path):
  """On CPUs with AVX-512 XLA has a screen of complaints, about preferences."""
  settings = {
    "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  }
  for _ in range(2):
    done = subprocess.run(
      [sys.executable, "-c", COMPILES],
      capture_output=True,
      text=True,
      timeout=300,
      env=os.environ | settings,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
  assert any(tmp_path.iterdir())
