"""The minimal pairs that ship with the project."""

import collections

import pytest

from looped_lm.errors import UserError
from looped_lm.evals import generated_pairs, minimal_pairs_generated

PAIRS = list(generated_pairs.pairs(per_paradigm=60))


def test_they_are_the_same_in_every_run():
  assert list(generated_pairs.pairs(per_paradigm=60)) == PAIRS
  assert PAIRS[0] == (
    "agreement/verb",
    "The sisters laugh at night.",
    "The sisters laughs at night.",
  )


def test_fewer_are_the_first_of_more():
  few = list(generated_pairs.pairs(per_paradigm=5))
  firsts = collections.defaultdict(list)
  for name, *pair in PAIRS:
    firsts[name].append(pair)
  assert [tuple(pair) for name in firsts for pair in firsts[name][:5]] == [
    tuple(pair) for _, *pair in few
  ]


def test_pairs_differ_and_none_is_there_twice():
  assert len({(right, wrong) for _, right, wrong in PAIRS}) == len(PAIRS) == 60 * 12
  assert not {right for _, right, _ in PAIRS} & {wrong for _, _, wrong in PAIRS}


def test_neither_length_nor_words_give_the_answer_away():
  for name, right, wrong in PAIRS:
    ours, theirs = (sorted(text.lower().rstrip(".?").split()) for text in (right, wrong))
    assert len(ours) == len(theirs)
    same_words = name.startswith("word_order") or name == "questions/inversion"
    differing = sum((collections.Counter(ours) - collections.Counter(theirs)).values())
    assert differing == (0 if same_words else 1)


def test_each_form_is_right_about_as_often_as_wrong():
  for name, forms in {
    "agreement/be": ("is", "was"),
    "determiners/a_or_an": ("a",),
    "determiners/much_or_many": ("much",),
    "agreement/reflexive": ("himself",),
  }.items():
    found = [right.rstrip(".").split() for paradigm, right, _ in PAIRS if paradigm == name]
    assert 18 <= sum(bool(set(forms) & set(words)) for words in found) <= 42


def test_scored_as_a_task_it_needs_no_data(subject, by_hand):
  evaluator = minimal_pairs_generated.Evaluator(subject=subject, per_paradigm=3)
  assert len(evaluator.items) == 36
  figures = dict(evaluator.run(by_hand.params()))
  assert 0 < figures["eval/minimal_pairs_generated/causal/score_percent"] < 100
  for settings, message in (({"path": "x"}, "has no path"), ({"per_paradigm": 61}, r"\[1, 60\]")):
    with pytest.raises(UserError, match=message):
      minimal_pairs_generated.Evaluator(subject=subject, **settings)
