"""Log-probabilities of texts against a model computed by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.evals.scoring import BACKENDS, Passage, Scorer
from looped_lm.train.parallel.mesh import MeshStrategy

TEXTS = [
  "The cat sat.",
  "A dog.",
  "The dogs and the mouse saw a cat on the mat. Who ran?",
  "The cat sat.",
  "née Ω",
]


def spell(subject, text):
  return np.concatenate([[1], subject.tokenizer.encode(text)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_are_sums_of_hand_computed_log_probabilities(subject, by_hand, backend):
  params = by_hand.params()
  scores = Scorer(subject=subject, backend=backend).score(params, [Passage(text=t) for t in TEXTS])
  wanted = [by_hand.log_probs(params, spell(subject, text), backend=backend) for text in TEXTS]
  np.testing.assert_allclose(scores.nats_LN[0], [w.sum() for w in wanted], rtol=1e-5)
  assert scores.tokens_N.tolist() == [len(w) for w in wanted]
  assert scores.indifferent_L == (False,)


@pytest.mark.parametrize("backend", ["causal", "mntp"])
def test_a_span_scores_the_tokens_that_end_behind_its_first_character(subject, by_hand, backend):
  params, text = by_hand.params(), "The cat sat on the mat."
  starts = [text.index(" on"), text.index("on"), text.index("n the"), 0]
  passages = [Passage(text=text, start=start) for start in starts]
  scores = Scorer(subject=subject, backend=backend).score(params, passages)
  nats = by_hand.log_probs(params, spell(subject, text), backend=backend)
  (located,) = subject.tokenizer.locate_batch([text])
  for start, score, count in zip(starts, scores.nats_LN[0], scores.tokens_N, strict=True):
    scored = located.end_T > start
    assert count == scored.sum()
    assert score == pytest.approx(nats[scored].sum(), rel=1e-5)
  # " on" with or without its space is the same token; a part of it counts it whole.
  assert len({*scores.nats_LN[0][:3]}) == 1


@pytest.mark.parametrize("backend", ["causal", "mntp"])
def test_batches_and_order_change_nothing(subject, by_hand, backend):
  params = by_hand.params()
  words = ["the", "cat", "saw", "a", "mouse", "and", "the", "dogs", "sat", "on", "the", "mat"]
  passages = [Passage(text=" ".join(words[: 1 + n % 12]), start=n % 3) for n in range(40)]
  one = Scorer(subject=subject, backend=backend).score(params, passages)
  small = dataclasses.replace(subject, batch_size=1)
  other = Scorer(subject=small, backend=backend).score(params, passages[::-1])
  np.testing.assert_allclose(one.nats_LN, other.nats_LN[:, ::-1], rtol=1e-6)
  again = Scorer(subject=subject, backend=backend).score(params, passages)
  np.testing.assert_array_equal(one.nats_LN, again.nats_LN)


def test_duplicates_are_computed_once(subject, by_hand):
  rows = []

  class Counting:
    def compile_rows(self, function):
      return subject.strategy.compile_rows(function)

    def split(self, queries):
      rows.append(int((queries.segments_BGT.sum(axis=-1) > 0).sum()))
      return subject.strategy.split(queries)

  counted = dataclasses.replace(subject, strategy=Counting())
  texts = ["The cat sat.", "A dog.", "The cat sat."]
  length = len(subject.tokenizer.encode("A dog."))
  passages = [Passage(text=t) for t in texts] + [Passage(text="A dog.", start=3)] * 5
  Scorer(subject=counted, backend="causal").score(by_hand.params(), passages)
  assert sum(rows) == 2
  rows.clear()
  # Spans of one text share its masked copies.
  Scorer(subject=counted, backend="mntp").score(by_hand.params(), passages[3:] + [passages[1]])
  assert sum(rows) == length


def test_every_loop_asked_for_is_read_out(subject, by_hand):
  params = by_hand.params()
  several = dataclasses.replace(subject, loops=(3, 1))
  scorer = Scorer(subject=several, backend="causal")
  assert scorer.loops == (1, 3, 2)  # The model's own is last.
  scores = scorer.score(params, [Passage(text=TEXTS[0])])
  for loop, nats_N in zip(scorer.loops, scores.nats_LN, strict=True):
    wanted = by_hand.log_probs(params, spell(subject, TEXTS[0]), backend="causal", loops=loop)
    assert nats_N[0] == pytest.approx(wanted.sum(), rel=1e-5)


@pytest.mark.parametrize("backend", ["causal", "mntp"])
def test_weights_that_are_not_numbers_are_an_error(subject, by_hand, backend):
  broken = jax.tree.map(lambda x: x.at[5, 7].set(np.nan), by_hand.params())
  broken["own"] = broken["own"].at[:].set(np.nan)
  with pytest.raises(UserError, match=r"gives 'The cat sat.' a log-probability that is not finite"):
    Scorer(subject=subject, backend=backend).score(broken, [Passage(text="The cat sat.")])


def test_a_model_that_says_nothing_is_noticed(subject, by_hand):
  flat = jax.tree.map(lambda x: x * 0 + 0.1, by_hand.params())
  scores = Scorer(subject=subject, backend="causal").score(flat, [Passage(text=t) for t in TEXTS])
  assert scores.indifferent_L == (True,)


@pytest.mark.parametrize(
  ("passage", "message"),
  [
    (Passage(text="", where="pairs.jsonl:3"), "^pairs.jsonl:3: there is no token to score"),
    (Passage(text="The cat", start=7), "'The cat': there is no token to score behind character 7"),
  ],
)
def test_an_option_without_a_token_is_an_error(subject, by_hand, passage, message):
  with pytest.raises(UserError, match=message):
    Scorer(subject=subject, backend="causal").score(by_hand.params(), [passage])


def test_a_text_longer_than_the_training_rows_is_scored_whole(subject, by_hand):
  params, text = by_hand.params(), "the cat saw a mouse and " * 12
  ids = spell(subject, text)
  assert len(ids) > subject.held_out.seq_len
  scores = Scorer(subject=subject, backend="causal").score(params, [Passage(text=text)])
  wanted = by_hand.log_probs(params, ids, backend="causal").sum()
  assert scores.nats_LN[0, 0] == pytest.approx(wanted, rel=1e-5)


def test_a_text_longer_than_the_model_reads_is_an_error(subject, by_hand):
  short = dataclasses.replace(subject, model=dataclasses.replace(subject.model, max_length=9))
  scorer = Scorer(subject=short, backend="causal")
  length = len(spell(subject, "The cat sat."))
  assert length <= 9
  assert np.isfinite(scorer.score(by_hand.params(), [Passage(text="The cat sat.")]).nats_LN).all()
  with pytest.raises(UserError, match=r"has \d\d tokens.*; the model reads at most 9"):
    scorer.score(by_hand.params(), [Passage(text="The cat sat. " * 3)])


@pytest.mark.parametrize("backend", ["causal", "mntp"])
def test_a_mesh_scores_as_pmap_does(subject, by_hand, backend):
  params, passages = by_hand.params(), [Passage(text=text) for text in TEXTS]
  mesh = MeshStrategy(fsdp=2, tensor=1)
  meshed = dataclasses.replace(subject, strategy=mesh)
  scores = Scorer(subject=meshed, backend=backend).score(mesh.replicate(params), passages)
  wanted = Scorer(subject=subject, backend=backend).score(params, passages)
  np.testing.assert_allclose(scores.nats_LN, wanted.nats_LN, rtol=1e-6)


def test_one_token_at_one_place_can_be_asked_for(subject, by_hand):
  params = by_hand.params()
  rows = [spell(subject, text).astype(np.int32) for text in TEXTS[:3]]
  read, target = np.array([1, 0, 4]), np.array([20, 21, 22])
  nats = Scorer(subject=subject, backend="mntp").ask(params, rows, read_N=read, target_N=target)
  for row, place, token, value in zip(rows, read, target, nats[0], strict=True):
    logits_V = by_hand.logits(params, row, causal=False)[place]
    wanted = logits_V[token] - np.log(np.exp(logits_V).sum())
    assert value == pytest.approx(wanted, rel=1e-5)
