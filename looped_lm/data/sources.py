"""From paths to documents: finds text files and reads them as a stream.

| `document` | reads | one document is |
|---|---|---|
| `line` | .txt | a line |
| `file` | .txt | a whole file |
| `json` | .jsonl, .parquet | the text field of a line or row; a .jsonl line may be a bare string |

`.train`, `.dev` and `.test` (BabyLM's names) are text too. Every kind may be packed (.gz, .zst).
Lines end with LF, CRLF or CR. A byte order mark is no text; lines of only whitespace hold no words
and are skipped; everything else, NUL characters included, reaches the documents unchanged.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import difflib
import glob
import gzip
import io
import json
import os
from typing import Any, BinaryIO, cast
import zlib

from etils import epath
import zstandard

from looped_lm.data import quickstart
from looped_lm.data.documents import Document
from looped_lm.errors import UserError

DOCUMENTS = ("line", "file", "json")
_TEXT = (".txt", ".train", ".dev", ".test")
_KINDS = {**dict.fromkeys(_TEXT, "text"), ".jsonl": "jsonl", ".parquet": "parquet"}
_COMPRESSED = (".gz", ".zst")
_ALLOWED = f"{', '.join(_KINDS)}, each plain or with {' or '.join(_COMPRESSED)}"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_CHUNK_BYTES = 1 << 20


def resolve(paths: Sequence[str], *, progress: Callable[[str], None] | None = None) -> list[str]:
  """Finds the files that paths stand for.

  Args:
    paths: Files, directories (searched recursively), globs (`**` spans directories), `gs://` paths
      or built-in corpora (`corpus:quickstart`). An entry may be a list with commas.
    progress: Told which files of a directory or glob are left out (hidden, or of another kind), and
      when generated English stands in for the quickstart corpus.

  Returns:
    Files in the order of the entries, sorted within each; built-in corpora as they stand.

  Raises:
    UserError: Nothing is there, nothing matches, an explicit path is of an unknown kind, a built-in
      corpus does not exist, or a file is reached twice.
  """
  found: dict[str, str] = {}  # File -> the entry that reached it.
  for entry in _entries(paths):
    for file in _expand(entry, progress=progress):
      if file in found:
        raise UserError(
          f"data.paths reaches {file} twice, by {found[file]!r} and by {entry!r}; "
          "its text would count double. Name it once."
        )
      found[file] = entry
  if not found:
    raise UserError(
      "data.paths is empty; give files, directories or globs, or one of "
      f"{list(quickstart.BUILT_IN)}."
    )
  return list(found)


def read(files: Sequence[str], *, document: str, text_field: str) -> Iterator[Document]:
  """Reads documents, streaming: memory holds one document and a buffer.

  Whole files are held where a document is a file, and for a compressed .parquet.

  Args:
    files: From `resolve`. Built-in corpora ignore the other two arguments.
    document: `line`, `file` or `json`; see the module's table.
    text_field: Key of a JSON object or name of a Parquet column; unused otherwise.

  Raises:
    UserError: At once, if `document` does not fit the files; while reading, if bytes are no UTF-8,
      a field is missing, a file is damaged, or no file holds any text. Names file and line.
  """
  if document not in DOCUMENTS:
    raise UserError(f"data.document={document!r} must be one of {list(DOCUMENTS)}.")
  for file in files:
    if file not in quickstart.BUILT_IN:
      _check_fits(file, document=document, text_field=text_field)
  return _read_all(files, document=document, text_field=text_field)


def _read_all(files: Sequence[str], *, document: str, text_field: str) -> Iterator[Document]:
  empty = True
  for file in files:
    if file in quickstart.BUILT_IN:
      documents = quickstart.documents(file)
    elif _kind(file) == "parquet":
      documents = _read_parquet(file, text_field=text_field)
    elif _kind(file) == "jsonl":
      documents = _read_json(file, text_field=text_field)
    elif document == "file":
      documents = _read_whole(file)
    else:
      documents = _read_lines(file)
    for each in documents:
      if each.text and not each.text.isspace():
        empty = False
        yield each
  if empty:
    shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    raise UserError(f"The corpus is empty: no text in {shown}. Check data.paths.")


# ---- Finding files


def _entries(paths: Sequence[str]) -> Iterator[str]:
  """Splits entries at commas, unless a file of that very name exists."""
  for entry in [paths] if isinstance(paths, str) else paths:
    if "," in entry and not epath.Path(entry).exists():
      yield from (part.strip() for part in entry.split(",") if part.strip())
    elif entry.strip():
      yield entry


def _expand(entry: str, *, progress: Callable[[str], None] | None) -> list[str]:
  if entry.startswith("corpus:"):
    if entry not in quickstart.BUILT_IN:
      close = difflib.get_close_matches(entry, quickstart.BUILT_IN, n=1)
      hint = f" Did you mean {close[0]!r}?" if close else ""
      raise UserError(
        f"{entry!r} is no built-in corpus; there are {list(quickstart.BUILT_IN)}.{hint}"
      )
    missing = quickstart.missing_packages() if entry == quickstart.REAL else []
    if missing and progress is not None:
      progress(
        f"{entry}: {' and '.join(missing)} not installed, so generated English stands in. For real "
        "text, install the extra: pip install 'looped-lm[quickstart]'."
      )
    return [entry]

  path = epath.Path(os.path.expanduser(entry))
  if path.is_dir():
    found = _walk(path)
  elif path.exists():
    if _kind(entry) is None:
      raise UserError(f"{entry}: unknown kind of file; known are {_ALLOWED}. Rename or convert it.")
    return [os.fspath(path)]
  elif glob.has_magic(entry):
    found = []
    for match in _glob(path):
      found += _walk(match) if match.is_dir() else [match]
    if not found:
      raise UserError(f"{entry}: the glob matches no file. Check data.paths.")
  else:
    raise UserError(f"{entry}: no such file or directory. Check data.paths.")

  names = sorted({os.fspath(each) for each in found})
  taken = [name for name in names if _kind(name) and not _hidden(name)]
  left = [name for name in names if name not in set(taken)]
  if not taken:
    seen = f"; it holds {', '.join(map(os.path.basename, left[:3]))}" if left else ""
    raise UserError(f"{entry}: no file of a known kind ({_ALLOWED}){seen}. Rename or convert them.")
  if left and progress is not None:
    progress(
      f"{entry}: {len(left)} files of other kinds left out ({', '.join(left[:3])}"
      f"{', …' if len(left) > 3 else ''})."
    )
  return taken


def _walk(directory: epath.Path) -> list[epath.Path]:
  found = []
  for child in directory.iterdir():
    found += _walk(child) if child.is_dir() else [child]
  return found


def _glob(path: epath.Path) -> list[epath.Path]:
  """Like the shell; remote paths have no `**`."""
  name = os.fspath(path)
  if "://" not in name:
    return [epath.Path(match) for match in glob.glob(name, recursive=True)]
  if "**" in name:
    raise UserError(f"{name}: `**` works on local paths only. Give the directory itself.")
  # `epath` globs only below a path without wildcards.
  parts = path.parts
  first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
  root = epath.Path(*parts[:first])
  return list(root.glob("/".join(parts[first:]))) if root.is_dir() else []


def _hidden(name: str) -> bool:
  return os.path.basename(name).startswith(".")


def _kind(file: str) -> str | None:
  """`text`, `jsonl`, `parquet`, or None where the extension is another."""
  stem, extension = os.path.splitext(os.path.basename(file).lower())
  if extension in _COMPRESSED:
    extension = os.path.splitext(stem)[1]
  return _KINDS.get(extension)


def _check_fits(file: str, *, document: str, text_field: str) -> None:
  kind = _kind(file)
  if kind is None:
    raise UserError(f"{file}: unknown kind of file; known are {_ALLOWED}. Rename or convert it.")
  if kind == "text" and document == "json":
    raise UserError(f"{file} is plain text, data.document='json' is not; use 'line' or 'file'.")
  if kind != "text" and document != "json":
    raise UserError(
      f"{file} needs data.document='json' and data.text_field; data.document is {document!r}."
    )
  if kind == "parquet" and not text_field:
    raise UserError(f"{file} needs data.text_field, the column to read; it is ''.")


# ---- Reading bytes


class _ZstdReader(io.RawIOBase):
  """Decompresses .zst; unlike the library's reader, it notices a file cut short."""

  def __init__(self, stream: BinaryIO):
    self._stream = stream
    self._frame = zstandard.ZstdDecompressor().decompressobj()
    self._begun = False  # Whether the frame has had bytes.
    self._ready = memoryview(b"")

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    while not self._ready:
      if self._frame.eof:  # A file may hold several frames, one after the other.
        rest = self._frame.unused_data
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
      else:
        rest = b""
      data = rest or self._stream.read(_CHUNK_BYTES)
      if not data:
        if self._begun:
          raise EOFError("the compressed file ends too early")
        return 0
      self._begun = True
      self._ready = memoryview(self._frame.decompress(data))
    count = min(len(buffer), len(self._ready))
    buffer[:count] = self._ready[:count]
    self._ready = self._ready[count:]
    return count


