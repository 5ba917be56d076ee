"""How the step runs on devices: the only folder that knows them.

A strategy creates or places the state, splits batches, compiles functions of both, says how the
arrays of generated text lie, and gives the state back in the form that checkpoints keep, which is
the same for all strategies: a run may go on under another one, on another number of devices or
processes. No strategy adds a device axis to the state.
"""

from collections.abc import Mapping
import os
import pathlib
import stat
from typing import Any

import jax

from looped_lm.errors import UserError
from looped_lm.train.parallel import hosts
from looped_lm.train.parallel.mesh import MeshStrategy
from looped_lm.train.parallel.pmap import Pmap

Strategy = Pmap | MeshStrategy
STRATEGIES = ("mesh", "pmap")
_FIELDS = ("strategy", "fsdp", "tensor", "lost_process_seconds")


def make(settings: Mapping[str, Any]) -> Strategy:
  """Builds the strategy of the config's `parallel` group.

  Raises:
    UserError: There is no such strategy or setting, or the sizes do not fit the devices.
  """
  for name in settings:
    if name not in _FIELDS:
      raise UserError(f"parallel.{name} is not a setting; parallel has {list(_FIELDS)}.")
  name, fsdp, tensor = settings["strategy"], settings["fsdp"], settings["tensor"]
  if name not in STRATEGIES:
    raise UserError(f"parallel.strategy={name!r} is none of {list(STRATEGIES)}.")
  hosts.check_patience(settings["lost_process_seconds"])
  if name == "mesh":
    return MeshStrategy(fsdp=fsdp, tensor=tensor)
  if (fsdp, tensor) != (1, 1):
    raise UserError(
      f"parallel.fsdp={fsdp} and parallel.tensor={tensor} need parallel.strategy='mesh'; pmap "
      "keeps the whole state on every device, and both must be 1."
    )
  return Pmap()


def cache_programs(folder: pathlib.Path) -> None:
  """Keeps compiled programs for later runs, unless JAX was told where to keep them.

  Args:
    folder: Closed to everybody but its owner, whether it is new or not: a cached program is code
      that is run.

  Raises:
    UserError: It belongs to another user, or cannot be created or closed.
  """
  if jax.config.values["jax_compilation_cache_dir"] is not None:
    return
  other = "set JAX_COMPILATION_CACHE_DIR to a folder that is yours alone"
  try:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
      raise UserError(
        f"{folder} holds compiled programs, which are run, but belongs to user {found.st_uid}, not "
        f"to you; {other}."
      )
    if stat.S_IMODE(found.st_mode) != 0o700:
      folder.chmod(0o700)
  except OSError as error:
    raise UserError(
      f"{folder} cannot keep compiled programs ({error.strerror or error}); {other}."
    ) from error
  jax.config.update("jax_compilation_cache_dir", str(folder))
