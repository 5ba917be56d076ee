"""Entity tracking with every item, as it was scored until 2025."""

from collections.abc import Iterable, Mapping
import dataclasses

from looped_lm.evals import moved_boxes
from looped_lm.evals.choices import ChoiceTask, Item


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """As `entity_tracking`, with the items that say "nothing"; chance is 20."""

  name = "entity_tracking_all"
  version = "entity-tracking-2025.1"

  def read(self) -> Iterable[Item]:
    """Reads the same files as `entity_tracking`."""
    return moved_boxes.items(self.path, setting="evals.entity_tracking_all.path")

  @staticmethod
  def average(percent_G: Mapping[str, float]) -> float:
    """Each file counts alike."""
    return moved_boxes.mean_of_files(percent_G)
