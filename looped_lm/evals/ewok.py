"""EWoK (Ivanova et al., 2024): after which of two contexts is a sentence likelier?"""

from collections.abc import Iterable
import dataclasses

from looped_lm.evals import knowledge_of_world
from looped_lm.evals.choices import ChoiceTask, Item


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """P(target 1 | context 1) against P(target 1 | context 2), as the leaderboard of 2026.

  Mean accuracy over the eleven domains; chance is 50. The files hold every item both ways round.
  """

  name = "ewok"
  version = "ewok-context-swap-2026.1"

  def read(self) -> Iterable[Item]:
    """Reads the folder `ewok_filtered`, made from the authors' files."""
    return knowledge_of_world.contexts(self.path, setting="evals.ewok.path")
