"""Perplexity and bits per byte of text files, each file a genre."""

from collections.abc import Iterator
import dataclasses
import math
from typing import ClassVar

import numpy as np

from looped_lm.errors import UserError
from looped_lm.evals import records, results
from looped_lm.evals.scoring import Scorer
from looped_lm.types import Params, Subject

VERSION = "perplexity.1"


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """exp(nats per token) and bits per byte of UTF-8, for every file.

  A line that is not blank is a text of its own. One with more tokens than the model was trained on
  is cut into parts of that length, each read from a `<s>` of its own; no token is left out. Only
  bits per byte compare between tokenizers. The masked backends give pseudo-perplexities, which
  compare among themselves alone.

  Attributes:
    subject: The model and its tokenizer.
    path: A folder of .txt files, or one file.
  """

  reads_its_set: ClassVar[bool] = True

  subject: Subject
  path: str = ""

  def __post_init__(self) -> None:
    """Reads the files."""
    place = records.found(
      self.path,
      setting="evals.perplexity.path",
      origin="as plain text, one file per genre",
    )
    files = sorted(place.glob("*.txt")) if place.is_dir() else [place]
    if not files:
      raise UserError(f"{place} holds no .txt file.")
    self.lines = {}
    for file in files:
      lines = [line for line in file.read_text().split("\n") if line.strip()]
      if not lines:
        raise UserError(f"{file} is empty.")
      self.lines[file.stem] = lines

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Scores the files."""
    bos = np.array([self.subject.vocabulary.bos_id], np.int32)
    longest = self.subject.held_out.seq_len - 1
    for backend in self.subject.backends:
      scorer = Scorer(subject=self.subject, backend=backend)
      figures = {}
      for genre, lines in self.lines.items():
        parts = [
          np.concatenate([bos, encoded.ids_T[first : first + longest]])
          for encoded in self.subject.tokenizer.encode_batch(lines)
          for first in range(0, len(encoded.ids_T), longest)
        ]
        scores = scorer.score_ids(params, parts)
        nats = -float(scores.nats_LN[-1].sum())
        num_bytes = sum(len(line.encode()) for line in lines)
        figures[genre] = {
          "perplexity": math.exp(nats / scores.tokens_N.sum()),
          "bits_per_byte": nats / math.log(2) / num_bytes,
        }
        for name, value in figures[genre].items():
          yield f"eval/perplexity/{backend}/{genre}/{name}", value
      if self.subject.folder is not None:
        folder = results.Folder(self.subject.folder, "perplexity", backend)
        folder.write("scores.json", {"metric_version": VERSION, "files": figures}, indent=1)
