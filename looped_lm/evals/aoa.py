"""Age of acquisition (Chang & Bergen, 2022): are words learnt in the order children learn them?"""

from collections.abc import Iterator
import csv
import dataclasses
import io
import json
from typing import Any, ClassVar

from etils import epath
from jaxtyping import Float
import numpy as np

from looped_lm.errors import UserError
from looped_lm.evals import acquisition, records, results
from looped_lm.evals.scoring import Passage, Scorer
from looped_lm.types import Params, Subject

VERSION = "aoa-2026.1"
_MONTHS = range(16, 31)
# Above this p a correlation counts as none.
_CHANCE = 0.1
_PREFIX = "The"


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """100 times Pearson's r between a model's and children's age of acquisition; 0 where p > 0.1.

  A word's surprisal in its contexts (nats, its tokens summed, mean over contexts) is computed at
  every milestone of the run. The model's age is the number of words read at which a sigmoid fitted
  over their logarithm is halfway between the surprisal of chance and the lowest; the children's is
  the month at which half of them know the word.

  Attributes:
    subject: The model, its tokenizer and the run's milestones.
    path: The official cdi_childes.json, words and contexts.
    human_path: The official cdi_human.csv; "" looks beside `path`.
  """

  reads_its_set: ClassVar[bool] = True
  milestones_needed: ClassVar[int] = acquisition.FEWEST
  final_only: ClassVar[bool] = True

  subject: Subject
  path: str = ""
  human_path: str = ""

  def __post_init__(self) -> None:
    """Reads both files."""
    file = records.found(
      self.path,
      setting="evals.aoa.path",
      origin="from the BabyLM evaluation files (full_eval/aoa/cdi_childes.json)",
    )
    human = records.found(
      self.human_path or str(file.parent / "cdi_human.csv"),
      setting="evals.aoa.human_path",
      origin="from the BabyLM evaluation files (full_eval/aoa/cdi_human.csv)",
    )
    self.contexts = _contexts(file)
    self.child = _child_ages(human)

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Scores every milestone; the parameters at hand are not asked."""
    del params
    surprisal = self._surprisal()
    for backend, of_milestone in surprisal.items():
      summary = self._summary(of_milestone)
      yield f"eval/aoa/{backend}/score_percent", summary["score_percent"]
      if self.subject.folder is not None:
        folder = results.Folder(self.subject.folder, "aoa", backend)
        folder.write("predictions.json", self._official(of_milestone))
        folder.write("scores.json", summary, indent=1)

  def _surprisal(self) -> dict[str, dict[tuple[str, int], Float[np.ndarray, " P"]]]:
    """backend -> (milestone, words read) -> nats of each passage."""
    passages = [
      Passage(text=f"{context.strip()} {word.strip()}", start=len(context.strip()) + 1)
      for word, contexts in self.contexts.items()
      for context in contexts
    ]
    found: dict[str, dict[tuple[str, int], np.ndarray]] = {}
    for name, words, params in self.subject.milestones():
      for backend in self.subject.backends:
        scores = Scorer(subject=self.subject, backend=backend).score(params, passages)
        found.setdefault(backend, {})[name, words] = -scores.nats_LN[-1]
      results.say(f"aoa: {name} is scored.")
    return found

  def _summary(self, of_milestone: dict[tuple[str, int], np.ndarray]) -> dict[str, Any]:
    ordered = sorted(of_milestone.items(), key=lambda entry: entry[0][1])
    words_N = np.array([words for (_, words), _ in ordered], np.float64)
    owner_P = np.repeat(np.arange(len(self.contexts)), [len(c) for c in self.contexts.values()])
    count_W = np.bincount(owner_P)
    mean_NW = np.array([np.bincount(owner_P, weights=nats) / count_W for _, nats in ordered])
    model = {}
    for word, nats_N in zip(self.contexts, mean_NW.T, strict=True):
      ceiling = self._num_tokens(word) * float(np.log(self.subject.vocabulary.size))
      age = acquisition.model_age(words_N, nats_N, ceiling=ceiling)
      if age is not None:
        model[word] = age
    found = acquisition.correlation(model, self.child)
    r, p = found or (0.0, None)
    return {
      "task": "aoa",
      "metric_version": VERSION,
      "score_percent": 100.0 * r if p is not None and p <= _CHANCE else 0.0,
      "correlation": r,
      "p_value": p,
      "words": len(self.contexts),
      "words_of_model": len(model),
      "words_of_both": len(model.keys() & self.child.keys()),
      "milestones": [name for (name, _), _ in ordered],
      "age_of_model_log10_words": model,
      "age_of_children_months": {word: self.child[word] for word in model if word in self.child},
    }

  def _num_tokens(self, word: str) -> int:
    """Tokens of a word within a text."""
    encode = self.subject.tokenizer.encode
    return max(1, len(encode(f"{_PREFIX} {word}")) - len(encode(_PREFIX)))

  def _official(self, of_milestone: dict[tuple[str, int], np.ndarray]) -> dict[str, Any]:
    """Surprisals as the pipeline's surprisal.json has them."""
    asked = [
      (word, number, context)
      for word, contexts in self.contexts.items()
      for number, context in enumerate(contexts)
    ]
    told = [
      {
        "step": name,
        "word_count": words,
        "target_word": word,
        "context_id": number,
        "context": context,
        "surprisal": nats,
      }
      for (name, words), nats_P in of_milestone.items()
      for (word, number, context), nats in zip(asked, nats_P.tolist(), strict=True)
    ]
    count = len(of_milestone)
    metadata = {"use_bos_only": False, "total_steps": count, "completed_steps": count}
    return {"metadata": metadata, "results": told}


