"""WUG, adjectives to nouns, as it was scored until 2025: do models and people prefer alike?"""

from collections.abc import Iterator
import dataclasses
from typing import ClassVar

import numpy as np

from looped_lm.errors import UserError
from looped_lm.evals import records, results
from looped_lm.evals.scoring import Passage, Scorer
from looped_lm.types import Params, Subject

VERSION = "wug-spearman-2025.1"


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Spearman's correlation, times 100, of the model's preference with people's.

  The model's is the softmax of the two sentences' log-probabilities, people's the share that chose
  the first. No part of the leaderboard since 2026. A model that prefers nothing scores 0.

  Attributes:
    subject: The model and its tokenizer.
    path: A folder or file of the official files.
  """

  reads_its_set: ClassVar[bool] = True

  subject: Subject
  path: str = ""

  def __post_init__(self) -> None:
    """Reads the set."""
    folder = records.found(
      self.path,
      setting="evals.wug.path",
      origin="from the BabyLM evaluation files of 2025 (full_eval/wug_adj_nominalization)",
    )
    self.pairs: list[Passage] = []
    ratios = []
    for record in records.json_lines(folder):
      texts = record.text("sentences").split("\t")
      if len(texts) != 2 or not all(texts):
        raise UserError(f"{record.where}: 'sentences' must be two texts with a tab between them.")
      self.pairs += [Passage(text=text, where=record.where) for text in texts]
      ratios.append(record.number("ratio"))
    self.ratio_N = np.array(ratios)
    if len(ratios) < 2:
      raise UserError(f"evals.wug.path={self.path!r} holds {len(ratios)} pair; two are needed.")

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Scores the pairs."""
    for backend in self.subject.backends:
      scores = Scorer(subject=self.subject, backend=backend).score(params, self.pairs)
      first_N, second_N = scores.nats_LN[-1].reshape(-1, 2).T
      # softmax over two, in the form that cannot overflow.
      preference_N = np.exp(-np.logaddexp(0.0, second_N - first_N))
      if scores.indifferent_L[-1]:
        preference_N = np.full_like(preference_N, 0.5)
      score = 100.0 * spearman(preference_N, self.ratio_N)
      yield f"eval/wug/{backend}/score_percent", score
      if self.subject.folder is not None:
        folder = results.Folder(self.subject.folder, "wug", backend)
        told = []
        for number, probability in enumerate(preference_N.tolist()):
          chosen = self.pairs[2 * number + (probability < 0.5)].text
          told.append({"id": f"wug_adj_{number}", "pred": chosen, "prob": probability})
        folder.write("predictions.json", {"wug_adj": {"predictions": told}})
        summary = {"task": "wug", "metric_version": VERSION, "score_percent": score}
        folder.write("scores.json", summary, indent=1)


def spearman(x_N: np.ndarray, y_N: np.ndarray) -> float:
  """Pearson's correlation of the ranks, ties sharing their mean rank; 0 where one side is flat."""
  x_N, y_N = _ranks(x_N), _ranks(y_N)
  x_N, y_N = x_N - x_N.mean(), y_N - y_N.mean()
  norm = float(np.sqrt((x_N @ x_N) * (y_N @ y_N)))
  return float(x_N @ y_N) / norm if norm else 0.0


def _ranks(x_N: np.ndarray) -> np.ndarray:
  _, inverse, counts = np.unique(x_N, return_inverse=True, return_counts=True)
  last = np.cumsum(counts)
  return (last - (counts - 1) / 2)[inverse.reshape(-1)]
