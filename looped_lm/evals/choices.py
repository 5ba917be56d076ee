"""Tasks that ask which of several texts the model finds likeliest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any, ClassVar
import zlib

from jaxtyping import Float
import numpy as np

from looped_lm.errors import UserError
from looped_lm.evals import results
from looped_lm.evals.scoring import Passage, Scorer, Scores
from looped_lm.types import Params, Subject

# Scores closer than this are a tie: batching alone moves a sum of float32 logarithms by less.
TIE_NATS = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
  """One question.

  Attributes:
    group: What it is averaged with (BLiMP's UID).
    options: The texts to choose from.
    answers: How predictions name each option.
    label: The right option.
    tags: Further sortings, reported but not averaged: {"field": "syntax"}.
  """

  group: str
  options: tuple[Passage, ...]
  answers: tuple[str, ...]
  label: int = 0
  tags: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """What a model made of an item.

  Attributes:
    credit: 1 where the right option wins alone, 1/k where it shares the first place with k - 1
      others, else 0.
    tied: How many options share the first place.
    answer: The option that predictions name; among tied ones, drawn by the item's name.
  """

  credit: float
  tied: int
  answer: int


def judge(
  item: Item, score_O: Float[np.ndarray, " O"], *, name: str, indifferent: bool = False
) -> Outcome:
  """Compares the options of an item.

  Args:
    item: The item.
    score_O: Score of each option.
    name: Names the item among all; decides between tied options, alike in every run.
    indifferent: The model finds every token equally likely, so that all options tie.
  """
  is_best_O = score_O >= score_O.max() - TIE_NATS
  if indifferent:
    is_best_O = np.ones(len(score_O), bool)
  best = np.flatnonzero(is_best_O)
  credit = 1.0 / len(best) if is_best_O[item.label] else 0.0
  answer = int(best[zlib.crc32(name.encode()) % len(best)])
  return Outcome(credit=credit, tied=len(best), answer=answer)


@dataclasses.dataclass(kw_only=True, eq=False)
class ChoiceTask:
  """A task of items with options; a file of the folder says what one is.

  Yields, for every backend, `eval/<name>/<backend>/score_percent`, `/ties_percent` (items whose
  first place is shared) and `/loop/<r>/score_percent` for the loops asked for. Leaves
  `scores.json`, `predictions.json` (the official pipeline's form) and `credits.json` in
  `<folder>/<name>/<backend>/`.

  Attributes:
    subject: The model and its tokenizer.
    path: Where the set lies.
    most_per_group: Most items of a group, the first ones; 0 takes all.
  """

  name: ClassVar[str]
  version: ClassVar[str]  # Changes with the numbers: what is scored, how, or how it is averaged.
  length_normalized: ClassVar[bool] = False
  reads_its_set: ClassVar[bool] = True

  subject: Subject
  path: str = ""
  most_per_group: int = 0

  def __post_init__(self) -> None:
    """Reads the set at once, so that what is wrong with it is said before anything compiles."""
    if self.most_per_group < 0:
      raise UserError(
        f"evals.{self.name}.most_per_group={self.most_per_group} must be at least 0; 0 takes all."
      )
    counts: dict[str, int] = {}
    self.items: list[Item] = []
    for item in self.read():
      counts[item.group] = counts.get(item.group, 0) + 1
      if not self.most_per_group or counts[item.group] <= self.most_per_group:
        self.items.append(item)
    if not self.items:
      raise UserError(f"evals.{self.name}.path={self.path!r} holds no item.")

  def read(self) -> Iterable[Item]:
    """Gives the items."""
    raise NotImplementedError

  @staticmethod
  def average(percent_G: Mapping[str, float]) -> float:
    """The task's score from those of its groups: their mean."""
    return sum(percent_G.values()) / len(percent_G)

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Scores the items."""
    passages = [option for item in self.items for option in item.options]
    for backend in self.subject.backends:
      scorer = Scorer(subject=self.subject, backend=backend)
      scores = scorer.score(params, passages)
      prefix = f"eval/{self.name}/{backend}"
      for level, loop in enumerate(scorer.loops):
        outcomes = self._judge(scores, level)
        summary = self._summary(outcomes)
        if self.subject.loops:
          yield f"{prefix}/loop/{loop:02}/score_percent", summary["score_percent"]
      yield f"{prefix}/score_percent", summary["score_percent"]
      yield f"{prefix}/ties_percent", summary["ties_percent"]
      if self.subject.folder is not None:
        self._leave(results.Folder(self.subject.folder, self.name, backend), outcomes, summary)

  def _judge(self, scores: Scores, level: int) -> list[Outcome]:
    nats_N = scores.nats_LN[level]
    if self.length_normalized:
      nats_N = nats_N / scores.tokens_N
    outcomes, first = [], 0
    for name, item in zip(names(self.items), self.items, strict=True):
      score_O = nats_N[first : first + len(item.options)]
      first += len(item.options)
      outcomes.append(judge(item, score_O, name=name, indifferent=scores.indifferent_L[level]))
    return outcomes

  def _summary(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The scores, by group and by tag."""
    groups = _means(((item.group, outcome.credit) for item, outcome in self._with(outcomes)))
    tags = {
      tag: _means((item.tags[tag], outcome.credit) for item, outcome in self._with(outcomes))
      for tag in self.items[0].tags
    }
    return {
      "task": self.name,
      "metric_version": self.version,
      "score_percent": self.average(groups),
      "ties_percent": 100.0 * sum(outcome.tied > 1 for outcome in outcomes) / len(outcomes),
      "items": len(outcomes),
      "groups_percent": groups,
      "tags_percent": tags,
    }

  def _with(self, outcomes: Sequence[Outcome]) -> Iterator[tuple[Item, Outcome]]:
    return zip(self.items, outcomes, strict=True)

  def _leave(
    self, folder: results.Folder, outcomes: Sequence[Outcome], summary: Mapping[str, Any]
  ) -> None:
    predictions: dict[str, Any] = {}
    credits: dict[str, list[float]] = {}
    for name, (item, outcome) in zip(names(self.items), self._with(outcomes), strict=True):
      told = predictions.setdefault(item.group, {"predictions": []})["predictions"]
      told.append({"id": name, "pred": item.answers[outcome.answer]})
      credits.setdefault(item.group, []).append(outcome.credit)
    folder.write("scores.json", summary, indent=1)
    folder.write("predictions.json", predictions)
    folder.write("credits.json", {"metric_version": self.version, "credits": credits})


def names(items: Iterable[Item]) -> Iterator[str]:
  """Names items as the official predictions do: the group and a count."""
  counts: dict[str, int] = {}
  for item in items:
    number = counts.get(item.group, 0)
    counts[item.group] = number + 1
    yield f"{item.group}_{number}"


def _means(values: Iterable[tuple[str, float]]) -> dict[str, float]:
  """Mean percentage by name, in order of first appearance."""
  sums: dict[str, tuple[float, int]] = {}
  for name, value in values:
    total, count = sums.get(name, (0.0, 0))
    sums[name] = (total + value, count + 1)
  return {name: 100.0 * total / count for name, (total, count) in sums.items()}
