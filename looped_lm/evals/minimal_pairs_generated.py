"""A first look at a model's grammar that needs no data: minimal pairs made by rules."""

from collections.abc import Iterable
import dataclasses

from looped_lm.errors import UserError
from looped_lm.evals import generated_pairs, minimal_pairs
from looped_lm.evals.choices import ChoiceTask, Item


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """Mean accuracy over twelve paradigms of agreement, word order, determiners and questions.

  Chance is 50. Not BLiMP and no stand-in for it: short sentences of common words.

  Attributes:
    per_paradigm: Pairs of each.
  """

  name = "minimal_pairs_generated"
  version = "minimal-pairs-generated.1"

  per_paradigm: int = 20

  def read(self) -> Iterable[Item]:
    """Makes the pairs."""
    if self.path:
      raise UserError("evals.minimal_pairs_generated has no path: its pairs are made by rules.")
    if not 1 <= self.per_paradigm <= 60:
      raise UserError(
        f"evals.minimal_pairs_generated.per_paradigm={self.per_paradigm} must lie in [1, 60]."
      )
    for name, right, wrong in generated_pairs.pairs(per_paradigm=self.per_paradigm):
      tags = {"field": name.split("/")[0]}
      yield minimal_pairs.pair(right, wrong, group=name, tags=tags, where=name)
