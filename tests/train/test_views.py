"""What is shown comes back from disk as it was, texts too."""

import numpy as np

from looped_lm.train import views


def test_views_come_back(tmp_path):
  shown = {"lens": {"token_T": np.array(["·a", "naïve", ""]), "p_T": np.array([0.5, np.nan, 1.0])}}
  assert views.read(str(tmp_path)) == {}
  views.write(str(tmp_path), {"lens": {"old": np.zeros(2)}})
  views.write(str(tmp_path), shown)
  found = views.read(str(tmp_path))
  assert list(found) == ["lens"]
  assert list(found["lens"]) == ["token_T", "p_T"]
  for name, array in shown["lens"].items():
    np.testing.assert_array_equal(found["lens"][name], array)
