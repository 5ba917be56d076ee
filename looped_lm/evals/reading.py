"""Reading times (de Varda et al., 2023): does surprisal explain how long people look at a word?"""

from collections.abc import Iterator
import csv
import dataclasses
import io
import itertools
import math
from typing import ClassVar

from etils import epath
from jaxtyping import Float
import numpy as np

from looped_lm.data.tokenizer import MASK
from looped_lm.errors import UserError
from looped_lm.evals import records, results
from looped_lm.evals.scoring import Scorer, indifferent
from looped_lm.types import Params, Subject

VERSION = "reading-2026.1"
_EYE = ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound")
_SELF_PACED = "self_paced_reading_time"
_WORD = ("Subtlex_log10", "length", "context_length")
_MISSING = ("", "None")
_NUM_MASKS = 3

Asked = tuple[str, str]  # Context, word.


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Share of the unexplained variance that surprisal explains, in percent.

  100 · (R² with surprisal - R² without) / (1 - R² without), of least squares on frequency, length,
  context length and their products; `eye_tracking_percent` is the mean over four measures. Self-
  paced reading adds length and surprisal of the word before, and the products with them.

  A word's surprisal is that of its tokens, one after another, as the official pipeline computes
  it: each token is turned into text, joined to the context and tokenized anew. With a tokenizer
  that puts a space before every text, a word's later tokens are then asked for as if they began a
  word. So the score says as much of the tokenizer as of the model; compare it within one tokenizer.
  The masked backends put three masks behind the context and read the first one's token.

  Attributes:
    subject: The model and its tokenizer.
    path: The official reading_data.csv.
  """

  reads_its_set: ClassVar[bool] = True

  subject: Subject
  path: str = ""

  def __post_init__(self) -> None:
    """Reads the table."""
    file = records.found(
      self.path,
      setting="evals.reading.path",
      origin="from the BabyLM evaluation files (full_eval/reading/reading_data.csv)",
    )
    self.table = _read(file)

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Computes surprisals and fits the times."""
    for backend in self.subject.backends:
      scorer = Scorer(subject=self.subject, backend=backend)
      asked = {pair: None for pair in (*self.table.words, *self.table.previous) if pair}
      nats = dict(zip(asked, self._surprisal(scorer, params, list(asked)), strict=True))
      nats_N = np.array([nats[pair] for pair in self.table.words])
      previous_N = np.array([nats[pair] if pair else math.nan for pair in self.table.previous])
      scores = _explained(self.table.columns, nats_N, previous_N)
      for name, percent in scores.items():
        yield f"eval/reading/{backend}/{name}", percent
      if self.subject.folder is not None:
        folder = results.Folder(self.subject.folder, "reading", backend)
        told = [
          {"id": number, "pred": nats, "prev_pred": previous}
          for number, (nats, previous) in enumerate(
            zip(nats_N.tolist(), previous_N.tolist(), strict=True)
          )
        ]
        folder.write("predictions.json", {"reading": {"predictions": told}})
        folder.write("scores.json", {"metric_version": VERSION, **scores}, indent=1)

  def _surprisal(self, scorer: Scorer, params: Params, asked: list[Asked]) -> np.ndarray:
    """Surprisal of each word after its context, in nats."""
    tokenizer, bos = self.subject.tokenizer, [self.subject.vocabulary.bos_id]
    masks = "" if scorer.backend == "causal" else MASK * _NUM_MASKS
    # The last position, or the one before the first mask, or the first mask itself.
    back = {"causal": 1, "mntp": _NUM_MASKS + 1, "mlm": _NUM_MASKS}[scorer.backend]
    ids, read, target, owner = [], [], [], []
    for number, (context, word) in enumerate(asked):
      pieces = tokenizer.encode_with_specials(word)
      text = context
      for place, piece in enumerate(pieces.tolist()):
        spelling = tokenizer.decode([piece])
        sequence = np.concatenate([bos, tokenizer.encode_with_specials(text + masks)])
        ids.append(sequence.astype(np.int32))
        read.append(len(sequence) - back)
        again = tokenizer.encode_with_specials(spelling) if place else [piece]
        target.append(int(again[0]))
        owner.append(number)
        text += spelling
    nats_N = scorer.ask(params, ids, read_N=np.array(read), target_N=np.array(target))[-1]
    if indifferent(nats_N):
      return np.zeros(len(asked))  # Else the number of tokens would pass for surprisal.
    return np.bincount(np.array(owner), weights=-nats_N.astype(np.float64), minlength=len(asked))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rows:
  words: list[Asked]
  previous: list[Asked | None]
  columns: dict[str, Float[np.ndarray, " N"]]


