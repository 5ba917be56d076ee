"""The helpers of this folder, as a module."""

import importlib.util
import pathlib

import pytest


@pytest.fixture(scope="session")
def exported():
  """The module `exported.py` beside this file."""
  path = pathlib.Path(__file__).with_name("exported.py")
  spec = importlib.util.spec_from_file_location("exported", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
