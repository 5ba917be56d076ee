"""Configs that are "the same as that one, but": loading a neighbour by file name."""

import importlib.util
import pathlib
from typing import Any


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
