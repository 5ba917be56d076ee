"""Reading evaluation files: whatever is wrong with a line is said with its file and number."""

from collections.abc import Iterator, Mapping
import json
from typing import Any

from etils import epath

from looped_lm.errors import UserError


class Record:
  """One line of a file, as fields that are checked when they are asked for."""

  def __init__(self, fields: Mapping[str, Any], *, file: epath.Path, line: int):
    self._fields = fields
    self.stem = file.stem
    self.where = f"{file}:{line}"

  def __contains__(self, name: str) -> bool:
    return name in self._fields

  def text(self, name: str, *, may_be_empty: bool = False) -> str:
    """A string, as a rule not an empty one."""
    value = self._value(name)
    if not isinstance(value, str) or not (value or may_be_empty):
      wanted = "text" if may_be_empty else "text that is not empty"
      raise UserError(f"{self.where}: {name!r} must be {wanted}; it is {value!r}.")
    return value

  def label(self, name: str) -> str:
    """A name or number, as text."""
    value = self._value(name)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else self.text(name)

  def texts(self, name: str) -> list[str]:
    """A list of at least two such strings."""
    value = self._value(name)
    if (
      not isinstance(value, list)
      or len(value) < 2
      or not all(isinstance(each, str) and each for each in value)
    ):
      raise UserError(
        f"{self.where}: {name!r} must be a list of two or more texts; it is {value!r}."
      )
    return value

  def integer(self, name: str) -> int:
    """A whole number."""
    value = self._value(name)
    if not isinstance(value, int) or isinstance(value, bool):
      raise UserError(f"{self.where}: {name!r} must be a whole number; it is {value!r}.")
    return value

  def number(self, name: str) -> float:
    """A number."""
    value = self._value(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
      raise UserError(f"{self.where}: {name!r} must be a number; it is {value!r}.")
    return float(value)

  def _value(self, name: str) -> Any:
    if name not in self._fields:
      raise UserError(f"{self.where}: there is no {name!r}; the line has {list(self._fields)}.")
    return self._fields[name]


def found(path: str, *, setting: str, origin: str) -> epath.Path:
  """The path as an object that exists.

  Args:
    path: File or folder.
    setting: The config's name for it.
    origin: Where one gets the set, as the end of a sentence.

  Raises:
    UserError: There is nothing at the path; says where to get it and where to put it.
  """
  place = epath.Path(path)
  if not path or not place.exists():
    raise UserError(
      f"{setting}={path!r} does not exist. Get the set {origin}, and put it there or give "
      f"--config.{setting}=PATH."
    )
  return place


def json_lines(folder: epath.Path) -> Iterator[Record]:
  """Reads every .jsonl file of a folder, by name, or the one file that is given.

  Raises:
    UserError: There is no such file, no line at all, or a line is no JSON object.
  """
  files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
  if not files:
    raise UserError(f"{folder} holds no .jsonl file.")
  for file in files:
    empty = True
    # Only a newline ends a line: text may hold other separators.
    for number, line in enumerate(file.read_text().split("\n"), start=1):
      if not line.strip():
        continue
      empty = False
      try:
        fields = json.loads(line)
      except json.JSONDecodeError as error:
        raise UserError(f"{file}:{number}: this is no JSON: {error}.") from None
      if not isinstance(fields, dict):
        raise UserError(f"{file}:{number}: a JSON object is wanted, not {line.strip()[:40]}.")
      yield Record(fields, file=file, line=number)
    if empty:
      raise UserError(f"{file} is empty.")
