"""Two processes of two devices each: one run, the same numbers, and none left waiting."""

import contextlib
import functools
import io
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from looped_lm import jobs
from looped_lm.jobs import evaluation
from looped_lm.train import metrics
from looped_lm.train.checkpoint import saved_steps

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "looped_gpt_bert.py"
STEPS, SAVED = 8, 5
STRATEGIES = {"pmap": {"strategy": "pmap"}, "mesh": {"strategy": "mesh", "fsdp": 4}}
# Until it is stopped.
ENDLESS = ("--config.train.total_steps=100000", "--config.train.save_every_steps=0")
DEVICES = "--xla_force_host_platform_device_count"


def start(workdir, *settings):
  """Starts the two; the numbers of all processes come from the same compiled programs."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  two_devices = re.sub(rf"{DEVICES}=\d+", f"{DEVICES}=2", os.environ["XLA_FLAGS"])
  environment = os.environ | {"XLA_FLAGS": two_devices}
  return [
    subprocess.Popen(
      [
        sys.executable,
        "-u",
        "-m",
        "looped_lm.main",
        f"--config={CONFIG}:tiny",
        f"--workdir={workdir}",
        f"--config.train.total_steps={STEPS}",
        "--config.train.log_every_steps=1",
        "--config.train.eval_every_steps=0",
        f"--config.train.save_every_steps={SAVED}",
        "--config.evals.names=()",
        f"--coordinator=127.0.0.1:{port}",
        "--num_processes=2",
        f"--process_id={process}",
        *settings,
      ],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      env=environment,
    )
    for process in (0, 1)
  ]


def finish(processes):
  outputs = [process.communicate(timeout=600)[0] for process in processes]
  assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
  return outputs


def flags(strategy):
  """What gives the program a strategy."""
  return [f"--config.parallel.{name}={value}" for name, value in STRATEGIES[strategy].items()]


def until(process, pattern):
  said = []
  for line in process.stdout:
    said.append(line)
    if re.search(pattern, line):
      return
  raise AssertionError(f"the process ended before it said {pattern!r}: {''.join(said[-30:])}")


def losses(workdir):
  return [r["train/loss_nats"] for r in metrics.read(str(workdir)) if "train/loss_nats" in r]


def train_alone(config, workdir, strategy):
  """Runs, or goes on, in this process, which has four devices; returns what it said."""
  config["train"] |= {"total_steps": STEPS, "log_every_steps": 1}
  config["train"] |= {"eval_every_steps": 0, "save_every_steps": SAVED}
  config["evals"]["names"] = ()
  config["parallel"] |= STRATEGIES[strategy]
  with contextlib.redirect_stdout(io.StringIO()) as said:
    jobs.run("train", config, workdir=str(workdir), overrides={}, allow_config_change=False)
  return said.getvalue()


@pytest.fixture(scope="module")
def one(tiny_config, tmp_path_factory):
  """strategy -> the folder of an undisturbed run of one process."""

  @functools.cache
  def run(strategy):
    workdir = tmp_path_factory.mktemp("one")
    train_alone(tiny_config(), workdir, strategy)
    return workdir

  return run


@pytest.fixture(scope="module")
def two(tmp_path_factory):
  """strategy -> the folder of an undisturbed run of two processes, and what each said."""

  @functools.cache
  def run(strategy):
    workdir = tmp_path_factory.mktemp("two")
    return workdir, finish(start(workdir, *flags(strategy)))

  return run


def as_saved(workdir, copy):
  """Copies a finished run as if it had ended when it had saved step SAVED."""
  shutil.copytree(workdir, copy)
  shutil.rmtree(copy / "checkpoints" / str(STEPS))
  return copy


@pytest.mark.parametrize(
  "strategy",
  [
    pytest.param("pmap", marks=pytest.mark.nightly),
    pytest.param("mesh", marks=pytest.mark.slow),
  ],
)
def test_two_processes_equal_one(one, two, strategy):
  workdir, (first, second) = two(strategy)
  assert losses(workdir) == pytest.approx(losses(one("pmap")), abs=1e-5)
  assert saved_steps(str(workdir)) == [SAVED, STEPS]
  assert "Report: " in first
  # What is for the user comes from process 0 alone.
  assert not re.search(r"^(step |Report|Layers)", second, re.MULTILINE)
  assert (workdir / "report.html").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["pmap", "mesh"])
def test_two_processes_generate_one_text_and_print_it_once(two, strategy):
  workdir, _ = two(strategy)
  texts = ["--mode=generate", "--prompt=The dog", "--config.generate.max_new_tokens=4"]
  first, second = finish(start(workdir, *flags(strategy), *texts))
  assert "The dog" in first
  assert "loops per token" in first
  assert "The dog" not in second
  assert "loops per token" not in second


@pytest.mark.parametrize(
  ("strategy", "before"),
  [
    pytest.param("mesh", "two", marks=pytest.mark.slow),
    pytest.param("pmap", "two", marks=pytest.mark.nightly),
    pytest.param("mesh", "one", marks=pytest.mark.nightly),
    pytest.param("pmap", "one", marks=pytest.mark.nightly),
  ],
)
def test_a_run_goes_on_with_the_same_losses_with_another_number_of_processes(
  one, two, tiny_config, tmp_path, strategy, before
):
  workdir = tmp_path / "run"
  if before == "two":
    as_saved(two(strategy)[0], workdir)
    said = train_alone(tiny_config(), workdir, strategy)
  else:
    as_saved(one(strategy), workdir)
    said = finish(start(workdir, *flags(strategy)))[0]
  assert f"Resuming {workdir} at step {SAVED}." in said
  # The log was cut off behind step SAVED, so the rest is of the steps taken now.
  assert losses(workdir) == pytest.approx(losses(one("pmap")), abs=1e-5)
  assert saved_steps(str(workdir)) == [SAVED, STEPS]


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_one_that_is_left_stops_with_a_message(tmp_path, strategy):
  patience = "--config.parallel.lost_process_seconds=30"
  left, killed = start(tmp_path, *ENDLESS, patience, *flags(strategy))
  until(left, r"^step +2/")
  killed.send_signal(signal.SIGKILL)
  output = left.communicate(timeout=180)[0]
  killed.communicate()
  assert left.returncode not in (0, None)
  assert "another process" in output or "another task" in output, output


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_signal_to_one_saves_the_same_step_on_both(tmp_path, strategy):
  first, second = start(tmp_path, *ENDLESS, *flags(strategy))
  until(first, r"^step +2/")
  second.send_signal(signal.SIGTERM)  # To that one alone.
  output = finish([first, second])[0]
  (step,) = saved_steps(str(tmp_path))
  assert f"Stopped after step {step}, which is saved" in output


@pytest.mark.nightly
def test_a_signal_between_two_seeds_stops_the_second_and_the_same_command_goes_on(tmp_path):
  """The steps of the second run have the numbers of those that the first has taken."""
  settings = ("--seeds=1,2", "--config.evals.names=('held_out',)")
  settings += ("--config.train.save_every_steps=0",)
  first, second = start(tmp_path, *settings)
  until(first, r"^Report: ")
  second.send_signal(signal.SIGTERM)
  output = finish([first, second])[0]
  assert "Stopped at seed 2 of 1, 2" in output
  (step,) = saved_steps(str(tmp_path / "seed_2"))
  assert step < STEPS
  assert not (tmp_path / "seeds.json").exists()
  first, second = finish(start(tmp_path, *settings))
  assert f"at step {step}." in first
  assert "Seed" not in second
  assert "eval/" not in second
  figures = json.loads((tmp_path / "seeds.json").read_text())["figures"]
  for name, value in evaluation.logged_figures(str(tmp_path / "seed_2"), step=STEPS).items():
    assert figures[name]["values"][1] == value
