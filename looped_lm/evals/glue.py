"""The GLUE subset of BabyLM, and labelled sets of one's own: fine-tuned, then predicted."""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any, ClassVar

from etils import epath
from jaxtyping import Int
import numpy as np

from looped_lm.errors import UserError
from looped_lm.evals import agreement, classifier, finetune, labelled, records, results
from looped_lm.evals.labelled import LabelledSet
from looped_lm.types import Params, Subject

VERSION = "glue-2026.1"
_CUSTOM = {
  "train": "",
  "valid": "",
  "text_fields": ("text",),
  "label_field": "label",
  "metric": "accuracy",
}
_SHORTEST = 8


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Fine-tunes the model on each task and predicts the task's validation file.

  The best pass over the training file is the one with the best score on the validation file, which
  is also what is reported: so does the official pipeline, and so the score flatters. F1 counts for
  mrpc and qqp, accuracy for the others.

  Yields `eval/glue/<backend>/score_percent`, the mean of the official tasks that are asked for, and
  `/<task>_percent`; and `/task/<task>/` with `accuracy_percent`, `f1_percent`, `mcc_percent` and
  `truncated_percent` (texts that were cut to `max_length`). The number is the same for all
  backends of `evals.backends`, as on the leaderboard: `backend` says who sees whom here.
  Takes long, so it is asked at the end of a run and by --mode=eval alone.

  Attributes:
    subject: The model, its tokenizer and the devices.
    path: Folder of the official files, <task>.train.jsonl and <task>.valid.jsonl.
    tasks: Which of `labelled.TASKS`.
    custom: A set of one's own, beside or instead of them: files `train` and `valid` with one JSON
      object per line, `text_fields` (one, or two for a pair), `label_field`, and `metric`. It is
      no part of the mean.
    batch_size: Rows of a step; 0 takes the task's own.
    epochs: Passes over the training file; 0 takes the task's own.
    max_length: Most tokens of a text or pair, `<s>` included; the rest is cut off.
    token: Which token is classified: "last" or "first".
    backend: Who sees whom: "causal" or "bidirectional".
    seed: Of the head, the order of lines and dropout.
    learning_rate, warmup_fraction, floor_fraction, weight_decay, b1, b2, dropout_rate: As
      `finetune.Recipe` says.
  """

  reads_its_set: ClassVar[bool] = True
  final_only: ClassVar[bool] = True

  subject: Subject
  path: str = ""
  tasks: tuple[str, ...] = tuple(labelled.TASKS)
  custom: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  batch_size: int = 0
  epochs: int = 0
  max_length: int = 512
  token: str = "last"
  backend: str = "causal"
  seed: int = 42
  learning_rate: float = 3e-5
  warmup_fraction: float = 0.06
  floor_fraction: float = 0.1
  weight_decay: float = 0.01
  b1: float = 0.9
  b2: float = 0.999
  dropout_rate: float = 0.1

  def __post_init__(self) -> None:
    """Checks the settings and reads the sets."""
    self._check()
    self.sets: dict[str, LabelledSet] = {}
    if self.tasks:
      folder = records.found(
        self.path,
        setting="evals.glue.path",
        origin="from the BabyLM evaluation files (full_eval/glue_filtered)",
      )
      for task in self.tasks:
        train, valid = (_file(folder, task, part) for part in ("train", "valid"))
        self.sets[task] = labelled.read(labelled.TASKS[task], train=train, valid=valid)
    own = {**_CUSTOM, **self.custom}
    if own["train"]:
      train, valid = (
        records.found(
          own[part], setting=f"evals.glue.custom.{part}", origin="as one JSON object per line"
        )
        for part in ("train", "valid")
      )
      form = labelled.Form(
        texts=tuple(labelled.field(name) for name in own["text_fields"]),
        label=own["label_field"],
        num_labels=0,
        metric=own["metric"],
      )
      self.sets["custom"] = labelled.read(form, train=train, valid=valid)

  def _check(self) -> None:
    for name, value, known in (
      ("token", self.token, classifier.TOKENS),
      ("backend", self.backend, tuple(classifier.ORDERS)),
    ):
      if value not in known:
        raise UserError(f"evals.glue.{name}={value!r} is none of {list(known)}.")
    for task in self.tasks:
      if task not in labelled.TASKS:
        raise UserError(f"evals.glue.tasks names {task!r}, which is none of {[*labelled.TASKS]}.")
    for name, least in (("batch_size", 0), ("epochs", 0), ("max_length", _SHORTEST)):
      if getattr(self, name) < least:
        raise UserError(f"evals.glue.{name}={getattr(self, name)} must be at least {least}.")
    if not self.learning_rate > 0:
      raise UserError(f"evals.glue.learning_rate={self.learning_rate} must be above 0.")
    for name in ("warmup_fraction", "dropout_rate", "b1", "b2"):
      if not 0 <= getattr(self, name) < 1:
        raise UserError(f"evals.glue.{name}={getattr(self, name)} must lie in [0, 1).")
    own = {**_CUSTOM, **self.custom}
    if unknown := sorted(own.keys() - _CUSTOM.keys()):
      raise UserError(f"evals.glue.custom.{unknown[0]} is not a setting; it has {[*_CUSTOM]}.")
    if own["metric"] not in agreement.METRICS:
      raise UserError(
        f"evals.glue.custom.metric={own['metric']!r} is none of {list(agreement.METRICS)}."
      )
    if isinstance(own["text_fields"], str) or not 1 <= len(own["text_fields"]) <= 2:
      raise UserError(
        f"evals.glue.custom.text_fields={own['text_fields']!r} must name one field, or two for a "
        "pair of texts: ('text',)."
      )
    if not self.tasks and not own["train"]:
      raise UserError("evals.glue.tasks and evals.glue.custom.train are empty: give one of them.")

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Fine-tunes and predicts, a task after another; each is left as soon as it is done."""
    # All texts first: what is wrong with one shall not come out after hours.
    encoded = {task: self._encoded(task, each) for task, each in self.sets.items()}
    summaries: dict[str, dict[str, Any]] = {}
    predictions: dict[str, Any] = {}
    for task, labelled_set in self.sets.items():
      summary, predicted_N = self._learned(task, labelled_set, params, encoded[task])
      summaries[task] = summary
      predictions[task] = {
        "predictions": [
          {"id": f"{task}_{number}", "pred": _told(labelled_set, int(label))}
          for number, label in enumerate(predicted_N)
        ]
      }
      self._leave(summaries, predictions)
    figures = dict(_figures(summaries))
    for backend in self.subject.backends:
      for name, value in figures.items():
        yield f"eval/glue/{backend}/{name}", value

  def _encoded(self, task: str, labelled_set: LabelledSet) -> dict[str, tuple[list[Any], int]]:
    """Tokens of both files, and how many texts were cut."""
    rows = {
      part: labelled.encode(
        examples,
        tokenizer=self.subject.tokenizer,
        bos_id=self.subject.vocabulary.bos_id,
        max_length=self.max_length,
      )
      for part, examples in (("train", labelled_set.train), ("valid", labelled_set.valid))
    }
    longest = max(len(ids) for part, _ in rows.values() for ids in part)
    most = self.subject.model.max_length
    if most is not None and longest > most:
      raise UserError(
        f"{task} has a text of {longest} tokens, `<s>` included; the model reads at most {most}. "
        f"Set evals.glue.max_length={most}, which cuts longer ones."
      )
    return rows

  def _recipe(self, labelled_set: LabelledSet) -> finetune.Recipe:
    form = labelled_set.form
    return finetune.Recipe(
      learning_rate=self.learning_rate,
      warmup_fraction=self.warmup_fraction,
      floor_fraction=self.floor_fraction,
      weight_decay=self.weight_decay,
      b1=self.b1,
      b2=self.b2,
      dropout_rate=self.dropout_rate,
      batch_size=self.batch_size or form.batch_size,
      epochs=self.epochs or form.epochs,
      token=self.token,
      visibility=self.backend,
      seed=self.seed,
    )

  def _learned(
    self,
    task: str,
    labelled_set: LabelledSet,
    params: Params,
    encoded: Mapping[str, tuple[list[Any], int]],
  ) -> tuple[dict[str, Any], Int[np.ndarray, " N"]]:
    """What the best pass gives, and its predictions; the first among equals."""
    recipe, metric = self._recipe(labelled_set), labelled_set.form.metric
    label_N, num_classes = labelled_set.valid.label_N, len(labelled_set.classes)

    def judged(predicted_N: Int[np.ndarray, " N"]) -> dict[str, float]:
      return agreement.figures(predicted_N, label_N, num_classes=num_classes)

    epochs, guesses = [], []
    for epoch, predicted_N in finetune.finetune(
      self.subject,
      params,
      recipe,
      train=(encoded["train"][0], labelled_set.train.label_N),
      valid=(encoded["valid"][0], label_N),
      num_classes=num_classes,
      score=lambda predicted_N: judged(predicted_N)[metric],
      name=task,
    ):
      epochs.append(epoch)
      guesses.append(predicted_N)
      results.say(
        f"glue/{task}: epoch {len(epochs)} of {recipe.epochs}, loss "
        f"{epoch.train_loss_nats:.4f} nats, validation {metric} {100 * epoch.score:.2f} %"
      )
    best = max(range(len(epochs)), key=lambda place: epochs[place].score)
    counts = {part: (len(rows), cut) for part, (rows, cut) in encoded.items()}
    if cut := sum(cut for _, cut in counts.values()):
      results.say(f"glue/{task}: {cut} texts were cut to {self.max_length} tokens.")
    figures = judged(guesses[best])
    summary = {
      "metric": metric,
      "score_percent": 100 * figures[metric],
      **{f"{name}_percent": 100 * value for name, value in figures.items()},
      "majority_accuracy_percent": 100 * labelled_set.majority_accuracy,
      "classes": list(labelled_set.classes),
      "examples": {part: count for part, (count, _) in counts.items()},
      "truncated": {part: cut for part, (_, cut) in counts.items()},
      "best_epoch": best + 1,
      "epochs": [dataclasses.asdict(each) for each in epochs],
      "recipe": dataclasses.asdict(recipe),
    }
    return summary, guesses[best]

  def _leave(self, summaries: Mapping[str, Any], predictions: Mapping[str, Any]) -> None:
    """Writes what is known so far, for every backend."""
    if self.subject.folder is None:
      return
    mean = _mean(summaries)
    content = {
      "metric_version": VERSION,
      **({} if mean is None else {"score_percent": mean}),
      "not_scored": [task for task in labelled.TASKS if task not in summaries],
      "max_length": self.max_length,
      "tasks": summaries,
    }
    official = {task: told for task, told in predictions.items() if task in labelled.TASKS}
    for backend in self.subject.backends:
      folder = results.Folder(self.subject.folder, "glue", backend)
      folder.write("scores.json", content, indent=1)
      folder.write("predictions.json", official)
      if "custom" in predictions:
        folder.write("custom_predictions.json", {"custom": predictions["custom"]})