@contextlib.contextmanager
def _open(file: str) -> Iterator[BinaryIO]:
  with contextlib.ExitStack() as stack:
    with _Damage(file):
      stream = stack.enter_context(cast(BinaryIO, epath.Path(file).open("rb")))
    if file.lower().endswith(".gz"):
      stream = stack.enter_context(cast(BinaryIO, gzip.GzipFile(fileobj=stream)))
    elif file.lower().endswith(".zst"):
      reader = io.BufferedReader(_ZstdReader(stream), _CHUNK_BYTES)
      stream = stack.enter_context(cast(BinaryIO, reader))
    yield stream


class _Damage:
  """Turns what a missing or damaged file raises into one line for the user."""

  def __init__(self, file: str):
    self._file = file

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
    if isinstance(error, FileNotFoundError):
      raise UserError(f"{self._file}: no such file. Check data.paths.") from error
    if isinstance(error, (OSError, EOFError, zlib.error, zstandard.ZstdError)):
      raise UserError(f"{self._file} cannot be read: {error}. Restore or remove it.") from error


def _raw_lines(file: str) -> Iterator[tuple[int, bytes]]:
  """Lines without their ends, counted from 1."""
  number = 0
  with _open(file) as stream:
    while True:
      with _Damage(file):
        raw = stream.readline()
      if not raw:
        return
      if not number and raw.startswith(_BYTE_ORDER_MARK):
        raw = raw.removeprefix(_BYTE_ORDER_MARK)
      raw = raw.removesuffix(b"\n").removesuffix(b"\r")
      for line in raw.split(b"\r") if b"\r" in raw else (raw,):
        number += 1
        yield number, line


