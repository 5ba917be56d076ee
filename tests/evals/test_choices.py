"""From scores of options to scores of tasks."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.evals import blimp
from looped_lm.evals.choices import ChoiceTask, Item, judge
from looped_lm.evals.scoring import Passage

GOOD = ["The cats sat on the mat.", "Who ran?", "The dogs saw a mouse."]
BAD = ["The cat sat on mat the.", "Ran who ran who?", "A mouse the dogs saw the."]


def item(options, label=0, group="g"):
  passages = tuple(Passage(text=text) for text in options)
  return Item(group=group, options=passages, answers=tuple(options), label=label)


class Pairs(ChoiceTask):
  name = "pairs"
  version = "pairs.1"
  pairs = list(zip(GOOD, BAD, strict=True))

  def read(self):
    for number, pair in enumerate(self.pairs):
      yield item(pair, group=f"g{number % 2}")


@pytest.mark.parametrize(
  ("scores", "label", "credit", "tied"),
  [
    ([-1.0, -2.0], 0, 1.0, 1),
    ([-1.0, -2.0], 1, 0.0, 1),
    ([-1.0, -1.0, -3.0], 1, 0.5, 2),
    ([-1.0, -1.0, -1.0, -3.0], 0, 1 / 3, 3),
    ([-1.0, -1.0, -3.0], 2, 0.0, 2),
    ([-1.0, -1.0 - 1e-6], 1, 0.5, 2),  # What batching alone could have made of equals.
    ([-1.0, -1.0 - 1e-3], 1, 0.0, 1),
  ],
)
def test_a_tie_of_k_that_holds_the_right_option_scores_one_kth(scores, label, credit, tied):
  outcome = judge(item("abcd"[: len(scores)], label), np.array(scores), name="x")
  assert outcome.credit == pytest.approx(credit)
  assert outcome.tied == tied


def test_the_option_named_for_a_tie_depends_on_the_items_name_alone():
  tie = np.array([-1.0, -1.0])
  named = [judge(item("ab"), tie, name=f"x_{n}").answer for n in range(400)]
  assert 150 < sum(named) < 250
  assert named == [judge(item("ab"), tie, name=f"x_{n}").answer for n in range(400)]


def test_a_model_that_knows_the_right_ones_scores_100(subject, favouring):
  figures = dict(Pairs(subject=subject).run(favouring(GOOD)))
  assert figures == {"eval/pairs/causal/score_percent": 100.0, "eval/pairs/causal/ties_percent": 0}
  assert dict(Pairs(subject=subject).run(favouring(BAD)))["eval/pairs/causal/score_percent"] == 0


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_constant_weights_score_chance_although_the_options_differ_in_length(
  subject, by_hand, value
):
  flat = jax.tree.map(lambda x: x * 0 + value, by_hand.params())
  both = dataclasses.replace(subject, backends=("causal", "mntp"))
  figures = dict(Pairs(subject=both).run(flat))
  for backend in ("causal", "mntp"):
    assert figures[f"eval/pairs/{backend}/score_percent"] == 50.0
    assert figures[f"eval/pairs/{backend}/ties_percent"] == 100.0


def test_broken_weights_score_nothing(subject, by_hand):
  broken = jax.tree.map(lambda x: x * np.nan, by_hand.params())
  with pytest.raises(UserError, match="not finite"):
    dict(Pairs(subject=subject).run(broken))


def test_a_score_is_the_mean_over_groups_and_not_over_items(subject, favouring):
  # Of g0's two items one is right, of g1's one item it is right as well.
  figures = dict(Pairs(subject=subject).run(favouring([GOOD[0], GOOD[1], BAD[2]])))
  assert figures["eval/pairs/causal/score_percent"] == pytest.approx((50 + 100) / 2)


def test_scores_predictions_and_credits_are_left_behind(subject, favouring, tmp_path):
  leaving = dataclasses.replace(subject, folder=str(tmp_path))
  dict(Pairs(subject=leaving).run(favouring([GOOD[0], GOOD[1], BAD[2]])))
  folder = tmp_path / "pairs" / "causal"
  assert sorted(path.name for path in folder.iterdir()) == [
    "credits.json",
    "predictions.json",
    "scores.json",
  ]
  scores = json.loads((folder / "scores.json").read_text())
  assert scores["groups_percent"] == {"g0": 50.0, "g1": 100.0}
  assert (scores["metric_version"], scores["items"]) == ("pairs.1", 3)
  assert json.loads((folder / "predictions.json").read_text()) == {
    "g0": {"predictions": [{"id": "g0_0", "pred": GOOD[0]}, {"id": "g0_1", "pred": BAD[2]}]},
    "g1": {"predictions": [{"id": "g1_0", "pred": GOOD[1]}]},
  }
  assert json.loads((folder / "credits.json").read_text())["credits"] == {"g0": [1, 0], "g1": [1]}


def test_loops_have_scores_of_their_own(subject, favouring):
  looped = dataclasses.replace(subject, loops=(1,))
  figures = dict(Pairs(subject=looped).run(favouring(GOOD)))
  assert {f"eval/pairs/causal/loop/{loop:02}/score_percent" for loop in (1, 2)} <= figures.keys()


def test_log_probabilities_per_token_are_compared_where_the_task_says_so(subject, favouring):
  class Long(Pairs):
    pairs = [("The dogs saw a mouse and a cat and a dog.", "Ran.")]

  class Normalized(Long):
    length_normalized = True

  # A few likely tokens, and none in the short one: likelier as a mean, not as a sum.
  params = favouring(["The dogs saw a mouse and"])
  assert dict(Long(subject=subject).run(params))["eval/pairs/causal/score_percent"] == 0.0
  assert dict(Normalized(subject=subject).run(params))["eval/pairs/causal/score_percent"] == 100.0


def test_the_first_items_of_each_group_can_be_taken_alone(subject):
  groups = [each.group for each in Pairs(subject=subject, most_per_group=1).items]
  assert groups == ["g0", "g1"]
  with pytest.raises(UserError, match="most_per_group=-1 must be at least 0"):
    Pairs(subject=subject, most_per_group=-1)


def test_a_set_without_items_is_an_error(subject, tmp_path):
  class Empty(Pairs):
    pairs = []

  with pytest.raises(UserError, match=r"evals.pairs.path='' holds no item"):
    Empty(subject=subject)
  with pytest.raises(UserError, match=r"holds no \.jsonl file"):
    blimp.Evaluator(subject=subject, path=str(tmp_path))
