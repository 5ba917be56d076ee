"""What evaluators show besides figures, on disk: `WORKDIR/diagnostics/<evaluator>.npz`.

Plain arrays, texts among them; `numpy.load` reads them without pickle.
"""

from collections.abc import Mapping
import io

from etils import epath
import numpy as np

_FOLDER = "diagnostics"
Views = Mapping[str, Mapping[str, np.ndarray]]


def write(workdir: str, views: Views) -> None:
  """Writes a file per evaluator, over those of an earlier time."""
  folder = epath.Path(workdir) / _FOLDER
  for name, arrays in views.items():
    folder.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    (folder / f"{name}.npz").write_bytes(file.getvalue())


def read(workdir: str) -> dict[str, dict[str, np.ndarray]]:
  """Reads all that was written: evaluator -> name -> array."""
  folder = epath.Path(workdir) / _FOLDER
  found = {}
  for path in sorted(folder.glob("*.npz")) if folder.exists() else ():
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
      found[path.stem] = dict(file)
  return found
