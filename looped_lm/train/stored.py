"""What lies in a folder of checkpoints: finding, comparing and reading it.

Every leaf is compared with the layout that was saved, so that a mismatch is named before any array
is read.
"""

from collections.abc import Callable, Mapping
import json
import math
from typing import Any, Literal

from etils import epath
import jax
import numpy as np
from orbax import checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from looped_lm.errors import UserError
from looped_lm.train import checksums
from looped_lm.types import State

_ITEMS = ("params", "ema", "opt")
_SCORE = "metrics/metrics"  # Where Orbax keeps it.
LAYOUT = "layout"
SUMMED = "has_checksums"  # In the layout beside the items; not there in earlier versions.


def absolute(directory: str) -> epath.Path:
  """The path without `~` and dots; a bucket's as it is."""
  path = epath.Path(directory)
  return path if "://" in str(directory) else path.expanduser().resolve()


def restore(
  manager: ocp.CheckpointManager, directory: epath.Path, like: State, *, step: int | None
) -> tuple[State, dict[str, Any]]:
  """Reads a state and its `data`; see `checkpoint.Checkpoints.restore`."""
  step = find(manager, directory, step)
  items = {"params": like.params, "opt": optimiser_part(like)}
  if like.ema is not None:
    items["ema"] = like.ema
  layout, summed = read_layout(manager, directory, step)
  if "opt" not in layout:
    raise UserError(
      f"Checkpoint {step} in {directory} holds weights alone: it can be exported, and no run can "
      "go on from it."
    )
  if ("ema" in layout) != (like.ema is not None):
    has, wants = ("an", "none") if "ema" in layout else ("no", "one")
    raise UserError(
      f"Checkpoint {step} in {directory} has {has} average of the parameters and the run "
      f"wants {wants}; restore train.ema_decay, or start in another --workdir."
    )
  for name, tree in items.items():
    compare(layout[name], tree, item=name, step=step, directory=directory, dtype=True)
  wanted: dict[str, Any] = {k: ocp.args.StandardRestore(abstract(v)) for k, v in items.items()}
  wanted["data"] = ocp.args.JsonRestore()
  got = read(manager, directory, step, wanted, summed=summed)
  state = State(
    step=got["opt"]["step"],
    params=got["params"],
    ema=got["ema"] if like.ema is not None else None,
    opt_state=got["opt"]["opt_state"],
    key=got["opt"]["key"],
  )
  return state, got["data"]


def place(directory: str) -> epath.Path:
  """Finds the folder of checkpoints, given itself or its workdir."""
  path = absolute(directory)
  return path / "checkpoints" if (path / "checkpoints").is_dir() else path


def existing(directory: str) -> epath.Path:
  """The same, which must be there."""
  path = place(directory)
  if not path.is_dir():
    raise UserError(f"{path} does not exist; give a workdir that holds checkpoints.")
  return path


def open_folder(
  path: epath.Path,
  *,
  keep_latest: int | None = None,
  keep_best: bool = False,
  written: Callable[[], None] | None = None,
) -> ocp.CheckpointManager:
  """Opens a folder: to write, or where `keep_latest` is None to read, changing nothing.

  `written` is called in the background, by process 0, when all files of a checkpoint are written
  and before it counts as complete.

  Raises:
    UserError: A score in it is damaged, or it cannot be read.
  """
  if path.is_dir():
    _check_scores(path)
  if keep_latest is None:
    options = ocp.CheckpointManagerOptions(create=False, best_fn=_rank)
    return _opened(path, options)
  keep: list[Any] = [policies.LatestN(keep_latest)]
  if keep_best:
    keep.append(policies.BestN(get_metric_fn=_rank, reverse=True, n=1))
  options = ocp.CheckpointManagerOptions(
    preservation_policy=policies.AnyPreservationPolicy(keep),
    best_fn=_rank,  # Metrics are dropped in silence unless it is set.
    best_mode="min",
    cleanup_tmp_directories=True,
    async_options=ocp.options.AsyncOptions(post_finalization_callback=written),
  )
  return _opened(path, options)


def _opened(path: epath.Path, options: ocp.CheckpointManagerOptions) -> ocp.CheckpointManager:
  try:
    return ocp.CheckpointManager(path, options=options)
  except OSError:  # Of a folder that cannot be made; whoever asked for it says so.
    raise
  except Exception as error:  # What lies there is not what Orbax leaves.
    why = " ".join(str(error).split())[:200]
    raise UserError(
      f"{path} cannot be read ({why}); move away what is no checkpoint, or give another --workdir."
    ) from error


def _check_scores(path: epath.Path) -> None:
  """Raises where a score is not what was written: another checkpoint would pass for the best."""
  for step in _steps_in(path):
    folder = path / str(step)
    file = folder / _SCORE
    if not file.exists():  # It has none, or is being removed by a run.
      continue
    why = checksums.problem(folder, (_SCORE.split("/")[0],), required=False)
    try:
      if why is None:
        float(_rank(json.loads(file.read_text())))
        continue
    except (OSError, ValueError, TypeError, AttributeError) as error:
      why = f"{_SCORE} cannot be read: {' '.join(str(error).split())[:200]}"
    raise UserError(f"Checkpoint {step} in {path} is damaged ({why}); move {folder} away to go on.")


