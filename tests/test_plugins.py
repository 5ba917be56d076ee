"""A file name is a plug-in name."""

import dataclasses

import pytest

from looped_lm import plugins
from looped_lm.errors import UserError


def test_a_folder_lists_the_files_that_define_its_role():
  assert {"add", "diagonal", "none"} <= set(plugins.names("injection"))
  # Files beside the plug-ins are none.
  assert "schedules" not in plugins.names("optim")
  assert "lamb" in plugins.names("optim")


def test_an_unknown_name_is_answered_with_the_nearest_and_the_file_to_create():
  with pytest.raises(UserError, match=r"'diagonl'.*Did you mean 'diagonal'.*injection/diagonl.py"):
    plugins.load("injection", "diagonl")


def test_an_unknown_setting_is_answered_with_the_nearest():
  @dataclasses.dataclass
  class Toy:
    dropout_rate: float

  with pytest.raises(
    UserError, match=r"model.toy.droput_rate.*Did you mean model.toy.dropout_rate"
  ):
    plugins.settings(Toy, {"droput_rate": 0.1}, where="model.toy")
