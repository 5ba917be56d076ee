"""What files become documents, and what each kind of bad file says."""

import gzip
import json

from hypothesis import given
from hypothesis import strategies as st
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from looped_lm.data import sources
from looped_lm.errors import UserError


def texts(*files, document="line", text_field=""):
  found = sources.read([str(file) for file in files], document=document, text_field=text_field)
  return [each.text for each in found]


def write(path, data):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(data.encode() if isinstance(data, str) else data)
  return path


def refused(*files, match, **kwargs):
  with pytest.raises(UserError, match=match):
    texts(*files, **kwargs)


# ---- Finding files


def test_directories_and_globs_are_sorted_and_recursive(tmp_path):
  for name in ("b.txt", "a/z.jsonl", "a/c.txt.gz", "notes.md", ".hidden.txt", "a/d.parquet"):
    write(tmp_path / name, "x")
  told = []
  found = sources.resolve([str(tmp_path)], progress=told.append)
  assert [file.removeprefix(f"{tmp_path}/") for file in found] == [
    "a/c.txt.gz",
    "a/d.parquet",
    "a/z.jsonl",
    "b.txt",
  ]
  assert "2 files of other kinds left out" in told[0]
  assert sources.resolve([f"{tmp_path}/**/*.txt"]) == [f"{tmp_path}/b.txt"]
  assert sources.resolve([f"{tmp_path}/?.txt"]) == [f"{tmp_path}/b.txt"]


def test_entries_keep_their_order_and_may_hold_commas(tmp_path):
  a, b = (str(write(tmp_path / name, "x")) for name in ("a.txt", "b.txt"))
  comma = str(write(tmp_path / "c,d.txt", "x"))
  assert sources.resolve([f"{b}, {a}", comma]) == [b, a, comma]
  assert sources.resolve(["corpus:generated"]) == ["corpus:generated"]


@pytest.mark.parametrize(
  ("path", "match"),
  [
    ("absent.txt", "no such file"),
    ("*.txt", "matches no file"),
    ("absent/*/x.txt", "matches no file"),
    ("notes.md", "unknown kind"),
    ("only_notes", r"no file of a known kind .* it holds notes\.md"),
  ],
)
def test_paths_that_lead_nowhere_are_refused(tmp_path, path, match):
  write(tmp_path / "notes.md", "x")
  write(tmp_path / "only_notes/notes.md", "x")
  with pytest.raises(UserError, match=match):
    sources.resolve([f"{tmp_path}/{path}"])


def test_other_bad_entries_are_refused(tmp_path):
  a = str(write(tmp_path / "a.txt", "x"))
  with pytest.raises(UserError, match="twice"):
    sources.resolve([a, str(tmp_path)])
  with pytest.raises(UserError, match=r"data\.paths is empty"):
    sources.resolve([])
  with pytest.raises(UserError, match="Did you mean 'corpus:quickstart'"):
    sources.resolve(["corpus:quickstrat"])


# ---- Lines


def test_line_ends_marks_and_odd_characters(tmp_path):
  data = b"\xef\xbb\xbfone\r\ntwo\rthree\n\n  \nfo\x00ur\xe2\x80\xa8still four\n five"
  found = list(sources.read([str(write(tmp_path / "a.txt", data))], document="line", text_field=""))
  assert [(each.line, each.text) for each in found] == [
    (1, "one"),
    (2, "two"),
    (3, "three"),
    (6, "fo\x00ur\u2028still four"),
    (7, " five"),
  ]


@given(lines=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))))
def test_every_line_that_is_not_blank_comes_back_unchanged(tmp_path_factory, lines):
  file = write(tmp_path_factory.mktemp("lines") / "a.txt", "\n".join(["first", *lines]))
  assert texts(file) == ["first"] + [line for line in lines if line and not line.isspace()]


def test_a_line_of_ten_megabytes_is_one_document(tmp_path):
  file = write(tmp_path / "a.txt", "word " * 2_000_000 + "\nnext")
  assert [len(text) for text in texts(file)] == [10_000_000, 4]


@pytest.mark.parametrize("document", ["line", "file"])
def test_bytes_that_are_no_utf8_name_file_and_line(tmp_path, document):
  file = write(tmp_path / "bad.txt", b"fine\nca\xff\n")
  refused(file, document=document, match=r"bad\.txt, line 2: byte 0xff is not UTF-8")


def test_utf16_is_named(tmp_path):
  refused(write(tmp_path / "a.txt", "x".encode("utf-16")), match="UTF-16")


def test_a_file_can_be_one_document(tmp_path):
  a, b = (
    write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\n\r\ntwo\r\n"),
    write(tmp_path / "b.txt", "x"),
  )
  assert texts(a, b, document="file") == ["one\n\ntwo", "x"]


