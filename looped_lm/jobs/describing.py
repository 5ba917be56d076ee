"""What needs no training: preparing the data, and describing a model."""

from typing import Any

from looped_lm.data import data_report
from looped_lm.data.prepare import find_prepared
from looped_lm.jobs.experiment import Config, lowered_step, prepared_data, rematerialised, say
from looped_lm.models import looped
from looped_lm.scaling import describe as description


def prepare(config: Config, **_: Any) -> None:
  """Prepares the data and reports on it."""
  prepared = prepared_data(config)
  say(data_report.text(prepared.report))


def describe(config: Config, *, compiled: bool, **_: Any) -> None:
  """Describes the model and, where its data is prepared, what a run sees of it.

  Args:
    config: The resolved config.
    compiled: Whether the step is compiled too, for the compiler's figures of its memory.
  """
  prepared = find_prepared(config["data"], config["tokenizer"], seed=config["seed"])
  size = prepared.tokenizer.vocab_size if prepared else config["tokenizer"]["vocab_size"]
  config, choice = rematerialised(config, vocab_size=size)
  say(description.describe(looped.build(config["model"], vocab_size=size), config, prepared))
  if choice:
    say(choice)
  if compiled:
    say(description.compiled(lowered_step(config, vocab_size=size).compile()))
