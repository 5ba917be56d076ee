"""Perplexity and bits per byte, by hand."""

import math

import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.evals import perplexity


def test_figures_by_hand_and_by_file(tmp_path, subject, by_hand):
  lines = ["The cat sat.", "Who saw née? " + "the dogs and the mouse saw a cat " * 3]
  (tmp_path / "tales.txt").write_text("\n\n".join(lines) + "\n")
  (tmp_path / "talk.txt").write_text("Who ran?")
  params = by_hand.params()
  nats = count = 0
  for line in lines:
    ids = subject.tokenizer.encode(line)
    for first in range(0, len(ids), 31):  # Rows of 32 positions, `<s>` among them.
      part = np.concatenate([[1], ids[first : first + 31]])
      nats -= by_hand.log_probs(params, part, backend="causal").sum()
      count += len(part) - 1
  assert count > 31
  figures = dict(perplexity.Evaluator(subject=subject, path=str(tmp_path)).run(params))
  prefix = "eval/perplexity/causal"
  assert figures[f"{prefix}/tales/perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-4)
  num_bytes = sum(len(line.encode()) for line in lines)
  assert figures[f"{prefix}/tales/bits_per_byte"] == pytest.approx(
    nats / math.log(2) / num_bytes, rel=1e-5
  )
  assert f"{prefix}/talk/bits_per_byte" in figures


def test_missing_and_empty_files_are_errors(tmp_path, subject):
  for path, message in (("", "evals.perplexity.path='' does not exist"), (tmp_path, "no .txt")):
    with pytest.raises(UserError, match=message):
      perplexity.Evaluator(subject=subject, path=str(path))
  (tmp_path / "a.txt").write_text(" \n")
  with pytest.raises(UserError, match=r"a.txt is empty"):
    perplexity.Evaluator(subject=subject, path=str(tmp_path))
