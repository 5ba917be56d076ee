"""The document layer: cleaned text in TFDS form, as array_record and without TensorFlow.

A record holds the documents of at least 1,000 lines as one blob of UTF-8 with the byte at which
each document ends: reading one document a record would be bound by the cost of a record. The
last record of a split may be smaller, and a record is also closed at 4 MiB, so that a corpus of
long documents does not make records that no memory holds. Any TFDS reads the folder:

    source = tfds.builder_from_directory(folder / "documents/1.0.0").as_data_source("paths")
    source[0]["text"][: source[0]["ends"][0]]   # The first document.
"""

from collections.abc import Iterable, Iterator, Mapping
import errno
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

LINES_PER_RECORD = 1000
BYTES_PER_RECORD = 1 << 22


class _Info(tfds.core.DatasetInfo):
  """A description that is ours alone."""

  def initialize_from_bucket(self) -> None:
    """Does not ask a public bucket for it; TFDS would, and leave an empty temporary folder."""


class Documents(tfds.core.GeneratorBasedBuilder):
  """TFDS builder of documents that the program, not a download, supplies.

  Args:
    texts: Split -> its documents' texts, read once.
    data_dir: Where TFDS puts `documents/1.0.0`.
  """

  VERSION = tfds.core.Version("1.0.0")
  # TFDS looks for checksums of downloads beside the code, with a package it does not ask for.
  code_path = None

  def __init__(self, *, texts: Mapping[str, Iterable[str]], data_dir: str | os.PathLike[str]):
    self._texts = texts
    # The default format, TFRecord, is written by TensorFlow.
    super().__init__(data_dir=os.fspath(data_dir), file_format="array_record")

  def _info(self) -> tfds.core.DatasetInfo:
    features = {
      "text": tfds.features.Text(doc="Documents, one after the other, in UTF-8."),
      "ends": tfds.features.Tensor(shape=(None,), dtype=np.int64, doc="Byte where each ends."),
    }
    return _Info(
      builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
    )

  def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    del dl_manager  # Nothing is downloaded.
    return {split: self._generate_examples(texts) for split, texts in self._texts.items()}

  # TFDS announces downloads on stdout; there are none.
  def _log_download_bytes(self) -> None:
    pass

  def _log_download_done(self) -> None:
    pass

  def _generate_examples(self, texts: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    return enumerate(_records(texts))


def build(folder: pathlib.Path, texts: Mapping[str, Iterable[str]]) -> None:
  """Writes documents below a folder.

  Args:
    folder: Where `documents/1.0.0` goes.
    texts: Split -> its documents' texts, read once, in the order of the splits.

  Raises:
    OSError: The disk is full.
    Whatever reading `texts` raises, unchanged.
  """
  tfds.disable_progress_bar()  # Our own progress knows the size of the input.
  builder = Documents(texts=texts, data_dir=folder)
  try:
    builder.download_and_prepare()
  except Exception as error:
    # array_record says only in words what a full disk is.
    for number in (errno.ENOSPC, errno.EDQUOT):
      if os.strerror(number) in str(error):
        raise OSError(number, os.strerror(number), os.fspath(folder)) from error
    raise
  shutil.rmtree(folder / "downloads", ignore_errors=True)  # TFDS makes it; it is empty.


def read(folder: pathlib.Path, split: str) -> Iterator[list[str]]:
  """Reads documents in the order they were written, a record at a time."""
  builder = tfds.builder_from_directory(os.fspath(folder / "documents" / "1.0.0"))
  # A decorator of TFDS hides the method's parameters from type checkers.
  for record in builder.as_data_source(split):  # pyright: ignore[reportCallIssue]
    blob, end_D = record["text"], record["ends"]
    start_D = np.concatenate(([0], end_D[:-1]))
    yield [
      blob[start:end].decode() for start, end in zip(start_D.tolist(), end_D.tolist(), strict=True)
    ]


def _records(texts: Iterable[str]) -> Iterator[dict[str, Any]]:
  blobs: list[bytes] = []
  lines = size = 0

  def record() -> dict[str, Any]:
    ends_D = np.cumsum([len(blob) for blob in blobs], dtype=np.int64)
    return {"text": b"".join(blobs), "ends": ends_D}

  for text in texts:
    blobs.append(text.encode())
    lines += 1 + text.count("\n")
    size += len(blobs[-1])
    if lines >= LINES_PER_RECORD or size >= BYTES_PER_RECORD:
      yield record()
      blobs, lines, size = [], 0, 0
  if blobs:
    yield record()
