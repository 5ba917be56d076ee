"""From a killed run to published folders: milestones by words, exported, with their curve."""

import contextlib
import io
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from looped_lm import jobs, tensor_files
from looped_lm.train import metrics, milestones

pytestmark = pytest.mark.slow  # Three processes; `make test` has the pieces in tests/train.

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "looped_gpt_bert.py"
WORDS = (300, 900, 1300, 1500, 2000)


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
      "--config.train.eval_every_steps=0",
      "--config.train.eval_every_words=500",
      f"--config.train.save_at_words={WORDS}",
      *settings,
    ],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def finish(process):
  output = process.communicate(timeout=600)[0]
  assert process.returncode == 0, output
  return output


def exported(workdir, config):
  flags = {"overrides": {}, "allow_config_change": True}
  with contextlib.redirect_stdout(io.StringIO()):
    jobs.run("export", config, workdir=str(workdir), **flags, export=jobs.Export(milestones=True))
  return workdir / "export_milestones"


@pytest.mark.parametrize("strategy", ["pmap", "mesh"])
def test_a_killed_run_is_exported_as_an_undisturbed_one(tmp_path, tiny_config, strategy):
  more = [f"--config.parallel.strategy={strategy}"]
  if strategy == "mesh":
    more.append("--config.parallel.fsdp=2")
  calm, killed = tmp_path / "calm" / "run", tmp_path / "killed" / "run"
  finish(start(calm, *more))
  process = start(killed, *more)
  assert process.stdout is not None
  for line in process.stdout:
    # The line of a step is printed while the next one runs.
    if line.startswith("step 13/"):
      process.send_signal(signal.SIGKILL)
      break
  process.wait(timeout=60)
  process.stdout.close()
  assert process.returncode == -signal.SIGKILL
  assert "Resuming" in finish(start(killed, *more))

  names = [milestones.name(words) for words in WORDS]
  assert list(milestones.saved(str(killed))) == names
  config = tiny_config()
  ours, theirs = exported(killed, config), exported(calm, config)
  assert sorted(path.name for path in ours.iterdir()) == sorted(names)
  for name in names:
    left, right = (tensor_files.read(f / name / "model.safetensors") for f in (ours, theirs))
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[key], right[key]) for key in left)
    assert (ours / name / "README.md").read_bytes() == (theirs / name / "README.md").read_bytes()

  curves = [
    {r["step"]: r["eval/clm/loss_nats"] for r in metrics.read(str(w)) if "eval/clm/loss_nats" in r}
    for w in (killed, calm)
  ]
  assert curves[0] == curves[1]
  seen = jobs.build(config).pipeline.words_seen
  passed = [step for step in range(1, 21) if seen(step) // 500 > seen(step - 1) // 500]
  assert list(curves[0]) == sorted({*passed, 20})
  assert curves[0][20] < curves[0][passed[0]]
