"""Folders that are complete or absent: built beside, checked by a manifest, renamed into place.

A folder with a `manifest.json` is complete: it appears by one rename, after everything in it was
written. The manifest holds the size and sha256 of every file. A folder may also lie in a bucket
(`gs://…`): it is built here, copied there, the manifest last, and read from a copy here.
"""

from collections.abc import Callable, Iterator
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import socket
import tempfile
import time
from typing import Any

from etils import epath

from looped_lm.errors import UserError

MANIFEST = "manifest.json"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 1.0


def sha256(path: str | os.PathLike[str]) -> str:
  """Hashes a file's content; the path may be a bucket's."""
  digest = hashlib.sha256()
  with epath.Path(path).open("rb") as file:
    while chunk := file.read(_CHUNK_BYTES):
      digest.update(chunk)
  return digest.hexdigest()


def is_complete(folder: epath.PathLike) -> bool:
  """True if the folder was built to its end."""
  return (epath.Path(folder) / MANIFEST).exists()


def build_once(
  folder: pathlib.Path,
  build: Callable[[pathlib.Path], dict[str, Any]],
  *,
  progress: Callable[[str], None],
) -> None:
  """Makes a folder complete, unless it is.

  Several builders may come at once: one builds, the others wait and find its result.

  Args:
    folder: Where the result lies.
    build: Fills an empty folder and returns what the manifest shall say beside the files.
    progress: Told if another process is building.

  Raises:
    UserError: The place cannot be written, the disk is full, or something else lies there. Nothing
      of the attempt is left.
  """
  if is_complete(folder):
    return
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder, progress) as locked:
      if is_complete(folder):
        return
      if locked:
        _remove_leftovers(folder)
      _build(folder, build)
  except OSError as error:
    if error.errno in _DISK_FULL:
      raise UserError(
        f"{folder.parent}: the disk is full; nothing was kept. Free space there, or set "
        "data.prepared_dir to a folder on another disk."
      ) from error
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
      raise UserError(
        f"{folder.parent} cannot be written ({error.strerror}); set data.prepared_dir to a folder "
        "that can."
      ) from error
    raise


def _build(folder: pathlib.Path, build: Callable[[pathlib.Path], dict[str, Any]]) -> None:
  temporary = pathlib.Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder.parent))
  try:
    facts = build(temporary)
    _write_manifest(temporary, facts)
    temporary.chmod(0o755)  # mkdtemp lets nobody else read it.
    try:
      temporary.rename(folder)
    except OSError:
      if is_complete(folder):  # A builder on a machine that our lock does not reach was first.
        return
      if folder.exists():
        raise UserError(
          f"{folder} exists but holds no {MANIFEST}, so it is not prepared data; remove it, or set "
          "data.prepared_dir to another folder."
        ) from None
      raise
  finally:
    shutil.rmtree(temporary, ignore_errors=True)  # Gone already where it was renamed.


def _prefix(folder: pathlib.Path) -> str:
  return f".{folder.name}.{socket.gethostname()}."


def _remove_leftovers(folder: pathlib.Path) -> None:
  """Removes what killed builders of this machine left; we hold the lock, so none is alive."""
  for path in folder.parent.glob(f"{_prefix(folder)}*"):
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _lock(folder: pathlib.Path, progress: Callable[[str], None]) -> Iterator[bool]:
  """Waits until no other process builds the folder; the system unlocks for a killed one.

  Yields:
    False where the file system knows no locks; the rename still keeps the result whole.
  """
  with open(folder.parent / f".{folder.name}-lock", "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      progress(f"Another process is preparing {folder}; waiting for it.")
      fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
      if error.errno not in _NO_LOCKS:
        raise
      yield False
      return
    yield True


def wait_for(folder: epath.PathLike, *, seconds: float, progress: Callable[[str], None]) -> None:
  """Waits until another process has completed a folder.

  Raises:
    UserError: It has not, in so many seconds.
  """
  if is_complete(folder):
    return
  progress(f"Waiting for process 0 to prepare {folder}.")
  end = time.monotonic() + seconds
  while not is_complete(folder):
    if time.monotonic() > end:
      raise UserError(
        f"{folder} was not prepared within {seconds:g} s. Process 0 prepares it: see its log, and "
        "set data.prepared_dir to a folder (or gs:// path) that all processes share."
      )
    time.sleep(min(_POLL_SECONDS, seconds))


# ---- Manifests


def _write_manifest(folder: pathlib.Path, facts: dict[str, Any]) -> None:
  files = {}
  for path in sorted(folder.rglob("*")):
    name = path.relative_to(folder).as_posix()
    if path.is_file() and name != MANIFEST:
      files[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
  text = json.dumps(facts | {"files": files}, indent=2, ensure_ascii=False)
  (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: epath.PathLike, *, verify: bool) -> dict[str, Any]:
  """Reads a folder's manifest and checks its files against it.

  Args:
    folder: A complete folder.
    verify: Compare checksums, which reads everything; sizes are always compared.

  Raises:
    UserError: There is no manifest, it cannot be read, or a file is missing or damaged; names it.
  """
  folder = epath.Path(folder)
  remedy = "Remove the folder and prepare the data again (--mode=prepare)."
  if not is_complete(folder):
    raise UserError(
      f"{folder} holds no {MANIFEST}, so it is not prepared data. Prepare it with --mode=prepare."
    )
  try:
    manifest = json.loads((folder / MANIFEST).read_text())
    files = manifest["files"]
  except (ValueError, KeyError, TypeError):
    raise UserError(f"{folder / MANIFEST} is damaged. {remedy}") from None
  for name, wanted in files.items():
    path = folder / name
    if not path.exists():
      raise UserError(f"{path} is missing. {remedy}")
    size = path.stat().length
    if size != wanted["bytes"]:
      raise UserError(f"{path} has {size} bytes where {wanted['bytes']} were written. {remedy}")
    if verify and sha256(path) != wanted["sha256"]:
      raise UserError(f"{path} is damaged: its checksum is not that of what was written. {remedy}")
  return manifest


# ---- Buckets


def copy(source: epath.PathLike, target: epath.PathLike, *, manifest: dict[str, Any]) -> None:
  """Copies a complete folder's files, the manifest last, so that a part is never taken for all."""
  source, target = epath.Path(source), epath.Path(target)
  for name in (*manifest["files"], MANIFEST):
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with (source / name).open("rb") as reader, path.open("wb") as writer:
      shutil.copyfileobj(reader, writer, _CHUNK_BYTES)