def _rank(metrics: Any) -> float:
  """Orders checkpoints: the lowest is best, and one without a score comes last."""
  score = (metrics or {}).get("score")
  return math.inf if score is None else score


def best_step(manager: ocp.CheckpointManager) -> int | None:
  """Gives the step with the best finite score, the newer of equals; None without one."""
  ranked = [(_rank(manager.metrics(step)), -step) for step in manager.all_steps()]
  ranked = [entry for entry in ranked if math.isfinite(entry[0])]
  return -min(ranked)[1] if ranked else None


def find(
  manager: ocp.CheckpointManager, path: epath.Path, step: int | Literal["best"] | None
) -> int:
  """Gives the step, the latest for None; raises a `UserError` where it is not there."""
  steps = sorted(manager.all_steps())
  if not steps:
    raise UserError(f"{path} holds no complete checkpoint; train first, or give another workdir.")
  if step is None:
    return steps[-1]
  if step == "best":
    best = best_step(manager)
    if best is None:
      raise UserError(
        f"No checkpoint in {path} has a finite score to be the best by; use the latest instead."
      )
    return best
  if step not in steps:
    raise UserError(f"{path} has no checkpoint of step {step}; it has {steps}.")
  return step


def _damaged(path: epath.Path, step: int, why: str) -> UserError:
  """Names the checkpoint that cannot be read and the newest whole one to go back to."""
  steps = _steps_in(path)
  earlier = sorted((s for s in steps if s < step), reverse=True)
  good = next((s for s in earlier if _is_whole(path / str(s))), None)
  if good is None:
    advice = "there is no earlier one, so start again in another --workdir"
  else:
    later = [str(path / str(s)) for s in steps if s > good]
    advice = f"move {' and '.join(later)} away to go on from step {good}"
  why = " ".join(why.split())[:200]
  return UserError(f"Checkpoint {step} in {path} is damaged or not ours ({why}); {advice}.")


def _steps_in(path: epath.Path) -> list[int]:
  """The steps that have a folder, in order; it says nothing of what is in them."""
  names = [child.name for child in path.iterdir() if child.is_dir()]
  return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))


def _is_whole(folder: epath.Path) -> bool:
  items = [name for name in (*_ITEMS, "data", "config", LAYOUT) if (folder / name).is_dir()]
  return LAYOUT in items and checksums.problem(folder, items, required=False) is None


def read(
  manager: ocp.CheckpointManager,
  path: epath.Path,
  step: int,
  wanted: Mapping[str, Any],
  *,
  summed: bool = False,
) -> dict[str, Any]:
  """Reads items; whatever goes wrong is told as damage, with the step to go back to.

  Args:
    manager: Of the folder.
    path: The folder.
    step: Which checkpoint.
    wanted: Item -> how to restore it.
    summed: Whether the checkpoint is known to have checksums; where it has, they are compared.
  """
  why = checksums.problem(path / str(step), wanted, required=summed)
  if why is not None:
    raise _damaged(path, step, why)
  try:
    return dict(manager.restore(step, args=ocp.args.Composite(**wanted)).items())
  except Exception as error:  # Each storage layer has its own errors.
    raise _damaged(path, step, f"{type(error).__name__}: {error}") from error


def read_layout(
  manager: ocp.CheckpointManager, path: epath.Path, step: int
) -> tuple[dict[str, dict[str, Any]], bool]:
  """Reads the shape of every leaf: item -> path -> [shape, dtype]; and whether there are sums."""
  layout = read(manager, path, step, {LAYOUT: ocp.args.JsonRestore()})[LAYOUT]
  summed = isinstance(layout, dict) and layout.pop(SUMMED, False)
  if not isinstance(layout, dict) or not {"params"} <= layout.keys() <= set(_ITEMS):
    raise _damaged(path, step, "its layout is not a list of leaves")
  return layout, summed


def optimiser_part(state: State) -> dict[str, Any]:
  """What the item `opt` holds."""
  return {"opt_state": state.opt_state, "step": state.step, "key": state.key}


def abstract(tree: Any) -> Any:
  """Says of each leaf what to read and where to put it."""

  def leaf(x: Any) -> jax.ShapeDtypeStruct:
    where = getattr(x, "sharding", None)
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if where is None else where
    return jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=where)

  return jax.tree.map(leaf, tree)


def layout(tree: Any) -> dict[str, list[Any]]:
  """Lists the leaves of a tree: path -> [shape, dtype]."""
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  return {jax.tree_util.keystr(p): [list(np.shape(x)), str(x.dtype)] for p, x in leaves}


def compare(
  saved: Mapping[str, Any],
  tree: Any,
  *,
  item: str,
  step: int,
  directory: epath.Path,
  dtype: bool,
) -> None:
  """Raises a `UserError` that names the first leaf that differs."""
  wanted = layout(tree)
  advice = "It belongs to another model or optimiser: restore the config it was made with."
  for name in [*wanted, *(key for key in saved if key not in wanted)]:
    ours, theirs = wanted.get(name), saved.get(name)
    if not dtype:
      ours, theirs = ours and ours[:1], theirs and theirs[:1]
    if ours != theirs:
      raise UserError(
        f"Checkpoint {step} in {directory} has {_show(theirs)} at {item}{name}, "
        f"and the config asks for {_show(ours)}. {advice}"
      )


def _show(leaf: list[Any] | None) -> str:
  return "nothing" if leaf is None else " ".join(str(part) for part in leaf)
