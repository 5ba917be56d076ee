"""GLUE as an evaluation: files in, figures and official predictions out."""

import dataclasses
import json
import random

import jax
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.evals import glue, leaderboard, suite

RTE = {"sentence1": "A dog ran.", "sentence2": "It ran."}
WHO, DID = ["Who", "Mary", "Dogs", "Cats"], ["saw", "did", "ran to", "sat on"]
WHAT, WHEN = ["mouse", "dog", "cat", "mat"], ["now", "then.", "at noon", "."]
MRPC = {"sentence1": "The cats sat.", "sentence2": "Who ran?"}


def write(file, lines):
  file.write_text("".join(json.dumps(line) + "\n" for line in lines))
  return str(file)


@pytest.fixture
def official(tmp_path):
  """A folder with rte and mrpc, made up, in the official form."""
  folder = tmp_path / "glue_filtered"
  folder.mkdir()
  for task, line in (("rte", RTE), ("mrpc", MRPC)):
    lines = [{**line, "label": number % 2, "idx": number} for number in range(6)]
    write(folder / f"{task}.train.jsonl", lines)
    write(folder / f"{task}.valid.jsonl", lines[:3])
  return folder


def determiners(folder):
  """Sentences of which the label is the one determiner; three in five have "the"."""
  draw = random.Random(0)
  lines = []
  for number in range(180):
    words = [draw.choice(each) for each in (WHO, DID, WHAT, WHEN)]
    words.insert(2, "the" if number % 5 < 3 else "a")
    lines.append({"text": " ".join(words), "label": words[2]})
  return {
    "train": write(folder / "train.jsonl", lines[:120]),
    "valid": write(folder / "valid.jsonl", lines[120:]),
  }


@pytest.fixture(scope="module")
def narrow(by_hand):
  """Tables of eight columns: the model by hand, and quick to learn."""
  own, seen = jax.random.normal(jax.random.key(0), (2, by_hand.vocabulary.size, 8))
  return {"own": own, "seen": seen}


def test_official_files_give_figures_and_official_predictions(official, subject, narrow, tmp_path):
  leaving = dataclasses.replace(subject, backends=("causal", "mntp"), folder=str(tmp_path))
  evaluator = glue.Evaluator(
    subject=leaving, path=str(official), tasks=("rte", "mrpc"), epochs=1, max_length=8
  )
  figures = dict(evaluator.run(narrow))
  for backend in ("causal", "mntp"):
    prefix = f"eval/glue/{backend}"
    scores = [figures[f"{prefix}/{task}_percent"] for task in ("rte", "mrpc")]
    assert figures[f"{prefix}/score_percent"] == pytest.approx(sum(scores) / 2)
    assert figures[f"{prefix}/rte_percent"] == figures[f"{prefix}/task/rte/accuracy_percent"]
    assert figures[f"{prefix}/mrpc_percent"] == figures[f"{prefix}/task/mrpc/f1_percent"]
    assert f"{prefix}/task/mrpc/mcc_percent" in figures
    told = json.loads((tmp_path / "glue" / backend / "predictions.json").read_text())
    assert list(told) == ["rte", "mrpc"]
    assert [each["id"] for each in told["rte"]["predictions"]] == ["rte_0", "rte_1", "rte_2"]
    assert {each["pred"] for each in told["rte"]["predictions"]} <= {0, 1}
    left = json.loads((tmp_path / "glue" / backend / "scores.json").read_text())
    assert left["not_scored"] == ["boolq", "multirc", "wsc", "qqp", "mnli"]
    # Every pair is longer than eight tokens: six of training, three of validation.
    assert left["tasks"]["rte"]["truncated"] == {"train": 6, "valid": 3}
    assert figures[f"{prefix}/task/rte/truncated_percent"] == 100
    assert left["tasks"]["rte"]["majority_accuracy_percent"] == pytest.approx(100 * 2 / 3)


def test_the_recipes_are_the_official_ones_unless_settings_say_otherwise(official):
  own = glue.Evaluator(subject=None, path=str(official), tasks=("rte",))
  recipe = own._recipe(own.sets["rte"])
  assert dataclasses.asdict(recipe) == {
    "learning_rate": 3e-5,
    "warmup_fraction": 0.06,
    "floor_fraction": 0.1,
    "weight_decay": 0.01,
    "b1": 0.9,
    "b2": 0.999,
    "dropout_rate": 0.1,
    "batch_size": 32,
    "epochs": 10,
    "token": "last",
    "visibility": "causal",
    "seed": 42,
  }
  own = glue.Evaluator(subject=None, path=str(official), tasks=("rte",), epochs=2, batch_size=4)
  assert (own._recipe(own.sets["rte"]).epochs, own._recipe(own.sets["rte"]).batch_size) == (2, 4)


def test_the_leaderboards_glue_is_the_mean_of_those_given_and_names_the_others():
  figures = {
    "eval/glue/causal/score_percent": 60.0,
    "eval/glue/causal/rte_percent": 50.0,
    "eval/glue/causal/mrpc_percent": 70.0,
    "eval/glue/causal/task/rte/accuracy_percent": 50.0,
  }
  numbers = leaderboard.summary(figures)["causal"]
  assert numbers["scores"] == {"GLUE": 60.0}
  assert numbers["glue_without"] == ["boolq", "multirc", "wsc", "qqp", "mnli"]
  assert numbers["other"] == {"glue rte": 50.0, "glue mrpc": 70.0}
  assert "GLUE is a mean without boolq, multirc, wsc, qqp, mnli." in leaderboard.table(figures)
  without = leaderboard.summary({"eval/blimp/causal/score_percent": 70.0})["causal"]
  assert without["glue_without"] == []
  assert "GLUE" in without["missing"]


