"""A run that is told to stop saves, and its restart ends where an undisturbed run ends."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from looped_lm import jobs
from looped_lm.evals import held_out_text
from looped_lm.train import window
from looped_lm.train.checkpoint import restore_state, saved_steps

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "looped_gpt_bert.py"


def train(config, workdir):
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    code = jobs.run("train", config, workdir=str(workdir), overrides={}, allow_config_change=False)
  return code, printed.getvalue()


def figures(workdir):
  """All lines of the log but for the only figure that is a time."""
  records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  for record in records:
    record.pop("train/tokens_per_second", None)
  return records


def final_state(config, workdir):
  experiment = jobs.build(config)
  like = experiment.strategy.like_saved(experiment.abstract_state())
  state = restore_state(str(workdir), like)
  return jax.tree.leaves(state.replace(key=jax.random.key_data(state.key)))


@pytest.fixture(scope="module")
def undisturbed(tiny_config, tmp_path_factory):
  config, workdir = tiny_config(), tmp_path_factory.mktemp("undisturbed")
  assert train(config, workdir)[0] == 0
  return config, workdir


def at_step(step, monkeypatch):
  """SIGTERM while a step is taken, in the middle of a log interval."""
  add = window.add

  def then_signal(*arguments):
    if arguments[2] == step:
      os.kill(os.getpid(), signal.SIGTERM)
    return add(*arguments)

  monkeypatch.setattr(window, "add", then_signal)


def in_evaluation(step, monkeypatch):
  """SIGTERM in the evaluation of a step."""
  del step
  batches = held_out_text.eval_batches

  def then_signal(*arguments, **settings):
    os.kill(os.getpid(), signal.SIGTERM)
    return batches(*arguments, **settings)

  monkeypatch.setattr(held_out_text, "eval_batches", then_signal)


@pytest.mark.nightly
@pytest.mark.parametrize(("fault", "step"), [(at_step, 7), (in_evaluation, 10)])
def test_a_restart_ends_as_if_nothing_had_happened(undisturbed, tmp_path, monkeypatch, fault, step):
  config, calm = undisturbed
  with monkeypatch.context() as patch:
    fault(step, patch)
    code, printed = train(config, tmp_path)
  assert code == 0
  assert f"Stopped after step {step}, which is saved" in printed
  assert saved_steps(str(tmp_path)) == [step]
  code, printed = train(config, tmp_path)
  assert code == 0
  assert f"Resuming {tmp_path} at step {step}." in printed
  assert figures(tmp_path) == figures(calm)
  pairs = zip(final_state(config, tmp_path), final_state(config, calm), strict=True)
  assert all((np.asarray(ours) == np.asarray(theirs)).all() for ours, theirs in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_program_exits_within_the_grace_time(tmp_path, number, code):
  """Google Cloud gives a spot machine 30 seconds."""
  process = subprocess.Popen(
    [
      sys.executable,
      "-u",
      "-m",
      "looped_lm.main",
      f"--config={CONFIG}:tiny",
      f"--workdir={tmp_path}",
      "--config.train.log_every_steps=1",
      "--config.train.total_steps=100000",
      "--config.train.eval_every_steps=0",
      "--config.train.save_every_steps=0",
    ],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  assert process.stdout is not None
  for line in process.stdout:
    if line.startswith("step "):
      process.send_signal(number)
      break
  started = time.monotonic()
  output = process.communicate(timeout=300)[0]
  assert process.returncode == code, output
  assert time.monotonic() - started < 30
  assert "which is saved; the same command goes on from it." in output
  assert "Traceback" not in output
  assert len(saved_steps(str(tmp_path))) == 1