def _read(file: epath.Path) -> _Rows:
  """Reads the table; a number that is missing is NaN."""
  numeric = (*_EYE, _SELF_PACED, *_WORD, "prev_length")
  reader = csv.DictReader(io.StringIO(file.read_text()))
  absent = {"item", "word", "prev_item", "prev_word", *numeric} - set(reader.fieldnames or ())
  if absent:
    raise UserError(f"{file}:1: the columns {sorted(absent)} are missing.")
  words, previous = [], []
  columns: dict[str, list[float]] = {name: [] for name in numeric}
  for line, row in enumerate(reader, start=2):
    if not row["word"]:
      raise UserError(f"{file}:{line}: 'word' is empty.")
    # The pipeline reads an empty context as the word "None", and such a word before as nothing.
    words.append((row["item"] or "None", row["word"]))
    has_previous = row["prev_item"] not in _MISSING
    previous.append((row["prev_item"], row["prev_word"]) if has_previous else None)
    for name in numeric:
      try:
        columns[name].append(float(row[name] or "nan"))
      except (TypeError, ValueError):
        raise UserError(f"{file}:{line}: {name!r} must be a number; it is {row[name]!r}.") from None
  if len(words) < 30:
    raise UserError(f"{file} has {len(words)} words; at least 30 are needed to fit reading times.")
  return _Rows(
    words=words,
    previous=previous,
    columns={name: np.array(values) for name, values in columns.items()},
  )


def _explained(
  columns: dict[str, Float[np.ndarray, " N"]],
  nats_N: Float[np.ndarray, " N"],
  previous_N: Float[np.ndarray, " N"],
) -> dict[str, float]:
  known = [columns[name] for name in _WORD]
  eye = [_gain(columns[name], known, nats_N) for name in _EYE]
  spillover = [*known, columns["prev_length"], previous_N]
  return {
    "eye_tracking_percent": sum(eye) / len(eye),
    "self_paced_percent": _gain(columns[_SELF_PACED], spillover, nats_N),
  }


def _gain(
  y_N: Float[np.ndarray, " N"],
  known: list[Float[np.ndarray, " N"]],
  nats_N: Float[np.ndarray, " N"],
) -> float:
  """100 · (R²₁ - R²₀) / (1 - R²₀): what surprisal adds to known columns and their products."""
  complete_N = np.isfinite(np.stack([y_N, *known])).all(axis=0)
  y_N, nats_N = y_N[complete_N], nats_N[complete_N]
  known = [x_N[complete_N] for x_N in known]
  products = [one * two for one, two in itertools.combinations(known, 2)]
  before = r_squared(y_N, [*known, *products])
  after = r_squared(y_N, [*known, *products, nats_N])
  return 100.0 * (after - before) / (1.0 - before)


def r_squared(y_N: Float[np.ndarray, " N"], columns: list[Float[np.ndarray, " N"]]) -> float:
  """R² of least squares with an intercept.

  Columns are centred and scaled first, which changes no fit and keeps products of large numbers
  from drowning the rest.
  """
  x_NP = np.stack(columns, axis=1)
  x_NP = x_NP - x_NP.mean(axis=0)
  scale_P = x_NP.std(axis=0)
  x_NP = x_NP / np.where(scale_P > 0, scale_P, 1.0)
  y_N = y_N - y_N.mean()
  weights_P = np.linalg.lstsq(x_NP, y_N, rcond=None)[0]
  rest_N = y_N - x_NP @ weights_P
  return 1.0 - float(rest_N @ rest_N) / float(y_N @ y_N)
