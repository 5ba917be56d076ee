"""The items of EWoK (Ivanova et al., 2024), compared by context or by target."""

from collections.abc import Iterable

from etils import epath

from looped_lm.evals import records
from looped_lm.evals.choices import Item
from looped_lm.evals.scoring import Passage


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


def contexts(path: str, *, setting: str) -> Iterable[Item]:
  """Items that compare two contexts before one target."""
  for record in records.json_lines(folder(path, setting=setting)):
    target = record.text("Target1")
    both = record.text("Context1"), record.text("Context2")
    options = tuple(_after(context, target, where=record.where) for context in both)
    yield Item(
      group=record.text("Domain"),
      options=options,
      answers=tuple(option.text for option in options),
      tags=tags(record),
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
