"""Weights kept for good at chosen numbers of words read, as BabyLM asks for them.

`WORKDIR/milestones/chck_1M` is a folder of checkpoints with one checkpoint, of weights alone;
nothing removes it. A milestone is whole on disk before any later checkpoint is begun, so that a run
which goes on from a checkpoint has all milestones up to there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from looped_lm.data.pipeline import Pipeline
from looped_lm.errors import UserError
from looped_lm.train import checkpoint
from looped_lm.types import State

# Those of the strict-small track: ten epochs over 10M words.
BABYLM_WORDS = (
  *range(1_000_000, 10_000_000, 1_000_000),
  *range(10_000_000, 110_000_000, 10_000_000),
)
_FOLDER = "milestones"
_PREFIX = "chck_"
_MILLION = 1_000_000


class Milestones:
  """The milestones of one run.

  Example:
    milestones = Milestones(workdir, (1_000_000,), pipeline=pipeline, total_steps=9, config=config)
    if reached := milestones.due(step):
      milestones.save(state, reached)
  """

  def __init__(
    self,
    workdir: str,
    words: Sequence[int],
    *,
    pipeline: Pipeline,
    total_steps: int,
    config: Mapping[str, Any],
  ) -> None:
    """Finds the step of each figure and which are written; writes nothing.

    Args:
      workdir: The run's folder; may be gs://.
      words: The numbers of words, in rising order.
      pipeline: Tells what a step has shown.
      total_steps: Of the whole run.
      config: The run's configuration, saved with every milestone.

    Raises:
      UserError: A figure lies beyond the run, or a milestone there is of another step.
    """
    check(words)
    self._workdir = workdir
    self._config = config
    self._steps = {figure: _step(figure, pipeline, total_steps) for figure in words}
    self._written: set[int] = set()
    for figure, step in self._steps.items():
      folder = epath.Path(workdir) / _FOLDER / name(figure)
      found = checkpoint.saved_steps(str(folder))
      if found and found != [step]:
        raise UserError(
          f"{folder} holds step {found[-1]}, and this run reaches {figure:,} words at step {step}; "
          "move the folder away, or give another --workdir."
        )
      if found:
        self._written.add(figure)

  def missed(self, first: int) -> list[str]:
    """Names the milestones that a run which goes on from step `first` can no longer write."""
    return [
      name(figure)
      for figure, step in self._steps.items()
      if step <= first and figure not in self._written
    ]

  def due(self, step: int) -> list[int]:
    """Gives the figures that this step reaches and that are not written yet."""
    return [f for f, at in self._steps.items() if at == step and f not in self._written]

  def save(self, state: State, reached: Sequence[int]) -> None:
    """Writes milestones and returns when they are whole.

    Args:
      state: As checkpoints keep it.
      reached: What `due` gave.

    Raises:
      UserError: The disk is full, or the folder cannot be written.
    """
    for figure in reached:
      folder = str(epath.Path(self._workdir) / _FOLDER / name(figure))
      with checkpoint.Checkpoints(folder, keep_latest=1, config=self._config) as milestone:
        milestone.save(state, data={"words": figure}, weights_alone=True)
      self._written.add(figure)


def check(words: Sequence[int]) -> None:
  """Raises a `UserError` unless the figures are positive and rise."""
  whole = all(isinstance(figure, int) and not isinstance(figure, bool) for figure in words)
  if not whole or any(b <= a for a, b in zip((0, *words), words, strict=False)):
    raise UserError(
      f"train.save_at_words={tuple(words)} must be whole numbers of words above 0, in rising order."
    )


def name(words: int) -> str:
  """What a milestone is called: chck_1M, and chck_1500 where it is no whole number of millions."""
  millions, rest = divmod(words, _MILLION)
  return f"{_PREFIX}{words}" if rest else f"{_PREFIX}{millions}M"


def saved(workdir: str) -> dict[str, str]:
  """Lists the milestones that are whole, in order: name -> folder.

  Raises:
    UserError: There is none.
  """
  folder = epath.Path(workdir) / _FOLDER
  paths = [path for path in folder.iterdir() if words_of(path.name)] if folder.is_dir() else []
  paths = sorted(paths, key=lambda path: words_of(path.name))
  whole = {path.name: str(path) for path in paths if checkpoint.saved_steps(str(path))}
  if not whole:
    raise UserError(
      f"{workdir} has no milestones: train with train.save_at_words, for example "
      '--config.train.save_at_words="(1000000, 2000000)".'
    )
  return whole


def words_of(folder: str) -> int:
  """Reads the words of a milestone's name; 0 where it is none of ours."""
  figure = folder.removeprefix(_PREFIX)
  factor = _MILLION if figure.endswith("M") else 1
  figure = figure.removesuffix("M")
  ours = folder.startswith(_PREFIX) and figure.isascii() and figure.isdigit()
  return int(figure) * factor if ours else 0


def _step(figure: int, pipeline: Pipeline, total_steps: int) -> int:
  """The first step that has shown so many words; the last one where one batch more would."""
  step = pipeline.step_reaching(figure)
  if step > total_steps + 1:
    raise UserError(
      f"train.save_at_words has {figure:,}, and the run ends after {total_steps} steps with "
      f"{pipeline.words_seen(total_steps):,} words; leave the figure out, or train longer "
      "(text held out by data.validation_fraction is not trained on)."
    )
  return min(step, total_steps)
