"""Labelled texts: what a line of each task says, and how it is read as tokens."""

from collections import Counter
from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any

from etils import epath
from jaxtyping import Int
import numpy as np

from looped_lm.errors import UserError
from looped_lm.evals import records

# A template, and the fields that fill it.
Text = tuple[str, tuple[str, ...]]


def field(name: str) -> Text:
  """A text that is a field as it stands."""
  return "{}", (name,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
  """How a task's lines are read, and how it is learned where settings say nothing else.

  Attributes:
    texts: The one or two texts of a line.
    label: The field that holds the label.
    num_labels: Labels are 0 .. num_labels - 1; 0 takes those that the training lines have.
    metric: What the task's score and its best epoch are measured by: "accuracy", "f1" or "mcc".
    batch_size: Rows of a step.
    epochs: Passes over the training lines.
  """

  texts: tuple[Text, ...]
  label: str = "label"
  num_labels: int = 2
  metric: str = "accuracy"
  batch_size: int = 32
  epochs: int = 10


# The GLUE subset of BabyLM 2026. Source: babylm-org/babylm-eval at 3d57ddc.
TASKS = {
  "boolq": Form(texts=(field("question"), field("passage")), batch_size=16),
  "multirc": Form(
    texts=(("Question: {} Answer: {}", ("question", "answer")), field("paragraph")), batch_size=16
  ),
  "rte": Form(texts=(field("sentence1"), field("sentence2"))),
  "wsc": Form(
    texts=(
      ('Does "{}" refer to "{}" in this passage?', ("span2_text", "span1_text")),
      field("text"),
    ),
    epochs=30,
  ),
  "mrpc": Form(texts=(field("sentence1"), field("sentence2")), metric="f1"),
  "qqp": Form(texts=(field("question1"), field("question2")), metric="f1"),
  "mnli": Form(texts=(field("premise"), field("hypothesis")), num_labels=3),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
  """Lines of a file.

  Attributes:
    texts_N: The one or two texts of each.
    label_N: Each one's label, as its place among the classes.
  """

  texts_N: list[tuple[str, ...]]
  label_N: Int[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledSet:
  """A task.

  Attributes:
    form: How it is read and learned.
    classes: Its labels.
    train: What is learned from.
    valid: What is predicted.
  """

  form: Form
  classes: tuple[str, ...]
  train: Examples
  valid: Examples

  @property
  def majority_accuracy(self) -> float:
    """Accuracy of always saying the commonest label of the training lines."""
    count_C = np.bincount(self.train.label_N, minlength=len(self.classes))
    return float((self.valid.label_N == count_C.argmax()).mean())


def read(form: Form, *, train: epath.Path, valid: epath.Path) -> LabelledSet:
  """Reads a task from two .jsonl files.

  Raises:
    UserError: A file is empty, a line is wrong, a validation label is unknown, or the training
      lines have one label alone.
  """
  lines = list(records.json_lines(train))
  label_N = [record.label(form.label) for record in lines]
  counts = Counter(label_N)
  classes = tuple(sorted(counts))
  if form.num_labels:
    classes = tuple(str(number) for number in range(form.num_labels))
  train_examples = _examples(form, lines, classes, train)
  if len(counts) < 2:
    raise UserError(
      f"{train}: all {len(lines)} lines have the label {label_N[0]!r}; to tell labels apart, two "
      "or more are needed."
    )
  valid_examples = _examples(form, list(records.json_lines(valid)), classes, train)
  return LabelledSet(form=form, classes=classes, train=train_examples, valid=valid_examples)


def _examples(
  form: Form, lines: list[records.Record], classes: tuple[str, ...], train: epath.Path
) -> Examples:
  place_of = {name: place for place, name in enumerate(classes)}
  labels = []
  for record in lines:
    label = record.label(form.label)
    if label not in place_of:
      known = f"{list(classes[:10])}{' …' if len(classes) > 10 else ''}"
      raise UserError(
        f"{record.where}: the label {label!r} is none of {known}, the labels of "
        f"{'this task' if form.num_labels else train}."
      )
    labels.append(place_of[label])
  # The official files have questions that are empty.
  texts = [
    tuple(
      template.format(*(record.text(name, may_be_empty=True) for name in names))
      for template, names in form.texts
    )
    for record in lines
  ]
  return Examples(texts_N=texts, label_N=np.array(labels, np.int32))


def encode(
  examples: Examples, *, tokenizer: Any, bos_id: int, max_length: int
) -> tuple[list[Int[np.ndarray, " T"]], int]:
  """Gives each example's tokens, `<s> text` or `<s> text <s> text`, and how many were cut.

  A pair that is too long loses the end of its longer text, until both are of one length.
  """
  ids = iter(tokenizer.encode_batch(list(itertools.chain.from_iterable(examples.texts_N))))
  rows, cut = [], 0
  for texts in examples.texts_N:
    parts = [next(ids).ids_T for _ in texts]
    kept = shortened([len(part) for part in parts], room=max_length - len(parts))
    cut += sum(kept) < sum(len(part) for part in parts)
    pieces = [([bos_id], part[:length]) for part, length in zip(parts, kept, strict=True)]
    rows.append(np.concatenate([*itertools.chain.from_iterable(pieces)]).astype(np.int32))
  return rows, cut


def shortened(lengths: Sequence[int], *, room: int) -> tuple[int, ...]:
  """How much is kept of one or two texts that have `room` tokens together."""
  if sum(lengths) <= room:
    return tuple(lengths)
  if len(lengths) == 1:
    return (room,)
  first, second = lengths
  shorter = min(first, second, room // 2)
  longer = room - shorter
  return (longer, shorter) if first > second else (shorter, longer)
