"""Cleaning: a list of named operations, applied to documents one after the other.

Operations on one text are in `cleaning_rules.py`; here are those that must remember other documents
(merging turns, duplicates), and the `Cleaner` that runs a list and counts what each one did.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import difflib
import hashlib
import re
from typing import Any

from looped_lm.data.cleaning_rules import OPERATIONS, SPEAKER, split_speaker
from looped_lm.data.documents import Document
from looped_lm.errors import UserError

SAMPLES = 5  # Examples that the report keeps of each operation.
SAMPLE_CHARACTERS = 300  # The report shortens longer texts, and marks where.
MERGED_WORDS = 1000  # A turn is not merged beyond this, so memory stays bounded.
REMEMBERED_DOCUMENTS = 1 << 21  # Duplicates are found among so many of the latest documents kept.


_ALPHANUMERIC = re.compile(r"[^\W_]+")

# A document and its number of words, which operations that change nothing need not count again.
_Counted = tuple[Document, int]


@dataclasses.dataclass
class _Count:
  """What one operation has done so far; words are runs between whitespace."""

  documents: int = 0
  changed: int = 0
  removed: int = 0
  merged: int = 0
  words_before: int = 0
  words_removed: int = 0
  samples: list[dict[str, Any]] = dataclasses.field(default_factory=list)

  def see(self, words: int) -> None:
    """Counts a document that comes in."""
    self.documents += 1
    self.words_before += words

  def sample(self, before: Document, after: str) -> None:
    """Keeps one of the first examples of a change."""
    if len(self.samples) < SAMPLES:
      self.samples.append(
        {
          "file": before.file,
          "line": before.line,
          "before": _shorten(before.text),
          "after": _shorten(after),
        }
      )

  def change(self, document: Document, words: int, *, text: str) -> Iterator[_Counted]:
    """Gives the document with another text, or nothing where no text is left."""
    if text == document.text:
      yield document, words
      return
    self.sample(document, text)
    words_after = len(text.split())
    self.words_removed += words - words_after
    self.changed += words_after > 0
    self.removed += words_after == 0
    if words_after:
      yield dataclasses.replace(document, text=text), words_after


class Cleaner:
  """Applies operations in the order given, streaming, and counts what each one does."""

  def __init__(self, names: Sequence[str]):
    """Looks the operations up.

    Raises:
      UserError: There is no operation of a name, or one stands twice.
    """
    for place, name in enumerate(names):
      if name not in NAMES:
        close = difflib.get_close_matches(str(name), NAMES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UserError(f"data.cleaning has {name!r}; it may hold {list(NAMES)}.{hint}")
      if name in names[:place]:
        raise UserError(f"data.cleaning has {name!r} twice; name each operation once.")
    self._counts = {name: _Count() for name in names}

  def run(self, documents: Iterable[Document]) -> Iterator[Document]:
    """Cleans a stream of documents; those left without text are gone. Counts add up over calls."""
    stream: Iterator[_Counted] = ((each, len(each.text.split())) for each in documents)
    for name, count in self._counts.items():
      if name in _STATEFUL:
        stream = _STATEFUL[name](stream, count)
      else:
        stream = _apply(OPERATIONS[name], stream, count)
    return (document for document, _ in stream)

  def report(self) -> dict[str, dict[str, Any]]:
    """Says what each operation did, in order.

    Returns:
      name -> `documents` seen, `changed`, `removed`, `merged` into the one before; `words_before`
      and `words_removed` (negative where an operation splits words); `samples`: the first few
      documents it touched, as `file`, `line`, `before` and `after` ('' where removed).
    """
    return {name: dataclasses.asdict(count) for name, count in self._counts.items()}


def _apply(
  operation: Callable[[str], str], documents: Iterator[_Counted], count: _Count
) -> Iterator[_Counted]:
  for document, words in documents:
    count.see(words)
    yield from count.change(document, words, text=operation(document.text))


def _shorten(text: str) -> str:
  if len(text) <= SAMPLE_CHARACTERS:
    return text
  return f"{text[:SAMPLE_CHARACTERS]} […{len(text) - SAMPLE_CHARACTERS} more characters]"


# ---- Operations with a memory


def merge_turns(documents: Iterator[_Counted], count: _Count) -> Iterator[_Counted]:
  """Joins consecutive turns of one speaker ("A: Hi." "A: You?" becomes "A: Hi. You?").

  Table 1: merging of consecutive turns. Turns are the lines of a document, and documents of one
  line that follow each other in a file. A text without a label ends a turn. Run it after
  `normalize_speakers`; a turn stops growing at `MERGED_WORDS`.
  """
  pending: _Counted | None = None
  for document, words in documents:
    count.see(words)
    for merged, merged_words in count.change(document, words, text=_merge_lines(document.text)):
      joined = _join(pending, merged) if pending else None
      if pending and joined:
        count.sample(merged, joined.text)
        count.merged += 1
        joined_words = len(joined.text.split())
        count.words_removed += pending[1] + merged_words - joined_words
        pending = joined, joined_words
        continue
      if pending:
        yield pending
      pending = merged, merged_words
  if pending:
    yield pending


def _join(before: _Counted, turn: Document) -> Document | None:
  first, words = before
  one, two = SPEAKER.match(first.text), SPEAKER.match(turn.text)
  if (
    not (one and two)
    or one[1] != two[1]
    or first.file != turn.file
    or "\n" in first.text
    or "\n" in turn.text
    or words >= MERGED_WORDS
  ):
    return None
  return dataclasses.replace(first, text=f"{first.text} {turn.text[two.end() :]}")


def _merge_lines(text: str) -> str:
  if "\n" not in text:
    return text
  lines: list[str] = []
  for line in text.split("\n"):
    label = SPEAKER.match(line)
    before = SPEAKER.match(lines[-1]) if lines else None
    if label and before and label[1] == before[1]:
      lines[-1] = f"{lines[-1]} {line[label.end() :]}"
    else:
      lines.append(line)
  return "\n".join(lines)


def remove_duplicates(documents: Iterator[_Counted], count: _Count) -> Iterator[_Counted]:
  """Removes a document whose words are all those of an earlier one, in the same order.

  Table 1: exact duplicates. Only whitespace may differ. Compares 128-bit hashes with the latest
  `REMEMBERED_DOCUMENTS` documents kept.
  """
  return _remove_repeated(documents, count, lambda text: " ".join(text.split()))


def remove_near_duplicates(documents: Iterator[_Counted], count: _Count) -> Iterator[_Counted]:
  """Removes a document that says what an earlier one said, up to case, punctuation and speaker.

  Table 1: near duplicates. Equal are documents whose letters and digits agree after case folding,
  the speakers' labels left out. Other wording is not found. A document with neither letters nor
  digits is compared as it stands.
  """
  return _remove_repeated(documents, count, _skeleton)


def _skeleton(text: str) -> str:
  said = " ".join(split_speaker(line)[1] for line in text.split("\n"))
  words = _ALPHANUMERIC.findall(said.casefold())
  return " ".join(words) if words else f"\n{' '.join(text.split())}"


def _remove_repeated(
  documents: Iterator[_Counted], count: _Count, normalize: Callable[[str], str]
) -> Iterator[_Counted]:
  seen: set[bytes] = set()
  order: deque[bytes] = deque()
  for document, words in documents:
    count.see(words)
    key = hashlib.blake2b(normalize(document.text).encode(), digest_size=16).digest()
    if key in seen:
      yield from count.change(document, words, text="")
      continue
    seen.add(key)
    order.append(key)
    if len(order) > REMEMBERED_DOCUMENTS:
      seen.remove(order.popleft())
    yield document, words


_STATEFUL = {
  operation.__name__: operation
  for operation in (merge_turns, remove_duplicates, remove_near_duplicates)
}
NAMES = (*OPERATIONS, *_STATEFUL)
