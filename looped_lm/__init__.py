"""Looped language models in JAX: train, evaluate and use them.

`looped_lm.load` is the way in from Python; all behind it is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from looped_lm.jobs.loading import load as load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
  if name == "load":
    return import_module("looped_lm.jobs.loading").load
  raise AttributeError(f"module 'looped_lm' has no attribute {name!r}")
