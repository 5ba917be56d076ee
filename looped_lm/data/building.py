"""Raw files to everything training reads, in one folder; streaming, so memory stays small.

    documents/        cleaned text (corpus.py)           tokenizer.json
    train/            tokens.npy and the rows' tables    validation/   the same, held out
    unigram.npy       counts of the training tokens      report.json, report.txt

Text is read three times at most: cleaned into the document layer, from there into the tokenizer's
training if one is trained, and from there into tokens. Held-out text trains no tokenizer.
"""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from looped_lm.data import clean, data_report, packing
from looped_lm.data import tokenizer as tokenizers
from looped_lm.data.layer import Layer, Progress
from looped_lm.data.rows import ArrayWriter, Rows
from looped_lm.errors import UserError

TRAIN, VALIDATION = "train", "validation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
  """What a preparation starts from, all of it checked.

  Attributes:
    data: The config's group `data`.
    tokenizer: The config's group `tokenizer`.
    seed: Of the packing's shuffle.
    files: Split of the document layer -> its files, each with `name`, `bytes` and `sha256`.
    loaded: The tokenizer of `tokenizer.path`, or None where one is to be trained.
  """

  data: dict[str, Any]
  tokenizer: dict[str, Any]
  seed: int
  files: dict[str, list[dict[str, Any]]]
  loaded: tokenizers.Tokenizer | None


def build(folder: pathlib.Path, inputs: Inputs, *, progress: Progress) -> dict[str, Any]:
  """Fills a folder.

  Returns:
    The report, which also lies in the folder.

  Raises:
    UserError: The text cannot be read, cleaning leaves none, it supports no vocabulary of the size
      asked for, or it fills no row.
  """
  data = inputs.data
  cleaner = clean.Cleaner(data["cleaning"])
  documents = Layer(folder, fraction=data["validation_fraction"])
  documents.write(
    inputs.files,
    document=data["document"],
    text_field=data["text_field"],
    cleaner=cleaner,
    progress=progress,
  )

  tokenizer = inputs.loaded
  if tokenizer is None:
    tokenizer = tokenizers.train(
      documents.training_texts(progress),
      vocab_size=inputs.tokenizer["vocab_size"],
      min_frequency=inputs.tokenizer["min_frequency"],
      add_prefix_space=inputs.tokenizer["add_prefix_space"],
    )
  tokenizer.save(str(folder / "tokenizer.json"))

  counts = _tokenize(documents, tokenizer, folder=folder, progress=progress)
  progress(f"Packing rows of {data['seq_len']} positions.")
  splits = {}
  for split, count in counts.items():
    rows = _pack(folder / split, count.lengths_D, inputs=inputs, tokenizer=tokenizer)
    rows.save(folder / split)
    splits[split] = _facts(rows, count)
  _check_size(splits, data)
  np.save(folder / "unigram.npy", counts[TRAIN].unigram_V)

  report = {
    "splits": splits,
    "validation_texts_also_in_training": documents.overlap(),
    "vocab_size": tokenizer.vocab_size,
    "packing": data["packing"],
    "seq_len": data["seq_len"],
    "seed": inputs.seed,
    "cleaning": cleaner.report(),
    "sources": documents.provenance(inputs.files),
  }
  (folder / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
  (folder / "report.txt").write_text(data_report.text(report))
  return report


def _tokenize(
  documents: Layer,
  tokenizer: tokenizers.Tokenizer,
  *,
  folder: pathlib.Path,
  progress: Progress,
) -> "dict[str, _SplitCount]":
  counts = {split: _SplitCount(folder / split, tokenizer) for split in (TRAIN, VALIDATION)}
  with counts[TRAIN], counts[VALIDATION]:
    for texts, held_D in documents.records(progress, "Tokenizing"):
      encoded = tokenizer.encode_batch(texts)
      for split, wanted in ((TRAIN, False), (VALIDATION, True)):
        counts[split].add([encoded[i] for i in np.flatnonzero(held_D == wanted)])
  return counts


class _SplitCount:
  """A split's token array while it grows, and what is counted on the way."""

  def __init__(self, folder: pathlib.Path, tokenizer: tokenizers.Tokenizer):
    folder.mkdir()
    small = tokenizer.vocab_size <= np.iinfo(np.uint16).max + 1
    self._words_file = folder / "words_S.npy"
    self._tokens = ArrayWriter(folder / "tokens.npy", np.uint16 if small else np.uint32)
    self._words = ArrayWriter(self._words_file, np.int8)
    self._lengths: list[np.ndarray] = []
    self.unigram_V = np.zeros(tokenizer.vocab_size, np.int64)

  def __enter__(self) -> "_SplitCount":
    return self

  def __exit__(self, *exception: Any) -> None:
    self._tokens.__exit__(*exception)
    self._words.__exit__(*exception)

  def add(self, encoded: list[tokenizers.Encoded]) -> None:
    if not encoded:
      return
    ids_S = np.concatenate([ids_T for ids_T, _ in encoded])
    self._tokens.append(ids_S)
    self._words.append(np.concatenate([words_T for _, words_T in encoded]))
    self._lengths.append(np.array([len(ids_T) for ids_T, _ in encoded], np.int32))
    self.unigram_V += np.bincount(ids_S, minlength=len(self.unigram_V))

  @property
  def lengths_D(self) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *self._lengths])


def _pack(
  folder: pathlib.Path, lengths_D: np.ndarray, *, inputs: Inputs, tokenizer: tokenizers.Tokenizer
) -> Rows:
  seq_len = inputs.data["seq_len"]
  words_file = folder / "words_S.npy"
  rows = Rows.build(
    packing.pack(lengths_D, seq_len=seq_len, packing=inputs.data["packing"], seed=inputs.seed),
    tokens_S=np.load(folder / "tokens.npy", mmap_mode="r" if len(lengths_D) else None),
    words_S=np.load(words_file, mmap_mode="r" if len(lengths_D) else None),
    seq_len=seq_len,
    bos_id=tokenizer.bos_id,
    pad_id=tokenizer.pad_id,
  )
  words_file.unlink()  # Words are counted per row from here on.
  return rows


def _facts(rows: Rows, count: _SplitCount) -> dict[str, Any]:
  tokens, words = int(rows.tokens_N.sum()), int(rows.words_N.sum())
  positions = rows.num_rows * rows.seq_len
  return {
    "documents": len(count.lengths_D),
    "words": words,
    "tokens": tokens,
    "tokens_per_word": tokens / words if words else 0.0,
    "rows": rows.num_rows,
    "pieces": len(rows.length_P),
    # Positions that hold a corpus token, and those that hold one or a piece's `<s>`.
    "token_fraction": tokens / positions if positions else 0.0,
    "fill_fraction": (tokens + len(rows.length_P)) / positions if positions else 0.0,
  }


def _check_size(splits: dict[str, dict[str, Any]], data: dict[str, Any]) -> None:
  tokens, seq_len = splits[TRAIN]["tokens"], data["seq_len"]
  if tokens < seq_len - 1:
    raise UserError(
      f"The corpus has {tokens} tokens to train on, which fill no row of data.seq_len={seq_len} "
      "positions; give more text or lower data.seq_len."
    )
