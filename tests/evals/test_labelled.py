"""What a line of each labelled task says, and how it is read as tokens."""

import json

from etils import epath
import numpy as np
import pytest
import tokenizers

from looped_lm.errors import UserError
from looped_lm.evals import labelled

# A line of each official file (made up here), and the texts that are read from it.
LINES = {
  "boolq": (
    {"question": "do dogs run", "passage": "Dogs run.", "label": 1},
    ("do dogs run", "Dogs run."),
  ),
  "multirc": (
    {"paragraph": "A cat sat.", "question": "Who sat?", "answer": "{a} cat", "label": 0},
    ("Question: Who sat? Answer: {a} cat", "A cat sat."),
  ),
  "rte": (
    {"sentence1": "A dog ran.", "sentence2": "It ran.", "label": 0, "idx": 7},
    ("A dog ran.", "It ran."),
  ),
  "wsc": (
    {"text": "Mary saw it.", "span1_text": "Mary", "span2_text": "her", "label": 1},
    ('Does "her" refer to "Mary" in this passage?', "Mary saw it."),
  ),
  "mrpc": ({"sentence1": "One.", "sentence2": "Two.", "label": 1}, ("One.", "Two.")),
  "qqp": ({"question1": "Who?", "question2": "", "label": 0}, ("Who?", "")),
  "mnli": ({"premise": "It is up.", "hypothesis": "Up.", "label": 2}, ("It is up.", "Up.")),
}
OWN = labelled.Form(texts=(labelled.field("text"),), num_labels=0)


def write(folder, name, lines):
  file = epath.Path(folder) / f"{name}.jsonl"
  file.write_text("".join(json.dumps(line) + "\n" for line in lines))
  return file


def read(folder, form, train, valid):
  files = {part: write(folder, part, lines) for part, lines in (("train", train), ("valid", valid))}
  return labelled.read(form, **files)


@pytest.mark.parametrize("task", LINES)
def test_an_official_line_is_read_as_the_pipeline_reads_it(tmp_path, task):
  line, texts = LINES[task]
  form = labelled.TASKS[task]
  train = [line | {"label": label} for label in range(form.num_labels)]
  found = read(tmp_path, form, train, [line])
  assert found.classes == tuple(map(str, range(3 if task == "mnli" else 2)))
  assert found.valid.texts_N == [texts]
  assert found.valid.label_N.tolist() == [line["label"]]


def test_official_recipes():
  assert {task for task, form in labelled.TASKS.items() if form.metric == "f1"} == {"mrpc", "qqp"}
  assert {t for t, form in labelled.TASKS.items() if form.batch_size == 16} == {"boolq", "multirc"}
  assert {t: form.epochs for t, form in labelled.TASKS.items() if form.epochs != 10} == {"wsc": 30}


def test_labels_of_ones_own_are_those_of_the_training_lines(tmp_path):
  train = [
    {"text": "a", "label": "yes"},
    {"text": "b", "label": "no"},
    {"text": "c", "label": "no"},
  ]
  found = read(tmp_path, OWN, train, [{"text": "d", "label": "yes"}, {"text": "e", "label": "no"}])
  assert found.classes == ("no", "yes")
  assert found.train.label_N.tolist() == [1, 0, 0]
  assert found.majority_accuracy == 0.5


@pytest.mark.parametrize(
  ("train", "valid", "message"),
  [
    ([("a", 0), ("b", 1)], [("c", 2)], r"valid.jsonl:1: the label '2' is none of \['0', '1'\]"),
    ([("a", 0), ("b", 0)], [("c", 0)], r"train.jsonl: all 2 lines have the label '0'"),
    ([("a", 0), (3, 1)], [("c", 0)], r"train.jsonl:2: 'text' must be text; it is 3"),
    ([("a", 0), ("b", 1.5)], [("c", 0)], r"train.jsonl:2: 'label' must be"),
    ([("a", 0), ("b", 1)], [], r"valid.jsonl is empty"),
    ([], [("c", 0)], r"train.jsonl is empty"),
  ],
)
def test_what_is_wrong_with_a_set_is_one_line(tmp_path, train, valid, message):
  lines = [[{"text": text, "label": label} for text, label in part] for part in (train, valid)]
  with pytest.raises(UserError, match=message) as error:
    read(tmp_path, OWN, *lines)
  assert "\n" not in str(error.value)


def test_a_line_that_is_no_json_and_a_missing_field_are_named(tmp_path):
  train = write(tmp_path, "train", [{"text": "a", "label": 0}, {"txt": "b", "label": 1}])
  with pytest.raises(UserError, match=r"train.jsonl:2: there is no 'text'"):
    labelled.read(OWN, train=train, valid=train)
  train.write_text('{"text": "a", "label": 0}\n{"text"\n')
  with pytest.raises(UserError, match=r"train.jsonl:2: this is no JSON"):
    labelled.read(OWN, train=train, valid=train)


def test_an_official_label_out_of_range_is_an_error(tmp_path):
  line = LINES["rte"][0]
  with pytest.raises(UserError, match=r"train.jsonl:2: the label '2' is none of \['0', '1'\], the"):
    read(tmp_path, labelled.TASKS["rte"], [line, line | {"label": 2}], [line])


def examples(texts_N):
  return labelled.Examples(texts_N=texts_N, label_N=np.zeros(len(texts_N), np.int32))


@pytest.mark.parametrize("max_length", [8, 9, 12, 17, 40])
def test_tokens_and_cuts_are_those_of_the_tokenizers_library(spelling, max_length):
  text, short = "The dogs saw a mouse and ran.", "Who ran?"
  pairs = [
    (text, short),
    (short, text),
    (text, text),
    (short, short),
    (text, ""),
    (text + text, text),
  ]
  library = tokenizers.Tokenizer.from_str(spelling._program.to_str())
  library.enable_truncation(max_length)
  wanted = [library.encode(*pair).ids for pair in pairs]
  rows, cut = labelled.encode(
    examples(pairs), tokenizer=spelling, bos_id=spelling.bos_id, max_length=max_length
  )
  assert [row.tolist() for row in rows] == wanted
  library.no_truncation()
  assert cut == sum(len(library.encode(*pair).ids) > max_length for pair in pairs)
  assert cut > 0


def test_a_text_alone_is_cut_at_its_end(spelling):
  text = "The dogs saw a mouse."
  whole = [spelling.bos_id, *spelling.encode(text).tolist()]
  (row,), cut = labelled.encode(
    examples([(text,)]), tokenizer=spelling, bos_id=spelling.bos_id, max_length=5
  )
  assert (row.tolist(), cut) == (whole[:5], 1)
