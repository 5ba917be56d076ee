"""The BabyLM supplement to BLiMP: questions, turns of talk, hypernyms."""

from collections.abc import Iterable
import dataclasses

from looped_lm.evals import minimal_pairs, records
from looped_lm.evals.choices import ChoiceTask, Item


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """Mean accuracy over the five files; chance is 50."""

  name = "blimp_supplement"
  version = "blimp-supplement-2026.1"

  def read(self) -> Iterable[Item]:
    """Reads the folder `supplement_filtered` of the official files."""
    folder = records.found(
      self.path,
      setting="evals.blimp_supplement.path",
      origin="from the BabyLM evaluation files (full_eval/supplement_filtered)",
    )
    return minimal_pairs.read(folder)
