"""What a wrong line gets: its file and its number."""

import json

import pytest

from looped_lm.errors import UserError
from looped_lm.evals import records


def read(tmp_path, text):
  file = tmp_path / "pairs.jsonl"
  file.write_text(text)
  return list(records.json_lines(tmp_path))


def test_lines_are_read_in_order_and_blank_ones_skipped(tmp_path):
  found = read(tmp_path, '{"a": "x\u2028y"}\n\n{"a": 2}\n')
  assert [each.where.rpartition(":")[2] for each in found] == ["1", "3"]
  assert found[0].text("a") == "x\u2028y"
  assert found[1].integer("a") == found[1].number("a") == 2
  assert found[1].label("a") == "2"


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ("{", r"pairs.jsonl:2: this is no JSON"),
    ("[1]", r"pairs.jsonl:2: a JSON object is wanted"),
  ],
)
def test_a_malformed_line_is_named(tmp_path, line, message):
  with pytest.raises(UserError, match=message):
    read(tmp_path, f'{{"a": 1}}\n{line}\n')


@pytest.mark.parametrize(
  ("fields", "kind", "message"),
  [
    ({"b": "x"}, "text", r"pairs.jsonl:1: there is no 'a'; the line has \['b'\]"),
    ({"a": ""}, "text", "'a' must be text that is not empty; it is ''"),
    ({"a": 3}, "text", "'a' must be text"),
    ({"a": ["x"]}, "texts", "'a' must be a list of two or more texts"),
    ({"a": ["x", 1]}, "texts", "'a' must be a list of two or more texts"),
    ({"a": True}, "integer", "'a' must be a whole number; it is True"),
    ({"a": 1.5}, "integer", "'a' must be a whole number; it is 1.5"),
    ({"a": "x"}, "number", "'a' must be a number"),
  ],
)
def test_a_field_of_the_wrong_kind_is_named(tmp_path, fields, kind, message):
  (record,) = read(tmp_path, json.dumps(fields))
  with pytest.raises(UserError, match=message) as error:
    getattr(record, kind)("a")
  assert "\n" not in str(error.value)


def test_an_empty_file_and_an_empty_folder_are_errors(tmp_path):
  with pytest.raises(UserError, match=r"holds no \.jsonl file"):
    list(records.json_lines(tmp_path))
  with pytest.raises(UserError, match=r"pairs\.jsonl is empty"):
    read(tmp_path, "\n")


def test_a_missing_set_says_where_it_comes_from_and_where_to_put_it(tmp_path):
  with pytest.raises(
    UserError, match=r"from its authors.*put it there.*--config.evals.x.path=PATH"
  ):
    records.found(str(tmp_path / "no"), setting="evals.x.path", origin="from its authors")
