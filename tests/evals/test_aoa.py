"""Ages of acquisition: fitted curves, surprisals at milestones, and what bad files say."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.evals import acquisition, aoa

MONTHS = np.arange(16.0, 31.0)
CONTEXTS = {
  "cat": [{"context": "The"}, {"context": "A "}],
  "dog": [{"context": "A"}],
  "mat": [{"context": "The cat sat on the"}],
  "mouse": [{"context": "A dog saw the cats and a"}],
  "a": [{"context": "Who saw"}],
}
MIDDLES = {"cat": 18.0, "dog": 21.0, "mat": 24.0, "mouse": 28.0}


def known(month, middle):
  return 1 / (1 + np.exp(-0.8 * (month - middle)))


def write_sets(folder):
  (folder / "cdi_childes.json").write_text(json.dumps(CONTEXTS))
  lines = [",".join(["word", *(str(int(month)) for month in MONTHS)])]
  for word, middle in MIDDLES.items():
    lines.append(",".join([word, *(f"{known(month, middle):.6f}" for month in MONTHS)]))
  (folder / "cdi_human.csv").write_text("\n".join(lines) + "\n")
  return str(folder / "cdi_childes.json")


def with_milestones(subject, params, **changes):
  """A subject whose run kept these weights after 1, 2, … million words."""
  kept = [(f"chck_{m}M", m * 1_000_000, each) for m, each in enumerate(params, start=1)]
  return dataclasses.replace(subject, milestones=lambda: iter(kept), **changes)


# ---- Curves


def test_children_know_a_word_where_the_curve_crosses_one_half():
  assert acquisition.child_age(MONTHS, known(MONTHS, 22.5)) == pytest.approx(22.5, abs=1e-3)
  # a / (1 + exp(-b(x - c))) + d = 1/2 with a = 0.9, d = 0.1: at exp(-b(x - c)) = 1.25.
  share_N = 0.9 * known(MONTHS, 22.5) + 0.1
  assert acquisition.child_age(MONTHS, share_N) == pytest.approx(
    22.5 - np.log(1.25) / 0.8, abs=1e-3
  )


@pytest.mark.parametrize(
  "share_N",
  [np.full(15, 0.2), np.full(15, np.nan), known(MONTHS, 35.0), known(MONTHS, 10.0)],
)
def test_a_word_that_children_do_not_learn_within_the_ages_has_none(share_N):
  assert acquisition.child_age(MONTHS, share_N) is None


def test_unknown_ages_are_left_out():
  share_N = known(MONTHS, 22.5)
  share_N[::2] = np.nan
  assert acquisition.child_age(MONTHS, share_N) == pytest.approx(22.5, abs=1e-3)
  share_N[3:] = np.nan
  assert acquisition.child_age(MONTHS, share_N) is None


def test_a_model_knows_a_word_halfway_between_chance_and_its_best():
  words_N = np.array([*range(1, 10), *range(10, 110, 10)]) * 1e6
  log_N = np.log10(words_N + 1)
  # Falls from 9 to 3 nats around 10M words: half of the way from a ceiling of 9 is at the middle.
  nats_N = 9 - 6 / (1 + np.exp(-9 * (log_N - 7)))
  age = acquisition.model_age(words_N, nats_N, ceiling=9.0)
  middle = (9 + nats_N.min()) / 2
  assert age == pytest.approx(7 - np.log(6 / (9 - middle) - 1) / 9, abs=1e-4)
  # Of a higher ceiling less has to be learnt, and it is learnt earlier.
  assert acquisition.model_age(words_N, nats_N, ceiling=11.0) < age


@pytest.mark.parametrize("nats_N", [[9.0, 9.0, 9.0], [3.0, 6.0, 9.0], [9.0, 8.9, 8.8], [9.0, 3.0]])
def test_a_word_that_a_model_does_not_learn_has_no_age(nats_N):
  words_N = np.arange(1, len(nats_N) + 1) * 1e6
  assert acquisition.model_age(words_N, np.array(nats_N), ceiling=20.0) is None


def test_correlation_is_over_the_words_of_both():
  model = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 5.0, "only here": 0.0}
  child = {"d": 50.0, "c": 30.0, "b": 20.0, "a": 10.0}
  assert acquisition.correlation(model, child) == pytest.approx((1.0, 0.0), abs=1e-6)
  assert acquisition.correlation(model, {"a": 1.0, "b": 1.0}) is None
  assert acquisition.correlation(model, dict.fromkeys(child, 1.0)) is None


# ---- The evaluator


@pytest.mark.parametrize("backend", ["causal", "mntp", "mlm"])
def test_surprisals_are_those_of_every_milestone(tmp_path, subject, by_hand, backend):
  params = [by_hand.params(seed) for seed in range(3)]
  kept = with_milestones(subject, params, backends=(backend,), folder=str(tmp_path / "evals"))
  evaluator = aoa.Evaluator(subject=kept, path=write_sets(tmp_path))
  figures = dict(evaluator.run(by_hand.params(9)))
  assert list(figures) == [f"eval/aoa/{backend}/score_percent"]

  told = json.loads((tmp_path / "evals" / "aoa" / backend / "predictions.json").read_text())
  assert told["metadata"]["completed_steps"] == 3
  # One-letter words are left out, the others have each context at each milestone.
  assert len(told["results"]) == 3 * 5
  for entry in told["results"]:
    million = int(entry["step"].removeprefix("chck_").removesuffix("M"))
    assert entry["word_count"] == million * 1_000_000
    text = f"{entry['context'].strip()} {entry['target_word']}"
    ids = [by_hand.vocabulary.bos_id, *subject.tokenizer.encode(text).tolist()]
    begin = len(subject.tokenizer.encode(entry["context"].strip()))
    nats_T = by_hand.log_probs(params[million - 1], ids, backend=backend)
    assert entry["surprisal"] == pytest.approx(-nats_T[begin:].sum(), rel=1e-4)


def learning(by_hand, subject, order):
  """Milestones at which words become likely one after another, in an order."""
  for million in range(1, 13):
    own = np.zeros((by_hand.vocabulary.size,) * 2, np.float32)
    for place, word in enumerate(order):
      strength = 6 / (1 + np.exp(-3.0 * (million - 3 - 2 * place)))
      for entry in CONTEXTS[word]:
        ids = subject.tokenizer.encode(f"{entry['context'].strip()} {word}").tolist()
        begin = len(subject.tokenizer.encode(entry["context"].strip()))
        own[[by_hand.vocabulary.bos_id, *ids][begin:-1] or [0], ids[begin:]] = strength
    yield {"own": jax.numpy.asarray(own), "seen": jax.numpy.zeros_like(own)}


def test_a_model_that_learns_in_the_order_of_children_correlates(tmp_path, subject, by_hand):
  path = write_sets(tmp_path)
  scores = {}
  for name, order in {"same": list(MIDDLES), "reverse": list(MIDDLES)[::-1]}.items():
    kept = with_milestones(subject, learning(by_hand, subject, order), folder=str(tmp_path / name))
    scores[name] = dict(aoa.Evaluator(subject=kept, path=path).run({}))
  assert scores["same"]["eval/aoa/causal/score_percent"] > 90
  assert scores["reverse"]["eval/aoa/causal/score_percent"] < -90
  summary = json.loads((tmp_path / "same" / "aoa" / "causal" / "scores.json").read_text())
  assert summary["words_of_both"] >= 3
  assert summary["metric_version"] == aoa.VERSION


def test_a_model_that_says_nothing_scores_zero(tmp_path, subject, favouring):
  kept = with_milestones(subject, [favouring([])] * 4)
  evaluator = aoa.Evaluator(subject=kept, path=write_sets(tmp_path))
  assert dict(evaluator.run({})) == {"eval/aoa/causal/score_percent": 0.0}


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("[]", "must be an object of words"),
    ("{", r"cdi_childes.json:1: this is no JSON"),
    ('{"cat": [{"text": "A"}]}', "'cat' must have a list"),
    ('{"cat": []}', "'cat' must have a list"),
    ('{"a": [{"context": "A"}]}', "no word of more than one letter"),
  ],
)
def test_a_wrong_set_is_one_line(tmp_path, content, message):
  path = write_sets(tmp_path)
  (tmp_path / "cdi_childes.json").write_text(content)
  with pytest.raises(UserError, match=message):
    aoa.Evaluator(subject=None, path=path)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("word,1,2\ncat,0,1\n", "csv:1: the columns 'word' and at least 3 of the months 16 to 30"),
    ("word,16,17,18\ncat,0,x,1\n", "csv:2: the months of 'cat' must be numbers"),
    ("word,16,17,18\ncat,0,0,0\n", "no word of which half"),
  ],
)
def test_a_wrong_table_is_one_line(tmp_path, content, message):
  path = write_sets(tmp_path)
  (tmp_path / "cdi_human.csv").write_text(content)
  with pytest.raises(UserError, match=message):
    aoa.Evaluator(subject=None, path=path)


def test_a_missing_table_says_where_it_comes_from(tmp_path):
  path = write_sets(tmp_path)
  (tmp_path / "cdi_human.csv").unlink()
  with pytest.raises(UserError, match=r"evals.aoa.human_path=.*full_eval/aoa/cdi_human.csv"):
    aoa.Evaluator(subject=None, path=path)
