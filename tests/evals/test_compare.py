"""The paired bootstrap between two runs."""

import json

import pytest

from looped_lm import jobs
from looped_lm.errors import UserError
from looped_lm.evals import compare


def run(path, credits, *, task="blimp", version="v1"):
  folder = path / "evals" / task / "causal"
  folder.mkdir(parents=True)
  (folder / "credits.json").write_text(json.dumps({"metric_version": version, "credits": credits}))
  return str(path)


def test_scores_and_interval(tmp_path):
  one = run(tmp_path / "one", {"a": [1, 1, 0, 0] * 50, "b": [1] * 10})
  two = run(tmp_path / "two", {"a": [1, 0, 0, 0] * 50, "b": [1] * 10})
  (found,) = compare.compare(one, two)
  assert (found.first_percent, found.second_percent) == (75.0, 62.5)
  # The standard error of half the mean of 200 gains of 1 in a quarter of the cases is 1.53.
  assert found.low_percent == pytest.approx(12.5 - 1.96 * 1.53, abs=0.5)
  assert found.high_percent == pytest.approx(12.5 + 1.96 * 1.53, abs=0.5)
  assert compare.compare(one, two) == [found]
  assert "blimp, causal" in compare.table([found])
  assert "+12.50" in compare.table([found])


def test_equal_runs_differ_by_nothing(tmp_path):
  one, two = (run(tmp_path / name, {"a": [1, 0, 0.5]}) for name in ("one", "two"))
  (found,) = compare.compare(one, two)
  assert found.low_percent == found.high_percent == 0


def test_pairs_are_drawn_together(tmp_path):
  # Each item is right in just one run: unpaired, half of the spread would be invisible.
  one = run(tmp_path / "one", {"a": [1, 0] * 100})
  two = run(tmp_path / "two", {"a": [0, 1] * 100})
  (found,) = compare.compare(one, two)
  assert found.high_percent - found.low_percent == pytest.approx(2 * 1.96 * 7.07, abs=2)


def test_a_task_keeps_its_own_average(tmp_path):
  credits = {"x_0_ops": [1], "x_1_ops": [1], "y_0_ops": [0]}
  one = run(tmp_path / "one", credits, task="entity_tracking")
  two = run(tmp_path / "two", {group: [0] for group in credits}, task="entity_tracking")
  (found,) = compare.compare(one, two)
  assert found.first_percent == 50.0


def test_what_cannot_be_compared_is_said(tmp_path):
  one = run(tmp_path / "one", {"a": [1]})
  with pytest.raises(UserError, match=r"scored by v1 in .* and by v2 in"):
    compare.compare(one, run(tmp_path / "two", {"a": [1]}, version="v2"))
  with pytest.raises(UserError, match="scored on other items"):
    compare.compare(one, run(tmp_path / "three", {"a": [1, 0]}))
  with pytest.raises(UserError, match="share no scored task"):
    compare.compare(one, run(tmp_path / "four", {"a": [1]}, task="comps"))
  with pytest.raises(UserError, match="does not exist; score the run with --mode=eval"):
    compare.compare(one, str(tmp_path / "nowhere"))


def test_it_is_a_mode_that_needs_two_runs(tmp_path, capsys):
  one, two = (run(tmp_path / name, {"a": [1, 0]}) for name in ("one", "two"))
  jobs.compare_runs(one, two)
  assert "blimp, causal" in capsys.readouterr().out
  with pytest.raises(UserError, match="needs two runs"):
    jobs.compare_runs(one, "")
