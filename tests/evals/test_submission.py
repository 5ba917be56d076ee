"""What goes into the file for the leaderboard, and what is left out and named."""

import json

import pytest

from looped_lm.evals import submission

MODEL = {"step": 9, "weights": "raw", "loops": 12, "clamp_distance": False}
BLIMP = {
  "uid_1": {"predictions": [{"id": "uid_1_0", "pred": "The cat sat."}]},
  "uid_2": {"predictions": [{"id": "uid_2_0", "pred": "A"}, {"id": "uid_2_1", "pred": "B"}]},
}
GLUE = {
  "rte": {"predictions": [{"id": "rte_0", "pred": 1}, {"id": "rte_1", "pred": 0}]},
  "wsc": {"predictions": [{"id": "wsc_0", "pred": 1}]},
}
AOA = {
  "results": [
    {"step": step, "target_word": "cat", "surprisal": 3.0}
    for step in [f"chck_{million}M" for million in (*range(1, 10), *range(10, 110, 10))]
  ]
}


@pytest.fixture
def sizes(monkeypatch):
  """Sets small enough to be written here."""
  monkeypatch.setitem(submission._TASKS, "blimp", ("blimp", 3))
  monkeypatch.setitem(submission._TASKS, "entity_tracking", ("entity_tracking_filtered", 3))
  monkeypatch.setitem(submission._GLUE, "rte", 2)
  monkeypatch.setattr(submission, "_AOA", 1)


def leave(workdir, task, content, *, model=MODEL, scores=None):
  folder = workdir / "evals" / task / "causal"
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "predictions.json").write_text(json.dumps(content))
  (folder / "scores.json").write_text(json.dumps(scores or {}))
  figures = [f"eval/{task}/causal/score_percent", "eval/clm/loss_nats"]
  return submission.leave(str(workdir), figures, model=model)


def content_of(written):
  with open(written.path) as file:
    return json.load(file)


def test_whole_sets_are_collated_as_the_pipeline_does(tmp_path, sizes):
  leave(tmp_path, "blimp", BLIMP)
  leave(tmp_path, "entity_tracking", BLIMP)
  leave(tmp_path, "glue", GLUE)
  (written,) = leave(tmp_path, "aoa", AOA, scores={"score_percent": -12.5})
  content = content_of(written)
  assert written.path == str(tmp_path / "evals" / "submission_causal.json")
  assert content["blimp"] == content["entity_tracking_filtered"] == BLIMP
  assert content["aoa_surprisals"] == AOA
  assert content["aoa"] == {"aoa": -0.125}
  assert content["glue"] == {"rte": GLUE["rte"]}
  assert content["comps"] is content["reading"] is None
  assert {len(values) for values in content["fast_eval_results"].values()} == {19}
  assert written.left_out["comps"] == "not scored"
  assert written.left_out["glue/wsc"] == "1 predictions, and the whole set has 52"
  assert written.left_out["glue/boolq"] == "not scored"
  assert "blimp" not in written.left_out


def test_the_first_items_of_a_set_are_no_submission(tmp_path, sizes):
  assert leave(tmp_path, "entity_tracking", BLIMP)
  (written,) = leave(tmp_path, "blimp", {"uid_2": BLIMP["uid_2"]})
  assert content_of(written)["blimp"] is None
  assert written.left_out["blimp"] == "2 predictions, and the whole set has 3"


def test_scores_of_another_checkpoint_are_left_out(tmp_path, sizes):
  leave(tmp_path, "blimp", BLIMP, model=MODEL | {"step": 3})
  (written,) = leave(tmp_path, "entity_tracking", BLIMP)
  assert content_of(written)["blimp"] is None
  assert written.left_out["blimp"].startswith("scored of another model (step 3, weights raw")
  (written,) = leave(tmp_path, "blimp", BLIMP)
  assert content_of(written)["blimp"] == content_of(written)["entity_tracking_filtered"] == BLIMP


def test_checkpoints_other_than_the_tracks_are_no_age_of_acquisition(tmp_path, sizes):
  leave(tmp_path, "blimp", BLIMP)
  others = {"results": [entry | {"step": "chck_1500"} for entry in AOA["results"]]}
  (written,) = leave(tmp_path, "aoa", others, scores={"score_percent": 5.0})
  content = content_of(written)
  assert content["aoa"] is content["aoa_surprisals"] is None
  assert "aoa" in written.left_out


def test_without_a_task_of_the_leaderboard_nothing_is_written(tmp_path):
  assert submission.leave(str(tmp_path), ["eval/clm/loss_nats"], model=MODEL) == []
  assert not (tmp_path / "evals").exists()
  assert leave(tmp_path, "minimal_pairs_generated", BLIMP) == []
  assert not (tmp_path / "evals" / "submission_causal.json").exists()


def test_predictions_that_were_removed_are_not_scored(tmp_path, sizes):
  leave(tmp_path, "blimp", BLIMP)
  (tmp_path / "evals" / "blimp" / "causal" / "predictions.json").unlink()
  (written,) = leave(tmp_path, "entity_tracking", BLIMP)
  assert content_of(written)["blimp"] is None
  assert written.left_out["blimp"] == "not scored"
