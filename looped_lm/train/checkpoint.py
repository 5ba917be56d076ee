"""Checkpoints: everything a run needs to continue as if it had never stopped.

One folder per step, written in the background by Orbax and renamed only when complete, so that a
killed run leaves whole checkpoints. Each holds separate items: `params`, `ema` and `opt` (optimiser
state, step, key), so that parameters can be read alone; `data` (the position in the data) and
`config` as JSON; `layout`, the shape of every leaf, so that a mismatch is named before any array is
read; and the checksums of all files.
"""

from collections.abc import Mapping
import errno
import json
import logging
import math
import shutil
import sys
from typing import Any, Literal, Self

import jax
from orbax import checkpoint as ocp

from looped_lm.errors import UserError
from looped_lm.train import checksums, stored
from looped_lm.types import Params, State

# which -> (item, wants the best step)
_WHICH = {
  "params": ("params", False),
  "ema": ("ema", False),
  "best": ("params", True),
  "best_ema": ("ema", True),
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_WORDS = ("No space left", "ENOSPC", "Disk quota exceeded", "File too large")


def _told_once(record: logging.LogRecord) -> bool:
  """Drops the traces that Orbax's threads log of errors which Orbax then raises to the caller."""
  return record.levelno < logging.ERROR or "orbax" not in record.pathname


def _not_of_a_full_disk(record: logging.LogRecord) -> bool:
  """Drops what asyncio logs of writes that failed beside the one whose error was raised."""
  error = record.exc_info[1] if record.exc_info else None
  return "never retrieved" not in record.getMessage() or not _is_full(error)


def _quiet() -> None:
  """Keeps a write that fails to the one error that is raised; all that belongs to it is dropped."""
  logging.getLogger("absl").addFilter(_told_once)
  logging.getLogger("asyncio").addFilter(_not_of_a_full_disk)
  told = sys.unraisablehook

  def unless_late(unraisable: Any) -> None:
    # TensorStore's threads, once for each write that ends when nobody waits for it any more.
    if str(unraisable.exc_value) != "Event loop is closed":
      told(unraisable)

  if getattr(told, "__name__", "") != unless_late.__name__:
    sys.unraisablehook = unless_late


class Checkpoints:
  """The checkpoints of one run.

  Use as a context manager: leaving it waits for the checkpoint being written. A process that ends
  without that loses it, and says nothing.

  Example:
    with Checkpoints(f"{workdir}/checkpoints", keep_latest=2, config=config) as checkpoints:
      state, data = checkpoints.restore(state)
      checkpoints.save(state, data={"next_step": 100}, metrics={"eval/clm/loss_nats": 3.2})
  """

  def __init__(
    self,
    directory: str,
    *,
    keep_latest: int,
    best_metric: str | None = None,
    best_mode: Literal["min", "max"] = "min",
    config: Mapping[str, Any],
  ) -> None:
    """Opens or creates the folder.

    Args:
      directory: The folder of checkpoints, WORKDIR/checkpoints; may be gs://.
      keep_latest: How many of the latest to keep; at least 1.
      best_metric: The best by this metric is kept as well; None keeps the latest only.
      best_mode: Whether the lowest or the highest of `best_metric` is best.
      config: The run's configuration, saved with every checkpoint.

    Raises:
      UserError: `keep_latest` is below 1, or the folder cannot be created.
    """
    if keep_latest < 1:
      raise UserError(f"train.keep_latest={keep_latest} must be at least 1.")
    if best_mode not in ("min", "max"):
      raise UserError(f"best_mode={best_mode!r} must be 'min' or 'max'.")
    _quiet()
    self._directory = stored.absolute(directory)
    self._best_metric = best_metric
    self._best_mode = best_mode
    self._config = json.loads(json.dumps(config))
    self._steps: set[int] = set()
    self._saving: int | None = None
    try:
      self._manager = stored.open_folder(
        self._directory,
        keep_latest=keep_latest,
        keep_best=best_metric is not None,
        written=self._sum_up,
      )
    except OSError as error:
      raise UserError(
        f"{self._directory} cannot hold checkpoints ({error.strerror or error}); "
        "give another --workdir."
      ) from error
    self._steps.update(self._manager.all_steps())

  def __enter__(self) -> Self:
    return self

  def __exit__(self, exc_type: object, exc: BaseException | None, tb: object) -> None:
    if exc is None:
      self.close()
      return
    if jax.process_count() > 1:  # To close, the processes wait for each other; one may be gone.
      return
    try:
      self.close()
    except Exception as error:  # The first error is the one to tell.
      logging.warning("The checkpoint being written was lost: %s", error)

  def save(
    self,
    state: State,
    *,
    data: Mapping[str, Any],
    metrics: Mapping[str, float] | None = None,
    weights_alone: bool = False,
  ) -> bool:
    """Starts writing a checkpoint and returns while it is written.

    The arrays are copied before this returns; the caller may donate them.

    Args:
      state: What to save; its `step` names the checkpoint.
      data: The position in the data, JSON: `{"next_step": n}`.
      metrics: Figures of this step; `best_metric` among them makes it a candidate for the best.
      weights_alone: Leaves out what only a run that goes on needs.

    Returns:
      False where this step is there already, and nothing was done.

    Raises:
      UserError: The disk is full, here or while the previous checkpoint was written.
    """
    step = int(state.step)
    if step in self._steps:
      return False
    items: dict[str, Any] = {"params": state.params}
    if not weights_alone:
      items["opt"] = stored.optimiser_part(state)
    if state.ema is not None:
      items["ema"] = state.ema
    layout: dict[str, Any] = {name: stored.layout(tree) for name, tree in items.items()}
    layout[stored.SUMMED] = True
    arguments: dict[str, Any] = {k: ocp.args.StandardSave(v) for k, v in items.items()}
    arguments |= {
      "data": ocp.args.JsonSave(dict(data)),
      "config": ocp.args.JsonSave(self._config),
      stored.LAYOUT: ocp.args.JsonSave(layout),
    }
    self.wait()
    self._check_room(step, items)
    self._saving = step
    try:
      # `force`, because a checkpoint older than the latest would otherwise be skipped in silence.
      self._manager.save(
        step,
        args=ocp.args.Composite(**arguments),
        metrics={"score": self._score(metrics or {})},
        force=True,
      )
    except Exception as error:
      self._explain(error)
      raise
    self._steps.add(step)
    return True

  def latest_step(self) -> int | None:
    """Gives the newest complete step, None where there is no checkpoint."""
    return self._manager.latest_step()

  def best_step(self) -> int | None:
    """Gives the step with the best finite `best_metric`, the newer of equals; None without one."""
    return stored.best_step(self._manager)

  def restore(self, like: State, *, step: int | None = None) -> tuple[State, dict[str, Any]]:
    """Reads a checkpoint back.

    Args:
      like: A state of the wanted structure, shapes and shardings: arrays or `ShapeDtypeStruct`s.
        A leaf without a sharding goes to the first device. The number of devices need not be the
        one it was saved on.
      step: Which; None takes the latest.

    Returns:
      The state and what `save` got as `data`.

    Raises:
      UserError: There is none, it is damaged, or a leaf differs (the first is named).
    """
    self.wait()
    return stored.restore(self._manager, self._directory, like, step=step)

  def wait(self) -> None:
    """Waits until the checkpoint being written is complete.

    Raises:
      UserError: The disk is full; earlier checkpoints are whole.
    """
    try:
      self._manager.wait_until_finished()
    except Exception as error:
      self._explain(error)
      raise
    self._saving = None

  def close(self) -> None:
    """Waits, then frees what the manager holds."""
    try:
      self.wait()
    finally:
      try:
        self._manager.close()
      except Exception as error:  # `wait` has told of it.
        logging.debug("Closing the checkpoints: %s", error)

  def _sum_up(self) -> None:
    assert self._saving is not None
    checksums.write(self._directory, self._saving)

  def _score(self, metrics: Mapping[str, float]) -> float | None:
    """Gives the figure checkpoints are ranked by, lower is better; None where there is none."""
    value = metrics.get(self._best_metric) if self._best_metric is not None else None
    if value is None or not math.isfinite(value):
      return None
    return float(value) if self._best_mode == "min" else -float(value)

  def _check_room(self, step: int, items: Mapping[str, Any]) -> None:
    """Raises before anything is written where the disk plainly has no room."""
    if "://" in str(self._directory):
      return
    needed = sum(x.nbytes for x in jax.tree.leaves(items))
    if shutil.disk_usage(self._directory).free < needed:
      raise self._full(step)

  def _explain(self, error: Exception) -> None:
    """Forgets the checkpoint that failed; turns a full disk into a `UserError`."""
    step, self._saving = self._saving, None
    if step is None:
      return
    self._steps.discard(step)
    if _is_full(error):
      raise self._full(step) from error

  def _full(self, step: int) -> UserError:
    good = max(self._steps, default=None)
    last = f"the last good one is step {good}" if good is not None else "there is none before it"
    return UserError(
      f"No room to write checkpoint {step} in {self._directory}; {last}. "
      "Free some space, or lower train.keep_latest, and run the same command again to resume."
    )


def saved_steps(directory: str) -> list[int]:
  """Lists the complete checkpoints of a folder, or of the workdir that holds it; [] without one."""
  path = stored.place(directory)
  if not path.is_dir():
    return []
  with stored.open_folder(path) as manager:
    return sorted(manager.all_steps())


def restore_state(directory: str, like: State, *, step: int | None = None) -> State:
  """Reads a state without opening the folder for writing; see `Checkpoints.restore`."""
  path = stored.existing(directory)
  with stored.open_folder(path) as manager:
    return stored.restore(manager, path, like, step=step)[0]


def restore_params(
  directory: str,
  abstract_params: Params,
  *,
  step: int | None = None,
  which: Literal["params", "ema", "best", "best_ema"] = "params",
) -> Params:
  """Reads parameters alone, e.g. to evaluate or to start another run from them.

  Args:
    directory: A folder of checkpoints, or the workdir that holds it.
    abstract_params: Parameters of the wanted structure, shapes, dtypes and shardings.
    step: Which checkpoint; None takes the latest, or the best where `which` says so.
    which: Raw parameters or their average; `best` and `best_ema` of the best checkpoint.

  Raises:
    UserError: There is no such checkpoint or item, it is damaged, or a leaf differs.
  """
  if which not in _WHICH:
    raise UserError(f"which={which!r} must be one of {sorted(_WHICH)}.")
  item, wants_best = _WHICH[which]
  path = stored.existing(directory)
  with stored.open_folder(path) as manager:
    step = stored.find(manager, path, "best" if wants_best and step is None else step)
    layout, summed = stored.read_layout(manager, path, step)
    if item not in layout:
      raise UserError(
        f"Checkpoint {step} in {path} has no average of the parameters (train.ema_decay was 0); "
        "use the raw weights."
      )
    stored.compare(layout[item], abstract_params, item=item, step=step, directory=path, dtype=False)
    wanted = {item: ocp.args.StandardRestore(stored.abstract(abstract_params))}
    return stored.read(manager, path, step, wanted, summed=summed)[item]


def saved_config(directory: str, *, step: int | None = None) -> dict[str, Any]:
  """Reads the configuration a checkpoint was made with.

  Args:
    directory: A folder of checkpoints, or the workdir that holds it.
    step: Which; None takes the latest.

  Raises:
    UserError: There is no such checkpoint, or it is damaged.
  """
  path = stored.existing(directory)
  with stored.open_folder(path) as manager:
    step = stored.find(manager, path, step)
    return stored.read(manager, path, step, {"config": ocp.args.JsonRestore()})["config"]


def saved_step(directory: str, *, step: int | Literal["best"] | None = None) -> int:
  """Tells which checkpoint `step` is: the latest for None. Arguments and errors: `saved_config`."""
  path = stored.existing(directory)
  with stored.open_folder(path) as manager:
    return stored.find(manager, path, step)


def _is_full(error: BaseException | None) -> bool:
  """True where an error, or one it came from, says that the disk is full."""
  while error is not None:
    if isinstance(error, OSError) and error.errno in _FULL:
      return True
    if any(word in str(error) for word in _FULL_WORDS):
      return True
    error = error.__cause__ or error.__context__
  return False
