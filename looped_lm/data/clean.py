"""Cleaning: small named text -> text functions (being filled in)."""

from collections.abc import Callable, Iterator, Iterable, Sequence
from typing import Any

from looped_lm.data.documents import Document

OPERATIONS: dict[str, Callable[[str], str]] = {"normalize_whitespace": lambda t: " ".join(t.split())}


class Cleaner:
  """Applies operations in the order given."""

  def __init__(self, names: Sequence[str]):
    self._names = tuple(names)

  def run(self, documents: Iterable[Document]) -> Iterator[Document]:
    """Cleans a stream of documents."""
    for document in documents:
      text = document.text
      for name in self._names:
        text = OPERATIONS[name](text)
      if text:
        yield Document(text, document.file, document.line)

  def report(self) -> dict[str, dict[str, Any]]:
    """What each operation changed."""
    return {}
