"""The items of entity tracking (Kim & Schuster, 2023), and how they are averaged."""

from collections.abc import Iterable, Mapping

from looped_lm.evals import records
from looped_lm.evals.choices import Item
from looped_lm.evals.scoring import Passage


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
