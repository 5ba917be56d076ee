"""The averages of the leaderboard, by hand."""

import json

import pytest

from looped_lm.evals import leaderboard

FIGURES = {
  "eval/clm/loss_nats": 3.0,
  "eval/blimp/causal/score_percent": 70.0,
  "eval/blimp/causal/ties_percent": 1.0,
  "eval/blimp/causal/loop/01/score_percent": 60.0,
  "eval/blimp/mntp/score_percent": 71.0,
  "eval/entity_tracking/causal/score_percent": 21.0,
  "eval/global_piqa_parallel/causal/score_percent": 30.0,
  "eval/global_piqa_nonparallel/causal/score_percent": 50.0,
  "eval/reading/causal/eye_tracking_percent": 9.0,
  "eval/reading/causal/self_paced_percent": 3.0,
  "eval/wug/causal/score_percent": 40.0,
}


def test_missing_numbers_count_zero_and_are_named():
  numbers = leaderboard.summary(FIGURES)["causal"]
  assert numbers["scores"] == {
    "BLiMP": 70,
    "Entity tracking": 21,
    "GlobalPIQA": 40,
    "Reading": 6,
  }
  assert numbers["nlp"] == pytest.approx((70 + 21 + 40) / 7)
  assert numbers["human_like"] == pytest.approx(6 / 2)
  assert numbers["overall"] == pytest.approx((70 + 21 + 40 + 6) / 9)
  assert numbers["missing"] == ["BLiMP supplement", "EWoK", "COMPS", "GLUE", "Age of acquisition"]
  assert numbers["other"] == {"wug": 40}


def test_a_backend_has_numbers_of_its_own():
  numbers = leaderboard.summary(FIGURES)["mntp"]
  assert numbers["scores"] == {"BLiMP": 71}
  assert numbers["human_like"] is None


def test_half_a_number_names_the_other_half():
  numbers = leaderboard.summary({"eval/reading/causal/eye_tracking_percent": 9.0})["causal"]
  assert numbers["scores"] == {"Reading": 4.5}
  assert "reading self_paced" in numbers["missing"]
  assert "Reading" not in numbers["missing"]


def test_the_table_holds_them_and_is_empty_without_scores():
  text = leaderboard.table(FIGURES)
  assert "BLiMP                                             70.00" in text
  assert "Overall average" in text
  assert "counted as 0: BLiMP supplement, EWoK, COMPS, GLUE, Age of acquisition." in text
  assert leaderboard.table({"eval/clm/loss_nats": 3.0}) == ""


def test_the_file_names_each_metrics_version(tmp_path):
  folder = tmp_path / "evals" / "blimp" / "causal"
  folder.mkdir(parents=True)
  (folder / "scores.json").write_text('{"metric_version": "blimp-1"}')
  leaderboard.leave(str(tmp_path), FIGURES)
  left = json.loads((tmp_path / "evals" / "leaderboard_causal.json").read_text())
  assert left["metric_versions"] == {"blimp": "blimp-1"}
  assert left["nlp"] == pytest.approx((70 + 21 + 40) / 7)
  assert (tmp_path / "evals" / "leaderboard_mntp.json").exists()
