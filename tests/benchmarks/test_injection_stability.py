"""The comparison of injections: what has diverged, what is written, and nothing is repeated."""

import importlib.util
import json
import math
import pathlib
import types

import numpy as np
import pytest

from looped_lm import jobs
from looped_lm.errors import UserError

PATH = pathlib.Path(__file__).parents[2] / "benchmarks" / "injection_stability.py"


@pytest.fixture(scope="module")
def script():
  spec = importlib.util.spec_from_file_location("injection_stability", PATH)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def run(script, out, *flags):
  return script.main([f"--out={out}", "--tiny", *flags])


def result(**fields):
  return {
    "injection": "linear",
    "learning_rate": 0.01,
    "diverged": False,
    "stopped_at_step": None,
    "train_loss_nats": [5.0, 4.0],
    "final_train_loss_nats": 4.0,
    "largest_rise_nats": 0.0,
    "entropy_nats": 5.5,
    "held_out_loss_nats": 4.25,
    "state_rms_R": [1.0, 2.0, 3.5],
    "rho": [[10, 0.5], [20, 0.75]],
  } | fields


def test_a_rise_is_measured_on_means_from_the_lowest_one_before(script):
  assert script.largest_rise([9.0, 8.0, 7.0, 6.0, 5.0, 4.0]) == 0.0
  assert script.largest_rise([5.0] * 5 + [10.0] * 5 + [5.0] * 5) == 5.0
  # One bad step in five counts a fifth; what was high before the low is no rise.
  assert script.largest_rise([99.0] * 5 + [5.0] * 9 + [10.0]) == pytest.approx(1.0)
  assert script.largest_rise([1.0, 9.0]) == 0.0


def test_a_run_that_ends_where_guessing_by_frequency_stands_has_diverged(script):
  assert not script.has_diverged(result(entropy_nats=5.5, final_train_loss_nats=5.2))
  assert script.has_diverged(result(entropy_nats=5.5, final_train_loss_nats=5.3))
  assert script.has_diverged(result(stopped_at_step=7, final_train_loss_nats=None))


def test_the_table_has_a_line_per_run_and_marks_those_that_diverged(script, tmp_path):
  blown = result(
    diverged=True,
    stopped_at_step=7,
    train_loss_nats=[6.0, 7.0, None],
    final_train_loss_nats=None,
    held_out_loss_nats=None,
    state_rms_R=[],
    rho=[],
  )
  grown = result(diverged=True, state_rms_R=[1.0, 2.5e9])
  lines = script.table([result(), blown, grown]).splitlines()
  assert lines[2] == "| linear | 0.01 | no | 4.000 | 4.250 | 0.00 | 1.00 | 3.50 | 0.75 |"
  assert lines[3] == "| linear | 0.01 | **yes**, step 7 | — | — | 0.00 | — | — | — |"
  assert lines[4] == "| linear | 0.01 | **yes** | 4.000 | 4.250 | 0.00 | 1.00 | 2.5e+09 | 0.75 |"
  assert {line.count("|") for line in lines} == {10}
  script.plot([result(), blown], tmp_path / "plot.png")
  assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_was_stopped_is_read_off_its_log(script, tmp_path, monkeypatch):
  def stopped(mode, config, *, workdir, **_):
    pathlib.Path(workdir).mkdir()
    lines = [{"step": 1, "train/loss_nats": 6.0}, {"step": 2, "train/loss_nats": "nan"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (pathlib.Path(workdir) / "metrics.jsonl").write_text(text)
    raise UserError("Step 2 is not finite")

  monkeypatch.setattr(jobs, "run", stopped)
  prepared = types.SimpleNamespace(unigram_V=np.array([0, 3, 3]))
  monkeypatch.setattr(script, "find_prepared", lambda *_, **__: prepared)
  (blown,) = run(script, tmp_path, "--injections=add", "--learning_rates=0.5")
  assert (blown["diverged"], blown["stopped_at_step"]) == (True, 2)
  assert blown["train_loss_nats"] == [6.0, None]
  assert blown["entropy_nats"] == pytest.approx(math.log(2))


@pytest.mark.nightly
def test_a_loss_that_is_not_finite_is_a_divergence_and_the_summary_is_written(script, tmp_path):
  (blown,) = run(
    script, tmp_path, "--injections=add", "--learning_rates=1e30", "--steps=6", "--loops=2"
  )
  assert blown["diverged"]
  assert 1 <= blown["stopped_at_step"] <= 6
  assert blown["train_loss_nats"][-1] is None
  assert "| add | 1e+30 | **yes**, step" in (tmp_path / "table.md").read_text()
  assert (tmp_path / "plot.png").stat().st_size > 0
  assert list(json.loads((tmp_path / "results.json").read_text())) == ["add-1e+30"]


def test_another_error_is_no_divergence(script, tmp_path):
  with pytest.raises(UserError, match="total_steps"):
    run(script, tmp_path, "--injections=add", "--learning_rates=0.01", "--steps=0")
  with pytest.raises(UserError, match="addd"):
    run(script, tmp_path, "--injections=addd", "--learning_rates=0.01")


@pytest.mark.nightly
def test_every_run_is_summarised_once_and_a_rate_that_is_too_high_is_marked(
  script, tmp_path, monkeypatch
):
  flags = ["--injections=diagonal,linear", "--steps=60", "--loops=2"]
  both = run(script, tmp_path, *flags, "--learning_rates=0.01")
  assert [(r["injection"], r["diverged"]) for r in both] == [("diagonal", False), ("linear", False)]
  for r in both:
    assert len(r["train_loss_nats"]) == 60
    assert r["train_loss_nats"][-1] < r["train_loss_nats"][0]
    assert len(r["state_rms_R"]) == 2
    assert r["rho"][-1][1] > 0
  # Finite, but worse at the end than guessing by frequency.
  (high,) = run(script, tmp_path / "high", "--injections=add", "--steps=20", "--learning_rates=3")
  assert high["stopped_at_step"] is None
  assert high["diverged"]
  assert high["final_train_loss_nats"] > high["entropy_nats"]

  def forbidden(*args, **kwargs):
    raise AssertionError("trained again")

  monkeypatch.setattr(jobs, "run", forbidden)
  assert run(script, tmp_path, *flags, "--learning_rates=0.01") == json.loads(json.dumps(both))
  assert len((tmp_path / "table.md").read_text().splitlines()) == 4
  with pytest.raises(UserError, match=r"diagonal-0\.01 with another config"):
    run(script, tmp_path, "--injections=diagonal", "--steps=61", "--learning_rates=0.01")
