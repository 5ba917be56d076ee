"""EWoK as it was scored until 2025: which of two sentences follows from a context?"""

from collections.abc import Iterable
import dataclasses

from looped_lm.evals import knowledge_of_world
from looped_lm.evals.choices import ChoiceTask, Item


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """P(target 1 | context 1) against P(target 2 | context 1); chance is 50."""

  name = "ewok_target_swap"
  version = "ewok-target-swap-2025.1"

  def read(self) -> Iterable[Item]:
    """Reads the same files as `ewok`."""
    return knowledge_of_world.targets(self.path, setting="evals.ewok_target_swap.path")
