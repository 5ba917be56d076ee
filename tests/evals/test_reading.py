"""Reading times: surprisals by hand, and what they explain."""

import csv
import dataclasses
import json
import math

import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.evals import reading

WORDS = ["cat", "mouse", "dogs", "mat", "saw", "ran"]
COLUMNS = ["item", "word", "prev_item", "prev_word", "Subtlex_log10", "length", "context_length"]
COLUMNS += ["prev_length", "self_paced_reading_time"]
COLUMNS += ["RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound"]


def write(path, change=lambda row: None):
  draw = np.random.default_rng(0)
  with path.open("w", newline="") as file:
    table = csv.DictWriter(file, COLUMNS)
    table.writeheader()
    for number in range(48):
      row = {name: f"{draw.normal():.4f}" for name in COLUMNS}
      row |= {"item": "The dogs saw the", "word": WORDS[number % 6], "prev_item": "The dogs"}
      row |= {"prev_word": WORDS[number % 5]}
      if number == 7:
        row |= {"item": "", "prev_item": "None", "prev_word": "", "Subtlex_log10": ""}
      change(row)
      table.writerow(row)
  return path


@pytest.mark.parametrize(("backend", "masks"), [("causal", 0), ("mntp", 3), ("mlm", 3)])
def test_a_words_surprisal_sums_its_tokens_as_the_pipeline_spells_them(
  tmp_path, subject, by_hand, backend, masks
):
  path = write(tmp_path / "reading_data.csv")
  leaving = dataclasses.replace(subject, backends=(backend,), folder=str(tmp_path))
  params = by_hand.params()
  figures = dict(reading.Evaluator(subject=leaving, path=str(path)).run(params))
  assert figures.keys() == {
    f"eval/reading/{backend}/{name}" for name in ("eye_tracking_percent", "self_paced_percent")
  }
  told = json.loads((tmp_path / "reading" / backend / "predictions.json").read_text())
  told = told["reading"]["predictions"]

  spell = subject.tokenizer
  pieces = spell.encode("mouse").tolist()
  assert len(pieces) > 1
  text, nats = "The dogs saw the", 0.0
  for place, piece in enumerate(pieces):
    row = [1, *spell.encode_with_specials(text + "<mask>" * masks).tolist()]
    logits_TV = by_hand.logits(params, row, causal=backend == "causal")
    logits_V = logits_TV[{"causal": -1, "mntp": -4, "mlm": -3}[backend]]
    # A later token is asked for as if it began a word: what this tokenizer makes of its text.
    asked = spell.encode(spell.decode([piece]))[0] if place else piece
    nats -= logits_V[asked] - np.log(np.exp(logits_V).sum())
    text += spell.decode([piece])
  assert told[1]["pred"] == pytest.approx(nats, rel=1e-5)
  assert math.isnan(told[7]["prev_pred"])
  assert [each["id"] for each in told] == list(range(48))


def test_r_squared_by_hand():
  x_N, y_N = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 1.0, 2.0])
  # Slope 0.6, intercept 0.1: residuals -0.1, 0.3, -0.3, 0.1 against a variance of 2.
  assert reading.r_squared(y_N, [x_N]) == pytest.approx(1 - 0.2 / 2)
  assert reading.r_squared(y_N, [x_N, 1e6 * x_N, np.ones(4)]) == pytest.approx(1 - 0.2 / 2)
  assert reading.r_squared(y_N, [x_N, y_N]) == pytest.approx(1)


def test_the_score_is_the_share_of_what_was_unexplained():
  draw = np.random.default_rng(1)
  known = [draw.normal(size=50) for _ in range(3)]
  nats_N, y_N = draw.normal(size=50), draw.normal(size=50)
  products = [known[0] * known[1], known[0] * known[2], known[1] * known[2]]
  before = reading.r_squared(y_N, [*known, *products])
  after = reading.r_squared(y_N, [*known, *products, nats_N])
  wanted = 100 * (after - before) / (1 - before)
  missing = [np.append(x, np.nan) for x in known]
  gain = reading._gain(np.append(y_N, 9.0), missing, np.append(nats_N, 5.0))
  assert gain == pytest.approx(wanted)


def test_a_model_that_says_nothing_explains_nothing(tmp_path, subject, by_hand):
  flat = {name: table * 0 for name, table in by_hand.params().items()}
  path = write(tmp_path / "reading_data.csv")
  for percent in dict(reading.Evaluator(subject=subject, path=str(path)).run(flat)).values():
    assert percent == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda row: row.update(length="long"), r"reading_data.csv:2: 'length' must be a number"),
    (lambda row: row.update(word=""), r"reading_data.csv:2: 'word' is empty"),
  ],
)
def test_a_wrong_table_is_named(tmp_path, subject, change, message):
  path = write(tmp_path / "reading_data.csv", change)
  with pytest.raises(UserError, match=message):
    reading.Evaluator(subject=subject, path=str(path))


def test_missing_columns_and_few_words_are_errors(tmp_path, subject):
  path = tmp_path / "reading_data.csv"
  path.write_text("item,word\nA,b\n")
  with pytest.raises(UserError, match=r"reading_data.csv:1: the columns \['RTfirstfix'"):
    reading.Evaluator(subject=subject, path=str(path))
  lines = write(path).read_text().splitlines()
  path.write_text("\n".join(lines[:20]))
  with pytest.raises(UserError, match="has 19 words; at least 30"):
    reading.Evaluator(subject=subject, path=str(path))
