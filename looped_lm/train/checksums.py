"""The size and checksum of every file of a checkpoint, so that damage is named and never read.

`STEP/checksums.json` is written when all other files are and before the folder gets its name: a
complete checkpoint has it. Files are summed as they lie on the disk, whoever wrote them: one
process, or each of many its part. A checkpoint of an earlier version has none and is read as it is.

CRC-32 finds every run of wrong bits up to 32 long, and misses other damage once in 2³² times. It
guards against disks, copies and memory, not against an attacker.
"""

from collections.abc import Collection, Iterator
from concurrent import futures
import json
import zlib

from etils import epath
import jax

NAME = "checksums.json"
_TEMPORARY = ".orbax-checkpoint-tmp"
_CHUNK_BYTES = 1 << 22
_THREADS = 8
# Of several processes each checks its share of the large files, and all check the small ones.
_SMALL_BYTES = 1 << 20


def write(directory: epath.Path, step: int) -> None:
  """Sums up a checkpoint whose files are complete, but whose folder has perhaps no name yet.

  Args:
    directory: The folder of checkpoints.
    step: Which.

  Raises:
    OSError: It cannot be read or written, e.g. because the disk is full.
  """
  unnamed = sorted(directory.glob(f"{step}{_TEMPORARY}*"))
  folder = unnamed[-1] if unnamed else directory / str(step)  # A bucket renames nothing.
  # Files beside the items are not ours: one is still to be changed when the folder gets its name.
  names = [name for name in _files(folder) if "/" in name]
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    sums = pool.map(lambda name: _sum(folder / name), names)
  files = {name: list(pair) for name, pair in zip(names, sums, strict=True)}
  (folder / NAME).write_text(json.dumps({"crc32": files}, indent=1) + "\n")


def problem(folder: epath.Path, items: Collection[str], *, required: bool) -> str | None:
  """Says what is wrong with the files of a checkpoint's items.

  Args:
    folder: Of the checkpoint.
    items: Those that will be read.
    required: Whether the sums must be there.

  Returns:
    The first damaged file and its damage; None where all is well, or there are no sums.
  """
  if not (folder / NAME).exists():
    return f"{NAME} is missing" if required else None
  try:
    files = json.loads((folder / NAME).read_text())["crc32"]
    wanted = {n: (int(s), int(c)) for n, (s, c) in files.items() if n.split("/")[0] in items}
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    return f"{NAME} cannot be read: {error}"
  large = [name for name in sorted(wanted) if wanted[name][0] >= _SMALL_BYTES]
  others = set(large) - set(large[jax.process_index() :: jax.process_count()])
  mine = [name for name in sorted(wanted) if name not in others]
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    found = pool.map(lambda name: _difference(folder / name, name, *wanted[name]), mine)
  return next((text for text in found if text is not None), None)


def _difference(path: epath.Path, name: str, size: int, crc: int) -> str | None:
  try:
    if not path.exists():
      return f"{name} is missing"
    length = path.stat().length
    if length != size:
      return f"{name} has {length} bytes where {size} were written"
    if _sum(path)[1] != crc:
      return f"the checksum of {name} is not that of what was written"
  except OSError as error:
    return f"{name} cannot be read: {error}"
  return None


def _sum(path: epath.Path) -> tuple[int, int]:
  """Size and CRC-32."""
  size = crc = 0
  with path.open("rb") as file:
    while chunk := file.read(_CHUNK_BYTES):
      size += len(chunk)
      crc = zlib.crc32(chunk, crc)
  return size, crc


def _files(folder: epath.Path, prefix: str = "") -> Iterator[str]:
  """All files below a folder, as paths in it."""
  for child in sorted(folder.iterdir(), key=lambda child: child.name):
    if child.is_dir():
      yield from _files(child, f"{prefix}{child.name}/")
    else:
      yield prefix + child.name
