"""The cleaned documents between raw files and tokens, and which of them are held out."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
import hashlib
import pathlib
from typing import Any

from jaxtyping import Bool, UInt64
import numpy as np

from looped_lm.data import clean, corpus, quickstart, sources
from looped_lm.data.documents import Document
from looped_lm.errors import UserError

# Where a document came from: splits of the document layer.
PATHS, VALIDATION_PATHS = "paths", "validation_paths"

Progress = Callable[[str], None]


class Layer:
  """Cleaned documents on disk, and the split into training and validation.

  Args:
    folder: Where the documents go.
    fraction: The part of the distinct texts of `data.paths` that is held out.
  """

  def __init__(self, folder: pathlib.Path, *, fraction: float):
    self._folder = folder
    self._fraction = fraction
    self._hashes: dict[str, UInt64[np.ndarray, " D"]] = {}
    self._held: dict[str, Bool[np.ndarray, " D"]] = {}
    self._documents: Counter[str] = Counter()
    self._words: Counter[str] = Counter()

  # ---- Raw text in

  def write(
    self,
    files: dict[str, list[dict[str, Any]]],
    *,
    document: str,
    text_field: str,
    cleaner: clean.Cleaner,
    progress: Progress,
  ) -> None:
    """Reads, cleans and stores all text, and decides what is held out.

    Args:
      files: Split of the document layer -> its files, each with `path` and `bytes`.
      document: As `sources.read` says.
      text_field: As `sources.read` says.
      cleaner: Counts what it does.
      progress: Told how far the work is.

    Raises:
      UserError: Text cannot be read, or cleaning or holding out leaves none.
    """
    hashes = {split: bytearray() for split in files}
    streams = {}
    for split, group in files.items():
      meter = _Meter(progress, "Reading and cleaning", total=sum(file["bytes"] for file in group))
      paths = [file["path"] for file in group]
      raw = sources.read(paths, document=document, text_field=text_field)
      cleaned = cleaner.run(_measured(raw, group, meter))
      streams[split] = self._watched(cleaned, hashes[split], split=split, cleaner=cleaner)
    corpus.build(self._folder, streams)
    for split, found in hashes.items():
      self._hashes[split] = np.frombuffer(bytes(found), np.uint64)
    self._split()

  def _watched(
    self,
    documents: Iterable[Document],
    hashes: bytearray,
    *,
    split: str,
    cleaner: clean.Cleaner,
  ) -> Iterator[str]:
    for document in documents:
      hashes += hashlib.blake2b(document.text.encode(), digest_size=8).digest()
      self._documents[document.file] += 1
      self._words[document.file] += len(document.text.split())
      yield document.text
    if not hashes:
      raise UserError(
        f"Cleaning left no document of data.{split}; shorten data.cleaning, which is "
        f"{list(cleaner.report())}."
      )

  def _split(self) -> None:
    """Holds out the distinct texts of the smallest hashes, so equal texts are on one side."""
    distinct = np.unique(self._hashes[PATHS])
    held = self._fraction * len(distinct)
    self._held = {split: np.ones(len(found), bool) for split, found in self._hashes.items()}
    self._held[PATHS][:] = False
    if self._fraction:
      last = distinct[max(1, round(held)) - 1]
      self._held[PATHS] = self._hashes[PATHS] <= last
    if self._held[PATHS].all():
      raise UserError(
        f"data.validation_fraction={self._fraction} leaves none of the {len(distinct)} distinct "
        "document(s) to train on; give more text, or set it to 0."
      )

  # ---- Text out

  def records(
    self, progress: Progress, what: str
  ) -> Iterator[tuple[list[str], Bool[np.ndarray, " D"]]]:
    """Gives the documents a record at a time, with which of them are held out."""
    meter = _Meter(progress, what, total=sum(map(len, self._hashes.values())))
    for split, held_D in self._held.items():
      done = 0
      for texts in corpus.read(self._folder, split):
        yield texts, held_D[done : done + len(texts)]
        done += len(texts)
        meter.add(len(texts))
      assert done == len(held_D), "the document layer gives what was written"

  def training_texts(self, progress: Progress) -> Iterator[str]:
    """Gives the texts that are not held out."""
    for texts, held_D in self.records(progress, "Training the tokenizer: reading"):
      yield from (text for text, held in zip(texts, held_D, strict=True) if not held)
    progress("Training the tokenizer: merging pairs.")

  # ---- Facts

  def overlap(self) -> int:
    """Counts validation documents whose text is also trained on; 0 with a fraction."""
    hashes, held = (np.concatenate(list(x.values())) for x in (self._hashes, self._held))
    return int(np.isin(hashes[held], hashes[~held]).sum())

  def provenance(self, files: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Says what was read, and how much of it cleaning kept."""
    told = []
    for split, group in files.items():
      for file in group:
        told.append(
          {"split": split} | {k: v for k, v in file.items() if k != "path"} | self._kept(file)
        )
    return told

  def _kept(self, file: dict[str, Any]) -> dict[str, int]:
    path = file["path"]
    # Built-in corpora name their parts: corpus:quickstart/bbe.
    parts = [part for part in self._documents if part == path or part.startswith(f"{path}/")]
    if not parts and path in quickstart.BUILT_IN:
      # Where the quickstart packages are absent, generated English stands in.
      parts = [quickstart.GENERATED]
    return {
      "documents": sum(self._documents[part] for part in parts),
      "words": sum(self._words[part] for part in parts),
    }


class _Meter:
  """Tells how far a long piece of work is, at every tenth."""

  def __init__(self, progress: Progress, what: str, *, total: int):
    self._progress, self._what, self._total = progress, what, total
    self._done = self._told = 0

  def at(self, done: int) -> None:
    self._done = done
    tenth = 10 * done // self._total if self._total else 0
    if tenth > self._told:
      self._told = tenth
      self._progress(f"{self._what}: {10 * tenth}%")

  def add(self, done: int) -> None:
    self.at(self._done + done)


def _measured(
  documents: Iterator[Document], files: list[dict[str, Any]], meter: _Meter
) -> Iterator[Document]:
  """Passes documents on and tells how much of the files' bytes has gone by."""
  sizes = {file["path"]: file["bytes"] for file in files}
  finished, current, inside = 0, None, 0
  for document in documents:
    if document.file != current:
      finished += sizes.get(current or "", 0)
      current, inside = document.file, 0
    # A compressed file's text is longer than the file: it counts as whole until the next begins.
    inside = min(inside + len(document.text) + 1, sizes.get(current, 0))
    meter.at(finished + inside)
    yield document
  meter.at(sum(sizes.values()))
