"""COMPS (Misra et al., 2023): which of two things has a property?"""

from collections.abc import Iterable
import dataclasses

from looped_lm.evals import records
from looped_lm.evals.choices import ChoiceTask, Item
from looped_lm.evals.scoring import Passage

_GROUPS = {
  "comps_base": "base",
  "comps_wugs": "wugs",
  "comps_wugs_dist-before": "wugs_dist_before",
  "comps_wugs_dist-in-between": "wugs_dist_in_between",
}


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """P(property | thing) for two things; mean accuracy over the four files; chance is 50."""

  name = "comps"
  version = "comps-2026.1"

  def read(self) -> Iterable[Item]:
    """Reads the folder `comps` of the official files."""
    folder = records.found(
      self.path,
      setting="evals.comps.path",
      origin="from the BabyLM evaluation files (full_eval/comps)",
    )
    for record in records.json_lines(folder):
      phrase = record.text("property_phrase")
      prefixes = record.text("prefix_acceptable"), record.text("prefix_unacceptable")
      options = tuple(
        Passage(text=f"{prefix} {phrase}", start=len(prefix) + 1, where=record.where)
        for prefix in prefixes
      )
      yield Item(
        group=_GROUPS.get(record.stem, record.stem),
        options=options,
        answers=tuple(option.text for option in options),
      )
