"""The evaluators of a run: what they measure on the way and at its end, and what they show then."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from looped_lm import plugins
from looped_lm.errors import UserError
from looped_lm.evals import scoring
from looped_lm.types import Params, Subject

Settings = Mapping[str, Any]
Views = dict[str, Mapping[str, np.ndarray]]


class Suite:
  """The evaluators that a config names.

  An evaluator has `run(params) -> (name, value) pairs`, the parameters as the strategy placed them,
  or `views(params) -> name -> array`, the parameters this process's own, or both. One that
  `reads_its_set` does so when it is made, without its subject, so that a wrong set is said early;
  one that is `final_only` takes too long to be asked during training, wherever it is named, and one
  of `milestones_needed` asks all weights that the run kept on its way, at least so many.
  """

  def __init__(self, settings: Settings, subject: Subject) -> None:
    """Builds them; see `check` for the settings and errors."""
    check(settings)
    self._built = {
      name: plugins.load("evals", name).Evaluator(subject=subject, **_own(settings, name))
      for name in (*settings["names"], *settings["final_names"])
    }
    long = (name for name, each in self._built.items() if getattr(each, "final_only", False))
    self._final = frozenset([*settings["final_names"], *long])

  def figures(self, params: Params, *, final: bool) -> Iterator[tuple[str, float]]:
    """Measures.

    Args:
      params: As the strategy placed them.
      final: Whether the run is at its end, where all evaluators are asked.
    """
    for name, evaluator in self._built.items():
      if hasattr(evaluator, "run") and (final or name not in self._final):
        yield from evaluator.run(params)

  def views(self, params: Params) -> Views:
    """What is looked at and not measured, of each evaluator that shows something.

    Args:
      params: This process's own copy.
    """
    return {
      name: evaluator.views(params)
      for name, evaluator in self._built.items()
      if hasattr(evaluator, "views")
    }


def check(settings: Settings) -> None:
  """Checks the `evals` group's evaluators and their settings.

  Args:
    settings: `names` are asked at every evaluation, `final_names` at the end of the run alone; a
      group of an evaluator's name holds its settings.

  Raises:
    UserError: No such evaluator or setting, or an evaluator is named twice.
  """
  names = [*settings["names"], *settings["final_names"]]
  for name in names:
    evaluator = plugins.load("evals", name).Evaluator
    if names.count(name) > 1:
      raise UserError(
        f"evals.names and evals.final_names name {name!r} {names.count(name)} times; name it once: "
        "what is measured at every evaluation is measured at the end, too."
      )
    plugins.settings(evaluator, _own(settings, name), where=f"evals.{name}")


def check_sets(settings: Settings) -> None:
  """Reads the sets of the evaluators that have one, and checks how they are scored.

  Raises:
    UserError: A set is missing or wrong, or there is no such way of scoring.
  """
  backends, loops = tuple(settings["backends"]), tuple(settings["loops"])
  if not backends or not set(backends) <= set(scoring.BACKENDS):
    raise UserError(f"evals.backends={backends} must be one or more of {list(scoring.BACKENDS)}.")
  if any(loop < 1 for loop in loops):
    raise UserError(f"evals.loops={loops} must be numbers of at least 1.")
  for name in (*settings["names"], *settings["final_names"]):
    evaluator = plugins.load("evals", name).Evaluator
    if getattr(evaluator, "reads_its_set", False):
      evaluator(subject=None, **_own(settings, name))


def milestones_needed(settings: Settings) -> int:
  """How many of the weights that a run keeps on its way the evaluators need; 0 for none."""
  names = (*settings["names"], *settings["final_names"])
  evaluators = (plugins.load("evals", name).Evaluator for name in names)
  return max((getattr(each, "milestones_needed", 0) for each in evaluators), default=0)


def check_milestones(settings: Settings, count: int, *, whose: str) -> None:
  """Checks that there are as many of them as the evaluators need.

  Args:
    settings: As `check` has them.
    count: Milestones there are, or will be.
    whose: Begins the message, as in "The config keeps".

  Raises:
    UserError: There are fewer.
  """
  if count < (needed := milestones_needed(settings)):
    raise UserError(
      f"{whose} {count} milestones, and evals names what needs {needed}: set more of "
      "train.save_at_words (looped_gpt_bert.py:babylm has BabyLM's), or name fewer evals."
    )


def _own(settings: Settings, name: str) -> dict[str, Any]:
  return dict(settings.get(name, {}))
