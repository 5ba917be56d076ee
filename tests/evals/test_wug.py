"""Correlation of preferences."""

import json

import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.evals import wug


@pytest.mark.parametrize(
  ("x", "y", "rho"),
  [
    ([1, 2, 3], [10, 20, 90], 1.0),
    ([1, 2, 3], [3, 2, 1], -1.0),
    ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
    ([1, 1, 2], [1, 2, 3], 0.8660254),  # Ranks 1.5, 1.5, 3.
    ([1, 1, 2, 3], [1, 2, 3, 4], 0.9486833),
    ([1, 1, 1], [1, 2, 3], 0.0),
  ],
)
def test_spearman_by_hand(x, y, rho):
  assert wug.spearman(np.array(x, float), np.array(y, float)) == pytest.approx(rho)


def pairs(tmp_path, ratios):
  texts = [("The cat sat.", "Who ran?"), ("A dog sat.", "A mat."), ("A mouse.", "Who saw?")]
  lines = [
    json.dumps({"sentences": "\t".join(pair), "ratio": ratio})
    for pair, ratio in zip(texts, ratios, strict=True)
  ]
  (tmp_path / "wug.jsonl").write_text("\n".join(lines))
  return str(tmp_path)


def test_preferences_correlate_with_peoples(tmp_path, subject, favouring):
  # The model prefers the first of pair 1, the second of pair 3, and neither much in pair 2.
  params = favouring(["The cat sat.", "Who saw?"])
  evaluator = wug.Evaluator(subject=subject, path=pairs(tmp_path, [0.9, 0.5, 0.1]))
  assert dict(evaluator.run(params)) == {"eval/wug/causal/score_percent": pytest.approx(100)}


def test_a_model_that_says_nothing_correlates_with_nothing(tmp_path, subject, favouring):
  evaluator = wug.Evaluator(subject=subject, path=pairs(tmp_path, [0.9, 0.5, 0.1]))
  assert dict(evaluator.run(favouring([]))) == {"eval/wug/causal/score_percent": 0.0}


def test_a_wrong_line_is_named(tmp_path, subject):
  (tmp_path / "wug.jsonl").write_text('{"sentences": "one", "ratio": 0.5}')
  with pytest.raises(UserError, match=r"wug.jsonl:1: 'sentences' must be two texts"):
    wug.Evaluator(subject=subject, path=str(tmp_path))
