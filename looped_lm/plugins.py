"""From a plug-in's name to its class: a file name is a plug-in name.

`load("injection", "diagonal")` is `looped_lm/injection/diagonal.py`; there is no registry to edit.
"""

import dataclasses
import difflib
import importlib
import pathlib
import types
from typing import Any

from looped_lm.errors import UserError

_LINEN_FIELDS = ("parent", "name")  # Added to every Flax module; not settings.


# The class that a plug-in file of each folder defines.
ROLES = {
  "attention": "Attention",
  "blocks": "Block",
  "evals": "Evaluator",
  "init": "Init",
  "injection": "Injection",
  "objectives": "Objective",
  "optim": "Optimizer",
}


def names(folder: str) -> list[str]:
  """Lists the plug-ins of a folder: its files that define the folder's role."""
  folder_path = pathlib.Path(__file__).parent / folder
  role = f"\nclass {ROLES[folder]}"
  return sorted(path.stem for path in folder_path.glob("*.py") if role in path.read_text("utf-8"))


def load(folder: str, name: str) -> types.ModuleType:
  """Imports the plug-in `looped_lm/<folder>/<name>.py`.

  Raises:
    UserError: There is no such file; names those that exist.
  """
  known = names(folder)
  if name not in known:
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UserError(
      f"{folder}.name={name!r} is none of {known}.{hint} "
      f"To add it, create looped_lm/{folder}/{name}.py."
    )
  return importlib.import_module(f"looped_lm.{folder}.{name}")


def settings(cls: type, given: dict[str, Any], *, where: str) -> dict[str, Any]:
  """Checks settings against a class's own fields.

  Args:
    cls: A dataclass or Flax module; its fields are its settings.
    given: The settings of the config, `name` excepted.
    where: The config path, for the message.

  Raises:
    UserError: A setting is no field of the class; names the nearest real one.
  """
  fields = [f.name for f in dataclasses.fields(cls) if f.init and f.name not in _LINEN_FIELDS]
  for key in given:
    if key not in fields:
      close = difflib.get_close_matches(key, fields, n=1)
      hint = f" Did you mean {where}.{close[0]}?" if close else ""
      raise UserError(f"{where}.{key} is not a setting; {where} has {fields}.{hint}")
  return given
