"""Built-in corpora (placeholder wiring)."""

from collections.abc import Callable, Iterator
from looped_lm.data.documents import Document

BUILT_IN = ("corpus:quickstart", "corpus:generated")


def documents(name: str, *, progress: Callable[[str], None] | None = None) -> Iterator[Document]:
  yield Document("The cat sat on the mat.", name, 1)
