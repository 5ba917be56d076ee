"""What a run was: its configuration, and where and with what it was started.

`WORKDIR/config.json` is the resolved configuration, canonical; `WORKDIR/run.json` holds one entry
per start: overrides, changes, seed, git commit, versions, devices, time.
"""

from collections.abc import Mapping, Sequence
import datetime
from importlib import metadata
import json
import pathlib
import platform
import subprocess
from typing import Any

from etils import epath
import jax

from looped_lm.errors import UserError

_PACKAGES = (
  "looped-lm",
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "orbax-checkpoint",
  "grain",
  "numpy",
  "tokenizers",
)
_ABSENT = "(absent)"


def check_same(
  workdir: str,
  config: Mapping[str, Any],
  *,
  allow_change: bool,
  free: Sequence[str] = (),
) -> dict[str, tuple[Any, Any]]:
  """Compares a configuration with the one the workdir was started with.

  Args:
    workdir: The run's folder; a fresh one passes.
    config: The resolved configuration.
    allow_change: What --allow_config_change says.
    free: Groups and dotted fields that may change without it, e.g. "train.log_every_steps".

  Returns:
    The fields that differ: dotted name -> (old, new).

  Raises:
    UserError: A field differs and may not, or the workdir holds no run of ours.
  """
  path = epath.Path(workdir) / "config.json"
  if not path.exists():
    if (path.parent / "checkpoints").is_dir() and any((path.parent / "checkpoints").iterdir()):
      raise UserError(
        f"{workdir} holds checkpoints but no config.json, so nothing tells what they are; "
        "give another --workdir."
      )
    return {}
  changes = differences(_load(path), config)
  kept = {
    name: pair
    for name, pair in changes.items()
    if name not in free and name.split(".")[0] not in free
  }
  if kept and not allow_change:
    listed = "; ".join(f"{name}: {_text(old)} -> {_text(new)}" for name, (old, new) in kept.items())
    raise UserError(
      f"{workdir} was started with another config ({listed}). Give another --workdir, restore "
      "these fields, or go on with the new ones by --allow_config_change."
    )
  return changes


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
  """Lists the fields that differ: dotted name -> (old, new); tuples and lists are the same."""
  was, now = _flat(old), _flat(new)
  names = [*was, *(name for name in now if name not in was)]
  pairs = {name: (was.get(name, _ABSENT), now.get(name, _ABSENT)) for name in names}
  return {name: pair for name, pair in pairs.items() if _text(pair[0]) != _text(pair[1])}


def write(
  workdir: str,
  config: Mapping[str, Any],
  *,
  overrides: Mapping[str, Any],
  changes: Mapping[str, tuple[Any, Any]],
  step: int,
) -> None:
  """Writes config.json and adds this start to run.json.

  Args:
    workdir: The run's folder; created if need be.
    config: The resolved configuration; has `seed`.
    overrides: What the command line changed: dotted name -> value.
    changes: What `check_same` returned.
    step: The step the run goes on from; 0 for a new one.

  Raises:
    UserError: The folder cannot be written, or its run.json cannot be read.
  """
  folder = epath.Path(workdir)
  path = folder / "run.json"
  starts = _load(path)["starts"] if path.exists() else []
  entry = {
    "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    "step": step,
    "seed": config["seed"],
    "overrides": _plain(overrides),
    "config_changes": {name: {"old": old, "new": new} for name, (old, new) in changes.items()},
    "git": git_state(),
    "versions": versions(),
    "devices": devices(),
  }
  try:
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "config.json", canonical(config))
    _replace(path, canonical({"starts": [*starts, entry]}))
  except OSError as error:
    raise UserError(
      f"{workdir} cannot be written ({error.strerror or error}); give another --workdir."
    ) from error


def canonical(tree: Mapping[str, Any]) -> str:
  """Gives JSON that is equal where the values are: keys sorted, tuples as lists."""
  return json.dumps(tree, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def git_state() -> dict[str, Any] | None:
  """Gives the commit this package is checked out at and whether it was changed since.

  None where the package does not lie in a git checkout that tracks it, e.g. once installed.
  """
  folder = pathlib.Path(__file__).resolve().parents[1]
  if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
    return None
  commit = _git(folder, "rev-parse", "HEAD")
  status = _git(folder, "status", "--porcelain", "--untracked-files=no")
  return None if commit is None else {"commit": commit, "dirty": bool(status)}


def versions() -> dict[str, str | None]:
  """Gives the version of everything that numbers may depend on; None where it is absent."""
  found: dict[str, str | None] = {"python": platform.python_version()}
  for name in _PACKAGES:
    try:
      found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      found[name] = None
  return found


def devices() -> dict[str, Any]:
  """Gives the kinds of device, their number and the number of processes."""
  kinds = [device.device_kind for device in jax.devices()]
  return {
    "platform": jax.devices()[0].platform,
    "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
    "processes": jax.process_count(),
  }


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
  return json.loads(json.dumps(tree))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  flat: dict[str, Any] = {}
  for key, value in tree.items():
    if isinstance(value, Mapping) and value:
      flat |= _flat(value, f"{prefix}{key}.")
    else:
      flat[prefix + key] = value
  return flat


def _text(value: Any) -> str:
  return value if value is _ABSENT else json.dumps(value, ensure_ascii=False)


def _load(path: epath.Path) -> dict[str, Any]:
  try:
    return json.loads(path.read_text())
  except ValueError as error:
    raise UserError(f"{path} is not JSON ({error}); restore it or give another --workdir.") from (
      error
    )


def _replace(path: epath.Path, text: str) -> None:
  """Writes a file so that it is never seen half-written."""
  new = path.parent / (path.name + ".new")
  new.write_text(text)
  new.replace(path)


def _git(folder: pathlib.Path, *arguments: str) -> str | None:
  try:
    done = subprocess.run(
      ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
    )
  except (OSError, subprocess.TimeoutExpired):
    return None
  return done.stdout.strip() if done.returncode == 0 else None
