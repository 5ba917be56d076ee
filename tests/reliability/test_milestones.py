"""From a killed run to published folders: milestones by words, exported, with their curve."""

import contextlib
import io

import numpy as np
import pytest

from looped_lm import jobs, tensor_files
from looped_lm.train import metrics, milestones

pytestmark = pytest.mark.nightly  # Three processes; `make test` has the pieces in tests/train.

WORDS = (300, 900, 1300, 1500, 2000)
SETTINGS = (
  "--config.train.eval_every_steps=0",
  "--config.train.eval_every_words=500",
  f"--config.train.save_at_words={WORDS}",
)


def exported(workdir, config):
  flags = {"overrides": {}, "allow_config_change": True}
  with contextlib.redirect_stdout(io.StringIO()):
    jobs.run("export", config, workdir=str(workdir), **flags, export=jobs.Export(milestones=True))
  return workdir / "export_milestones"


@pytest.mark.parametrize("strategy", ["pmap", "mesh"])
def test_a_killed_run_is_exported_as_an_undisturbed_one(program, tmp_path, tiny_config, strategy):
  settings = [*SETTINGS, f"--config.parallel.strategy={strategy}"]
  if strategy == "mesh":
    settings.append("--config.parallel.fsdp=2")
  calm, killed = tmp_path / "calm" / "run", tmp_path / "killed" / "run"
  program.finish(calm, *settings)
  program.kill_in(14, killed, *settings)
  assert "Resuming" in program.finish(killed, *settings)

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
