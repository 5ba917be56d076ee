import os
import subprocess
import sys

from etils import epath
import pytest
import tensorflow_datasets as tfds

from looped_lm.data import corpus
from looped_lm.errors import UserError

ODD = ["plain", "", "two\nlines", "ümläut 漢字 🙂", "nul \x00 inside", "tab\t end ", "\u2028 sep"]


def test_texts_come_back_as_they_were_in_their_order(tmp_path):
  many = [f"{i} {ODD[i % len(ODD)]}" for i in range(2500)]
  corpus.build(tmp_path, {"paths": iter(many), "validation_paths": iter(ODD)})
  records = list(corpus.read(tmp_path, "paths"))
  assert [text for texts in records for text in texts] == many
  assert list(corpus.read(tmp_path, "validation_paths")) == [ODD]
  assert {path.name for path in tmp_path.iterdir()} == {"documents"}, "no empty folders are left"


def test_records_hold_a_thousand_lines_but_not_any_number_of_bytes(tmp_path):
  lines = ["a line"] * 2100 + ["a\nb"] * 500 + ["x" * corpus.BYTES_PER_RECORD, "the last"]
  corpus.build(tmp_path, {"paths": iter(lines)})
  sizes = [
    (len(texts), sum(text.count("\n") + 1 for text in texts))
    for texts in corpus.read(tmp_path, "paths")
  ]
  assert sizes == [(1000, 1000), (1000, 1000), (550, 1000), (51, 101), (1, 1)]


def test_any_tfds_reads_the_folder(tmp_path):
  corpus.build(tmp_path, {"paths": iter(["one", "zwei ü", "three"])})
  builder = tfds.builder_from_directory(epath.Path(tmp_path) / "documents/1.0.0")
  record = builder.as_data_source("paths")[0]
  assert record["text"].decode() == "onezwei üthree"
  assert record["ends"].tolist() == [3, 10, 15]


def test_an_error_of_the_text_comes_through_unchanged(tmp_path):
  def texts():
    yield "good"
    raise UserError("x.txt, line 2: byte 0xff is not UTF-8.")

  with pytest.raises(UserError) as caught:
    corpus.build(tmp_path, {"paths": texts()})
  assert str(caught.value) == "x.txt, line 2: byte 0xff is not UTF-8."


def test_tensorflow_is_not_imported_and_nothing_is_printed_or_left(tmp_path):
  program = f"""
import pathlib, sys
from looped_lm.data import corpus
folder = pathlib.Path({str(tmp_path)!r}) / "data"
corpus.build(folder, {{"paths": iter(["a", "b"])}})
assert list(corpus.read(folder, "paths")) == [["a", "b"]]
assert "tensorflow" not in sys.modules
"""
  (tmp_path / "tmp").mkdir()
  environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
  done = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, env=environment
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == ""
  assert list((tmp_path / "tmp").iterdir()) == []