def _figures(summaries: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, float]]:
  for task, summary in summaries.items():
    for name in agreement.METRICS:
      yield f"task/{task}/{name}_percent", summary[f"{name}_percent"]
    cut, count = (sum(summary[name].values()) for name in ("truncated", "examples"))
    yield f"task/{task}/truncated_percent", 100 * cut / count
    yield f"{task}_percent", summary["score_percent"]
  mean = _mean(summaries)
  if mean is not None:
    yield "score_percent", mean


def _mean(summaries: Mapping[str, dict[str, Any]]) -> float | None:
  """The mean of the official tasks that were scored, or None."""
  scores = [summary["score_percent"] for task, summary in summaries.items() if task != "custom"]
  return sum(scores) / len(scores) if scores else None


def _told(labelled_set: LabelledSet, label: int) -> int | str:
  """A label as predictions name it: the number of an official task, else as the file has it."""
  return label if labelled_set.form.num_labels else labelled_set.classes[label]


def _file(folder: epath.Path, task: str, part: str) -> epath.Path:
  file = folder / f"{task}.{part}.jsonl"
  if not file.exists():
    raise UserError(
      f"{file} does not exist, and evals.glue.tasks names {task!r}. Put it there, or name the "
      f"tasks that are there: --config.evals.glue.tasks=\"('rte',)\"."
    )
  return file
