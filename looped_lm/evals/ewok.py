"""EWoK (Ivanova et al., 2024): after which of two contexts is a sentence likelier?"""

from collections.abc import Iterable
import dataclasses

from etils import epath

from looped_lm.evals import records
from looped_lm.evals.choices import ChoiceTask, Item
from looped_lm.evals.scoring import Passage


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """P(target 1 | context 1) against P(target 1 | context 2), as the leaderboard of 2026.

  Mean accuracy over the eleven domains; chance is 50. The files hold every item both ways round.
  """

  name = "ewok"
  version = "ewok-context-swap-2026.1"

  def read(self) -> Iterable[Item]:
    """Reads the folder `ewok_filtered`, made from the authors' files."""
    for record in records.json_lines(folder(self.path, setting="evals.ewok.path")):
      target = record.text("Target1")
      contexts = record.text("Context1"), record.text("Context2")
      options = tuple(_after(context, target, where=record.where) for context in contexts)
      yield Item(
        group=record.text("Domain"),
        options=options,
        answers=tuple(option.text for option in options),
        tags=tags(record),
      )


def folder(path: str, *, setting: str) -> epath.Path:
  """Where the set lies.

  Raises:
    UserError: It does not; says where it comes from.
  """
  return records.found(
    path,
    setting=setting,
    origin="from its authors (ewok-core/ewok-core-1.0, behind their terms of use) through the "
    "BabyLM pipeline's filter, which writes full_eval/ewok_filtered",
  )


def targets(path: str, *, setting: str) -> Iterable[Item]:
  """Items that compare two targets after one context."""
  for record in records.json_lines(folder(path, setting=setting)):
    context = record.text("Context1")
    both = record.text("Target1"), record.text("Target2")
    yield Item(
      group=record.text("Domain"),
      options=tuple(_after(context, target, where=record.where) for target in both),
      answers=tuple(f" {target}" for target in both),
      tags=tags(record),
    )


def tags(record: records.Record) -> dict[str, str]:
  """What else an item is sorted by."""
  names = {
    "context_type": "ContextType",
    "context_contrast": "ContextDiff",
    "target_contrast": "TargetDiff",
  }
  return {tag: record.text(name) for tag, name in names.items()}


def _after(context: str, target: str, *, where: str) -> Passage:
  return Passage(text=f"{context} {target}", start=len(context), where=where)
