"""The record that sources give, cleaning changes and the tokenizer reads."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
  """A piece of text that belongs together.

  Attributes:
    text: Without the line end where a document is a line; never empty or only whitespace.
    file: Where it came from: a path, or e.g. `corpus:generated`.
    line: Line (text, JSON) or row (Parquet) it starts at, counted from 1.
  """

  text: str
  file: str
  line: int