def _decode(raw: bytes, *, file: str, line: int) -> str:
  try:
    return raw.decode("utf-8")
  except UnicodeDecodeError as error:
    if line == 1 and raw.startswith(_UTF16_MARKS):
      raise UserError(f"{file} is UTF-16; convert it to UTF-8.") from None
    line += raw.count(b"\n", 0, error.start)
    raise UserError(
      f"{file}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8. Convert the file to UTF-8 "
      "or repair the line."
    ) from None


# ---- Reading documents


def _read_lines(file: str) -> Iterator[Document]:
  for line, raw in _raw_lines(file):
    yield Document(_decode(raw, file=file, line=line), file, line)


def _read_whole(file: str) -> Iterator[Document]:
  with _open(file) as stream, _Damage(file):
    raw = stream.read()
  raw = raw.removeprefix(_BYTE_ORDER_MARK).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
  yield Document(_decode(raw, file=file, line=1).strip("\n"), file, 1)


def _read_json(file: str, *, text_field: str) -> Iterator[Document]:
  for line, raw in _raw_lines(file):
    text = _decode(raw, file=file, line=line)
    if not text or text.isspace():
      continue
    try:
      value = json.loads(text)
    except (ValueError, RecursionError) as error:
      raise UserError(f"{file}, line {line}: not JSON ({error}).") from None
    if isinstance(value, dict):
      value = _field(value, text_field, file=file, line=line)
    if not isinstance(value, str):
      raise UserError(
        f"{file}, line {line}: the text is {json.dumps(value)[:40]}, which is no string"
        f"{f' (data.text_field={text_field!r})' if text_field else ''}."
      )
    if "\\u" in text:
      _check_surrogates(value, file=file, line=line)
    yield Document(value, file, line)


def _field(value: dict[str, Any], name: str, *, file: str, line: int) -> Any:
  if not name:
    raise UserError(
      f"{file}, line {line}: a JSON object needs data.text_field, one of {list(value)[:8]}."
    )
  if name not in value:
    close = difflib.get_close_matches(name, value, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UserError(
      f"{file}, line {line}: no field {name!r} (data.text_field); it has {list(value)[:8]}.{hint}"
    )
  return value[name]


def _check_surrogates(text: str, *, file: str, line: int) -> None:
  """Refuses half a character, which JSON can spell as an escape and no UTF-8 holds."""
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise UserError(
      f"{file}, line {line}: \\u{ord(text[error.start]):04x} is half a character (a lone "
      "surrogate). Repair the line."
    ) from None


def _read_parquet(file: str, *, text_field: str) -> Iterator[Document]:
  import pyarrow  # Slow to import; only Parquet needs it.
  import pyarrow.parquet

  with _open(file) as stream:
    try:
      with _Damage(file):
        seekable = stream if stream.seekable() and _plain(file) else io.BytesIO(stream.read())
        table = pyarrow.parquet.ParquetFile(seekable)
    except pyarrow.ArrowInvalid as error:
      raise UserError(f"{file} is no Parquet file: {error}") from None
    names = table.schema_arrow.names
    if text_field not in names:
      raise UserError(f"{file}: no column {text_field!r} (data.text_field); it has {names}.")
    kind = table.schema_arrow.field(text_field).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
      raise UserError(f"{file}: column {text_field!r} holds {kind}, not strings.")
    row = 0
    for batch in table.iter_batches(batch_size=1024, columns=[text_field]):
      for text in batch.column(0).to_pylist():
        row += 1
        if text is None:
          raise UserError(f"{file}, row {row}: no text in column {text_field!r}.")
        yield Document(text, file, row)


def _plain(file: str) -> bool:
  return not file.lower().endswith(_COMPRESSED)
