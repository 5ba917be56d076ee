"""Any files at all, from sources to rows: nothing lost, nothing twice; a refusal is one line."""

import json
import re

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest

from looped_lm.data import packing, sources
from looped_lm.data.clean import NAMES, Cleaner
from looped_lm.data.prepare import prepare
from looped_lm.data.rows import Rows
from looped_lm.data.tokenizer import train
from looped_lm.errors import UserError

BOM = b"\xef\xbb\xbf"
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b""])
ODD = ["", " ", "\x00", "\x00" * 9, "\u2028", "\x85", "\x1c", "\ufeff", "<s>", "<mask>", "a", "😀"]
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")) | (
  st.lists(st.sampled_from([*ODD, "word ", "A: ", "don't", "12"])).map("".join)
)
LINES = st.lists(st.tuples(TEXT.map(str.encode), ENDS), max_size=12)
# Text of any lines, with or without a mark; half characters as some programs write them; any bytes.
GOOD = st.tuples(st.sampled_from([b"", b"", BOM]), LINES).map(
  lambda file: file[0] + b"".join(line + end for line, end in file[1])
)
BAD = st.text(st.characters()).map(lambda text: text.encode("utf-8", "surrogatepass"))
FILES = GOOD | GOOD | BAD | st.binary(max_size=60)
JSON = st.recursive(
  st.none() | st.booleans() | st.text(st.characters()),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("text"), inner),
  max_leaves=3,
).map(json.dumps)


@pytest.fixture(scope="module")
def tokenizers():
  texts = ["The cat sat on the mat, and 12 dogs don't see it: <s>!"] * 9
  return [
    train(texts, vocab_size=300, min_frequency=2, add_prefix_space=prefix)
    for prefix in (False, True)
  ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("corpora")


def documents(path, data, *, document, text_field=""):
  """The texts of a file, or None where it was refused, which is one line that names it."""
  path.write_bytes(data)
  try:
    files = sources.resolve([str(path)])
    return list(sources.read(files, document=document, text_field=text_field))
  except UserError as error:
    said = str(error)
  assert "\n" not in said
  assert path.name in said
  return None


def expected(data, *, document):
  """The texts of a plain file, found in another way; None where it must be refused."""
  try:
    text = data.removeprefix(BOM).decode()
  except UnicodeDecodeError:
    return None
  lines = re.split("\r\n|\r|\n", text)
  if document == "file":
    lines = ["\n".join(lines).strip("\n")]
  return [line for line in lines if line and not line.isspace()] or None


def check_rows(texts, tokenizer, *, how, seq_len):
  """Every token of every text lies in one place, and spells the text."""
  encoded = tokenizer.encode_batch(texts)
  assert [tokenizer.decode(ids) for ids, _ in encoded] == texts
  ids_S = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in encoded)])
  words_S = np.concatenate([np.zeros(0, np.int8), *(words for _, words in encoded)])
  assert not set(ids_S.tolist()) & tokenizer.special_ids
  rows = Rows.build(
    packing.pack(
      np.array([len(ids) for ids, _ in encoded], np.int64), seq_len=seq_len, packing=how, seed=3
    ),
    tokens_S=ids_S,
    words_S=words_S,
    seq_len=seq_len,
    bos_id=tokenizer.bos_id,
    pad_id=tokenizer.pad_id,
  )
  order_P = np.argsort(rows.start_P)
  ends_P = (rows.start_P + rows.length_P)[order_P]
  assert (rows.start_P[order_P] == np.concatenate(([0], ends_P[:-1]))).all()
  assert (ends_P[-1] if len(ends_P) else 0) == len(ids_S)
  tokens_NT, segments_NT = rows.gather(np.arange(rows.num_rows))
  taken = tokens_NT[(segments_NT > 0) & (tokens_NT != tokenizer.bos_id)]
  pieces = zip(rows.start_P.tolist(), rows.length_P.tolist(), strict=True)
  assert taken.tolist() == [i for s, n in pieces for i in ids_S[s : s + n].tolist()]
  assert rows.words_N.sum() == sum(len(text.split()) for text in texts)


@given(
  data=FILES,
  document=st.sampled_from(["line", "file"]),
  cleaning=st.lists(st.sampled_from(NAMES), unique=True, max_size=4),
  how=st.sampled_from(packing.PACKINGS),
  seq_len=st.integers(8, 40),
  prefix=st.booleans(),
)
@example(BOM + b"\r\n\r\n a\r\x00\n", "line", [], "lines", 8, True)
@example("\ud800".encode("utf-8", "surrogatepass"), "file", [], "lines", 8, False)
def test_any_text_file(folder, tokenizers, data, document, cleaning, how, seq_len, prefix):
  found = documents(folder / "any.txt", data, document=document)
  texts = expected(data, document=document)
  assert (None if found is None else [each.text for each in found]) == texts
  if found is None:
    return
  check_rows(texts, tokenizers[prefix], how=how, seq_len=seq_len)
  cleaned = [each.text for each in Cleaner(cleaning).run(found)]
  assert all(text.split() for text in cleaned)
  check_rows(cleaned, tokenizers[prefix], how=how, seq_len=seq_len)


@given(lines=st.lists(JSON | st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
@example(['"\\ud800"'])
def test_any_json_lines(folder, tokenizers, lines):
  data = "\n".join(lines).encode()
  found = documents(folder / "any.jsonl", data, document="json", text_field="text")
  if found is not None:
    check_rows([each.text for each in found], tokenizers[0], how="lines", seq_len=8)


@pytest.mark.nightly
@given(data=FILES, extension=st.sampled_from(["txt", "jsonl"]), seed=st.integers(0, 2**63 - 1))
@example(b"x" * 10_000_000 + b"\r\nword " * 9, "txt", 1)
@example(b"word " * 2_000_000 + b"\x00\n1", "txt", 2)
def test_any_file_is_prepared_or_refused(tmp_path_factory, data, extension, seed):
  """All of it through the program's own door, two lines of ten megabytes among them."""
  folder = tmp_path_factory.mktemp("prepared")
  path = folder / f"any.{extension}"
  path.write_bytes(data)
  settings = {
    "paths": (str(path),),
    "document": "line" if extension == "txt" else "json",
    "text_field": "text",
    "cleaning": ("normalize_whitespace",),
    "prepared_dir": str(folder / "prepared"),
    "packing": "lines",
    "seq_len": 8,
    "validation_fraction": 0.0,
    "validation_paths": (),
  }
  said = ""
  tokenizer = {"path": "", "vocab_size": 272, "min_frequency": 1, "add_prefix_space": True}
  try:
    prepared = prepare(settings, tokenizer, seed=seed, progress=lambda line: None)
  except UserError as error:
    said = str(error)
  if said:
    assert "\n" not in said
    return
  rows = prepared.train
  tokens_NT, segments_NT = rows.gather(np.arange(rows.num_rows))
  taken_V = np.bincount(
    tokens_NT[(segments_NT > 0) & (tokens_NT != rows.bos_id)], minlength=len(prepared.unigram_V)
  )
  assert (taken_V == prepared.unigram_V).all()
  assert rows.words_N.sum() == prepared.report["splits"]["train"]["words"]