@pytest.fixture
def passes(monkeypatch):
  """Fine-tuning that is not run: three passes, of which the second and third score alike."""

  def finetune(*arguments, score, **others):
    for guess in ([0, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 1]):
      yield glue.finetune.Epoch(train_loss_nats=1.0, score=score(np.array(guess))), np.array(guess)

  monkeypatch.setattr(glue.finetune, "finetune", finetune)


def test_the_best_pass_counts_and_the_first_among_equals(passes, official, subject, tmp_path):
  leaving = dataclasses.replace(subject, folder=str(tmp_path))
  evaluator = glue.Evaluator(subject=leaving, path=str(official), tasks=("rte",))
  assert dict(evaluator.run(None))["eval/glue/causal/score_percent"] == 100.0
  left = json.loads((tmp_path / "glue" / "causal" / "scores.json").read_text())
  assert left["tasks"]["rte"]["best_epoch"] == 2


def test_it_is_never_asked_during_training(passes, official, subject):
  settings = {"names": ("glue",), "final_names": (), "glue": {"path": str(official)}}
  settings["glue"]["tasks"] = ("rte",)
  asked = suite.Suite(settings, subject)
  assert dict(asked.figures(None, final=False)) == {}
  assert "eval/glue/causal/score_percent" in dict(asked.figures(None, final=True))


def test_a_set_of_ones_own_is_learned_and_is_no_part_of_the_mean(tmp_path, subject, narrow):
  custom = determiners(tmp_path)
  leaving = dataclasses.replace(subject, folder=str(tmp_path))
  evaluator = glue.Evaluator(
    subject=leaving, tasks=(), custom=custom, learning_rate=5e-2, epochs=10, batch_size=40
  )
  figures = dict(evaluator.run(narrow))
  majority = 100 * evaluator.sets["custom"].majority_accuracy
  assert majority == 60
  assert figures["eval/glue/causal/custom_percent"] > majority + 20
  assert "eval/glue/causal/score_percent" not in figures
  told = json.loads((tmp_path / "glue" / "causal" / "custom_predictions.json").read_text())
  assert {each["pred"] for each in told["custom"]["predictions"]} == {"the", "a"}
  assert json.loads((tmp_path / "glue" / "causal" / "predictions.json").read_text()) == {}


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"tasks": ("cola",)}, r"evals.glue.tasks names 'cola', which is none of \['boolq'"),
    ({"tasks": ("wsc",)}, r"wsc.train.jsonl does not exist, and evals.glue.tasks names 'wsc'"),
    ({"path": "nowhere"}, r"evals.glue.path='nowhere' does not exist"),
    ({"token": "middle"}, r"evals.glue.token='middle' is none of \['last', 'first'\]"),
    ({"backend": "mntp"}, r"evals.glue.backend='mntp' is none of \['causal', 'bidirectional'\]"),
    ({"max_length": 3}, r"evals.glue.max_length=3 must be at least 8"),
    ({"learning_rate": 0.0}, r"evals.glue.learning_rate=0.0 must be above 0"),
    ({"dropout_rate": 1.0}, r"evals.glue.dropout_rate=1.0 must lie in \[0, 1\)"),
    ({"tasks": ()}, r"evals.glue.tasks and evals.glue.custom.train are empty"),
    ({"custom": {"trian": "x"}}, r"evals.glue.custom.trian is not a setting"),
    ({"custom": {"train": "x"}}, r"evals.glue.custom.train='x' does not exist"),
    ({"custom": {"metric": "f2"}}, r"evals.glue.custom.metric='f2' is none of"),
    ({"custom": {"text_fields": ("a", "b", "c")}}, r"must name one field, or two"),
    ({"custom": {"text_fields": "text"}}, r"must name one field, or two"),
  ],
)
def test_settings_that_cannot_work_are_said_before_anything_compiles(official, settings, message):
  with pytest.raises(UserError, match=message):
    glue.Evaluator(**{"subject": None, "path": str(official), "tasks": ("rte",)} | settings)


def test_a_text_that_the_model_cannot_read_is_said_with_the_setting(passes, official, subject):
  short = dataclasses.replace(subject, model=dataclasses.replace(subject.model, max_length=9))
  evaluator = glue.Evaluator(subject=short, path=str(official), tasks=("rte",), epochs=1)
  with pytest.raises(UserError, match=r"reads at most 9. Set evals.glue.max_length=9"):
    dict(evaluator.run(None))
  evaluator.max_length = 9
  assert "eval/glue/causal/rte_percent" in dict(evaluator.run(None))


def test_broken_weights_get_no_score(official, subject, narrow):
  broken = {name: table * float("nan") for name, table in narrow.items()}
  evaluator = glue.Evaluator(subject=subject, path=str(official), tasks=("rte",), epochs=1)
  with pytest.raises(UserError, match=r"rte: fine-tuning went to numbers that are not finite in"):
    dict(evaluator.run(broken))