# ---- Compression


def frames(data):
  half = len(data) // 2
  return b"".join(zstandard.compress(part) for part in (data[:half], b"", data[half:]))


PACKERS = {".gz": gzip.compress, ".zst": frames}


@pytest.mark.parametrize("extension", PACKERS)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_compressed_files_read_as_plain_ones(tmp_path, extension, kind):
  wanted = [f"line {i}" for i in range(3000)]
  if kind == "parquet":
    pyarrow.parquet.write_table(pa.table({"text": wanted}), tmp_path / "plain.parquet")
    data = (tmp_path / "plain.parquet").read_bytes()
  else:
    data = "\n".join(wanted if kind == "txt" else map(json.dumps, wanted)).encode()
  file = write(tmp_path / f"a.{kind}{extension}", PACKERS[extension](data))
  document = "line" if kind == "txt" else "json"
  assert texts(file, document=document, text_field="text") == wanted


@pytest.mark.parametrize("extension", PACKERS)
@pytest.mark.parametrize("cut", [7, 500])
def test_a_compressed_file_cut_short_is_refused(tmp_path, extension, cut):
  packed = PACKERS[extension](b"".join(b"%d\n" % (i * i) for i in range(2000)))
  refused(write(tmp_path / f"a.txt{extension}", packed[:-cut]), match="cannot be read")
  refused(write(tmp_path / f"b.txt{extension}", b"not packed"), match="cannot be read")


# ---- JSON and Parquet


def test_json_lines_may_be_objects_or_strings(tmp_path):
  file = write(tmp_path / "a.jsonl", '{"text": "one\\ntwo", "id": 1}\n\n"three \\ud83d\\ude00"\n')
  assert texts(file, document="json", text_field="text") == ["one\ntwo", "three \U0001f600"]


@pytest.mark.parametrize(
  ("line", "match"),
  [
    ('{"txt": "x"}', r"a\.jsonl, line 2: no field 'text'.*Did you mean 'txt'"),
    ('{"text": null}', "line 2: the text is null"),
    ("[1]", r"line 2: the text is \[1\]"),
    ('{"text": "x"', "line 2: not JSON"),
    ('{"text": "a\\ud800b"}', r"line 2: \\ud800 is half a character"),
    ("[" * 100_000, "line 2: not JSON"),
  ],
)
def test_bad_json_names_file_and_line(tmp_path, line, match):
  file = write(tmp_path / "a.jsonl", f'{{"text": "fine"}}\n{line}\n')
  refused(file, document="json", text_field="text", match=match)


def test_parquet_columns(tmp_path):
  file = tmp_path / "a.parquet"
  pyarrow.parquet.write_table(pa.table({"t": ["one", "", "two", None], "n": [1, 2, 3, 4]}), file)
  found = sources.read([str(file)], document="json", text_field="t")
  assert [(each.line, each.text) for each in (next(found), next(found))] == [(1, "one"), (3, "two")]
  with pytest.raises(UserError, match=r"a\.parquet, row 4: no text"):
    next(found)
  refused(file, document="json", text_field="x", match=r"no column 'x'.*\['t', 'n'\]")
  refused(file, document="json", text_field="n", match="holds int64, not strings")
  refused(
    write(tmp_path / "b.parquet", "x" * 100),
    document="json",
    text_field="t",
    match="no Parquet file",
  )


# ---- Settings that do not fit


def test_settings_are_checked_before_reading(tmp_path):
  text, lines = write(tmp_path / "a.txt", "x"), write(tmp_path / "a.jsonl", '{"text": "x"}')
  for files, kwargs, match in [
    ([text], {"document": "lines"}, r"data.document='lines' must be one of"),
    ([text], {"document": "json", "text_field": "text"}, "plain text"),
    ([lines], {"document": "line"}, "needs data.document='json'"),
    (["a.parquet"], {"document": "json"}, "needs data.text_field"),
  ]:
    with pytest.raises(UserError, match=match):
      sources.read([str(f) for f in files], **{"text_field": "", **kwargs})
  refused(lines, document="json", match=r"needs data.text_field, one of \['text'\]")


def test_a_corpus_without_text_is_refused(tmp_path):
  a, b = write(tmp_path / "a.txt", ""), write(tmp_path / "b.txt", " \n\t\n")
  refused(a, b, match="The corpus is empty: no text in .*a.txt, .*b.txt")
  assert texts(a, write(tmp_path / "c.txt", "x")) == ["x"]


def test_a_file_that_vanished_is_refused(tmp_path):
  refused(tmp_path / "gone.txt", match="no such file")
