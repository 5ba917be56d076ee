"""BLiMP (Warstadt et al., 2020): which of two sentences is English."""

from collections.abc import Iterable
import dataclasses

from looped_lm.evals import minimal_pairs, records
from looped_lm.evals.choices import ChoiceTask, Item


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """Mean accuracy over the 67 paradigms; chance is 50."""

  name = "blimp"
  version = "blimp-2026.1"

  def read(self) -> Iterable[Item]:
    """Reads the folder `blimp_filtered` of the official files."""
    folder = records.found(
      self.path,
      setting="evals.blimp.path",
      origin="from the BabyLM evaluation files (full_eval/blimp_filtered)",
    )
    return minimal_pairs.read(folder)
