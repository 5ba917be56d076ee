"""All pictures of a run, in the order and under the headings of its report."""

from collections.abc import Mapping, Sequence

import numpy as np

from looped_lm.train.plots import by_loop, canvas, looked_at, over_steps
from looped_lm.train.plots.canvas import Plot
from looped_lm.train.plots.series import Record


def draw(
  records: Sequence[Record], views: Mapping[str, Mapping[str, np.ndarray]]
) -> tuple[dict[str, list[Plot]], list[str]]:
  """Draws every picture there are figures for.

  Args:
    records: As `metrics.read` gives them.
    views: As `views.read` gives them.

  Returns:
    Heading -> pictures, and the names of those without figures.

  Raises:
    ImportError: matplotlib is absent.
  """
  sections = {
    "Curves": over_steps.drawings(records),
    "Loops and depth": by_loop.drawings(records),
    "Inside the loops": looked_at.drawings(views),
  }
  pictures, missing = {}, []
  for heading, drawings in sections.items():
    pictures[heading], absent = canvas.render(drawings)
    missing += absent
  return pictures, missing
