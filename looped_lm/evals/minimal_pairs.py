"""Pairs of sentences of which one is right, in BLiMP's file format."""

from collections.abc import Iterator

from etils import epath

from looped_lm.evals import records
from looped_lm.evals.choices import Item
from looped_lm.evals.scoring import Passage


def read(folder: epath.Path) -> Iterator[Item]:
  """Reads `sentence_good` and `sentence_bad` of every line.

  A pair's group is its UID; where lines have no `field`, as in the supplement, the file's name.
  """
  for record in records.json_lines(folder):
    group, tags = record.stem, {}
    if "field" in record:
      group = record.text("UID")
      # Some files spell this field otherwise.
      field = record.text("field").replace("syntax_semantics", "syntax/semantics")
      tags = {"field": field, "linguistics_term": record.text("linguistics_term")}
    yield pair(
      record.text("sentence_good"),
      record.text("sentence_bad"),
      group=group,
      tags=tags,
      where=record.where,
    )


def pair(good: str, bad: str, *, group: str, tags: dict[str, str], where: str) -> Item:
  """Two whole sentences, the right one first."""
  return Item(
    group=group,
    options=(Passage(text=good, where=where), Passage(text=bad, where=where)),
    answers=(good, bad),
    tags=tags,
  )
