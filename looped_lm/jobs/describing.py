"""What needs no training: preparing the data, and describing a model."""

from typing import Any

from looped_lm.data import data_report
from looped_lm.data.prepare import find_prepared
from looped_lm.jobs.experiment import Config, prepared_data, say
from looped_lm.models import looped
from looped_lm.scaling import describe as description


def prepare(config: Config, **_: Any) -> None:
  """Prepares the data and reports on it."""
  prepared = prepared_data(config)
  say(data_report.text(prepared.report))


def describe(config: Config, **_: Any) -> None:
  """Describes the model and, where its data is prepared, what a run sees of it."""
  prepared = find_prepared(config["data"], config["tokenizer"], seed=config["seed"])
  size = prepared.tokenizer.vocab_size if prepared else config["tokenizer"]["vocab_size"]
  say(description.describe(looped.build(config["model"], vocab_size=size), config, prepared))
