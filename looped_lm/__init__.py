"""Looped language models in JAX: train, evaluate and use them.

`looped_lm.load` is the way in from Python; it is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from looped_lm.jobs.loaded import LoadedModel as LoadedModel
  from looped_lm.jobs.loaded import load as load

__all__ = ["LoadedModel", "load"]  # noqa: F822


def __getattr__(name: str) -> Any:
  if name in __all__:
    return getattr(import_module("looped_lm.jobs.loaded"), name)
  raise AttributeError(f"module 'looped_lm' has no attribute {name!r}")
