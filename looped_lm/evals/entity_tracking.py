"""Entity tracking (Kim & Schuster, 2023): what is in the box after everything has been moved?"""

from collections.abc import Iterable, Mapping
import dataclasses

from looped_lm.evals import records
from looped_lm.evals.choices import ChoiceTask, Item
from looped_lm.evals.scoring import Passage


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """Mean over the files of the mean over the numbers of operations; chance is 20.

  Items of which an option says "nothing" are left out, as the leaderboard of 2026 does.
  """

  name = "entity_tracking"
  version = "entity-tracking-filtered-2026.1"

  def read(self) -> Iterable[Item]:
    """Reads the folder `entity_tracking` of the official files."""
    for item in items(self.path, setting="evals.entity_tracking.path"):
      if not any("nothing" in answer for answer in item.answers):
        yield item

  @staticmethod
  def average(percent_G: Mapping[str, float]) -> float:
    """Each file counts alike."""
    return mean_of_files(percent_G)


def items(path: str, *, setting: str) -> Iterable[Item]:
  """Every item; the first of its options is right."""
  folder = records.found(
    path,
    setting=setting,
    origin="from the BabyLM evaluation files (full_eval/entity_tracking)",
  )
  for record in records.json_lines(folder):
    prefix, options = record.text("input_prefix"), record.texts("options")
    yield Item(
      group=f"{record.stem}_{record.integer('numops')}_ops",
      options=tuple(
        Passage(text=prefix + option, start=len(prefix), where=record.where) for option in options
      ),
      answers=tuple(options),
      tags={"file": record.stem},
    )


def mean_of_files(percent_G: Mapping[str, float]) -> float:
  """The mean over files of the mean over their numbers of operations."""
  files: dict[str, list[float]] = {}
  for group, percent in percent_G.items():
    files.setdefault(group.rsplit("_", 2)[0], []).append(percent)
  return sum(sum(each) / len(each) for each in files.values()) / len(files)