def _contexts(file: epath.Path) -> dict[str, list[str]]:
  """Words of more than one letter, and their contexts."""
  try:
    content = json.loads(file.read_text())
  except json.JSONDecodeError as error:
    raise UserError(f"{file}:{error.lineno}: this is no JSON: {error}.") from None
  if not isinstance(content, dict) or not content:
    raise UserError(f'{file} must be an object of words: {{"dog": [{{"context": "I saw a"}}]}}.')
  contexts = {}
  for word, entries in content.items():
    texts = [
      entry.get("context") if isinstance(entry, dict) else None for entry in _listed(entries)
    ]
    if not word.strip() or not texts or not all(isinstance(text, str) for text in texts):
      raise UserError(
        f"{file}: {word!r} must have a list of one or more objects with a text 'context'; it has "
        f"{str(entries)[:60]}."
      )
    if len(word) > 1:
      contexts[word] = texts
  if not contexts:
    raise UserError(f"{file} has no word of more than one letter.")
  return contexts


def _listed(value: Any) -> list[Any]:
  return value if isinstance(value, list) else []


def _child_ages(file: epath.Path) -> dict[str, float]:
  """word -> month; without words that the children do not learn within the ages."""
  reader = csv.DictReader(io.StringIO(file.read_text()))
  columns = [str(month) for month in _MONTHS if str(month) in (reader.fieldnames or ())]
  if "word" not in (reader.fieldnames or ()) or len(columns) < acquisition.FEWEST:
    raise UserError(
      f"{file}:1: the columns 'word' and at least {acquisition.FEWEST} of the months "
      f"{_MONTHS[0]} to {_MONTHS[-1]} are wanted; there are {reader.fieldnames}."
    )
  months_N = np.array(columns, np.float64)
  ages: dict[str, float] = {}
  seen: set[str] = set()
  for line, row in enumerate(reader, start=2):
    if row["word"] in seen:  # The first counts, as in the pipeline.
      continue
    seen.add(row["word"])
    try:
      share_N = np.array([float(row[column] or "nan") for column in columns])
    except (TypeError, ValueError):
      raise UserError(f"{file}:{line}: the months of {row['word']!r} must be numbers.") from None
    if (age := acquisition.child_age(months_N, share_N)) is not None:
      ages[row["word"]] = age
  if not ages:
    raise UserError(f"{file} has no word of which half of the children's learning is seen.")
  return ages
