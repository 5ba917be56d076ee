"""Where evaluators leave, and say, what a figure cannot hold."""

import json
from typing import Any

from etils import epath
import jax


class Folder:
  """`<root>/<task>/<backend>/`, written by the first process alone; the last evaluation stays."""

  def __init__(self, root: str, task: str, backend: str):
    self._path = epath.Path(root) / task / backend

  def write(self, name: str, content: Any, *, indent: int | None = None) -> None:
    """Writes a file of JSON."""
    write(self._path / name, content, indent=indent)


def say(text: str) -> None:
  """Prints in the first process alone; for evaluators that take long."""
  if not jax.process_index():
    print(text)


def write(path: epath.Path, content: Any, *, indent: int | None = None) -> None:
  """Writes JSON, whole or not at all; the first process alone does.

  Args:
    path: The file; its folder is made.
    content: What is written.
    indent: Spaces per level, for people; None is one line, for programs.
  """
  if jax.process_index():
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f"{path.name}.partial")
  partial.write_text(json.dumps(content, ensure_ascii=False, indent=indent) + "\n")
  partial.replace(path)
