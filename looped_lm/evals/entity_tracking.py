"""Entity tracking (Kim & Schuster, 2023): what is in the box after everything has been moved?"""

from collections.abc import Iterable, Mapping
import dataclasses

from looped_lm.evals import moved_boxes
from looped_lm.evals.choices import ChoiceTask, Item


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """Mean over the files of the mean over the numbers of operations; chance is 20.

  Items of which an option says "nothing" are left out, as the leaderboard of 2026 does.
  """

  name = "entity_tracking"
  version = "entity-tracking-filtered-2026.1"

  def read(self) -> Iterable[Item]:
    """Reads the folder `entity_tracking` of the official files."""
    for item in moved_boxes.items(self.path, setting="evals.entity_tracking.path"):
      if not any("nothing" in answer for answer in item.answers):
        yield item

  @staticmethod
  def average(percent_G: Mapping[str, float]) -> float:
    """Each file counts alike."""
    return moved_boxes.mean_of_files(percent_G)
