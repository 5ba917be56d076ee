"""Configs that are "the same as that one, but": loading a neighbour by file name."""

from collections.abc import Iterable
import importlib.util
import pathlib
from typing import Any

from looped_lm.errors import UserError


def sibling(file: str, name: str, arguments: str = "") -> Any:
  """Returns `get_config(arguments)` of the config `name`.py that lies beside `file`.

  By path, so that a config works from any directory.
  """
  path = pathlib.Path(file).resolve().with_name(f"{name}.py")
  spec = importlib.util.spec_from_file_location(f"looped_lm_config_{name}", path)
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(arguments)


def chosen(arguments: str, *, file: str, sizes: Iterable[str]) -> tuple[str, bool]:
  """Reads a config's arguments: a size, `tiny`, or both, separated by a comma.

  Args:
    arguments: What follows the colon, e.g. "370m" or "370m,tiny".
    file: The config's `__file__`.
    sizes: Known sizes; the first is taken where none is named.

  Returns:
    The size, and whether it shall be tiny.

  Raises:
    UserError: An argument is neither; lists those that are known.
  """
  sizes = list(sizes)
  parts = arguments.split(",") if arguments else []
  named = [part for part in parts if part != "tiny"]
  if len(named) > 1 or any(part not in sizes for part in named):
    raise UserError(
      f"{pathlib.Path(file).name}:{arguments} is unknown; name at most one of {sizes}, and 'tiny', "
      "separated by a comma."
    )
  return named[0] if named else sizes[0], "tiny" in parts
