"""Metrics of predicted labels, by hand."""

import numpy as np
import pytest

from looped_lm.evals import agreement


def test_two_classes_by_hand():
  # 2 hits, 1 false alarm, 1 miss, 4 right refusals.
  label_N, said_N = np.array([1, 1, 1, 0, 0, 0, 0, 0]), np.array([1, 1, 0, 1, 0, 0, 0, 0])
  found = agreement.figures(said_N, label_N, num_classes=2)
  assert found["accuracy"] == pytest.approx(6 / 8)
  assert found["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
  assert found["mcc"] == pytest.approx((2 * 4 - 1 * 1) / (3 * 3 * 5 * 5) ** 0.5)


def test_three_classes_by_hand():
  label_N, said_N = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 2, 0])
  found = agreement.figures(said_N, label_N, num_classes=3)
  assert found["accuracy"] == pytest.approx(4 / 6)
  assert found["f1"] == pytest.approx((2 / 4 + 4 / 5 + 2 / 3) / 3)
  assert found["mcc"] == pytest.approx((4 * 6 - 12) / ((36 - 14) * (36 - 12)) ** 0.5)


def test_one_answer_to_all_correlates_with_nothing():
  label_N = np.array([1, 0, 0, 1])
  always_0 = agreement.figures(np.zeros(4, int), label_N, num_classes=2)
  assert always_0 == {"accuracy": 0.5, "f1": 0.0, "mcc": 0.0}
  always_1 = agreement.figures(np.ones(4, int), label_N, num_classes=2)
  assert (always_1["f1"], always_1["mcc"]) == (pytest.approx(2 / 3), 0.0)
  assert agreement.figures(label_N, label_N, num_classes=2)["mcc"] == 1.0
  assert agreement.figures(1 - label_N, label_N, num_classes=2)["mcc"] == -1.0
