"""Which library may be imported where: what the import contract in pyproject.toml cannot say.

The contract knows packages; this knows submodules (flax.linen), carried code and plug-ins.
"""

import ast
from pathlib import Path
import subprocess
import sys

import pytest

from looped_lm import plugins

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "looped_lm"

# Library -> the only places of the package that may import it.
PLACES = {
  "flax.linen": ("attention", "blocks", "injection", "models", "nn"),
  "grain": ("data",),
  "tensorflow_datasets": ("data",),
  "absl": ("main",),
  "ml_collections": ("main",),
  "torch": (),
  "transformers": (),
}
# PyTorch code that exported folders carry: data to us.
CARRIED = PACKAGE / "export" / "hf"


def imports(tree: ast.AST):
  """Yields (module, line) for every import of a file, inside functions too."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      # `from flax import linen` is an import of flax.linen, too.
      names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
      continue
    for name in names:
      yield name, node.lineno


def misplaced(source: str, place: str) -> list[str]:
  """Lists the imports of a file that its place (folder, or file at the top) may not have."""
  wrong = []
  for name, line in imports(ast.parse(source)):
    for library, places in PLACES.items():
      if name != library and not name.startswith(f"{library}."):
        continue
      if place not in places:
        wrong.append(f"line {line}: {library} belongs in {', '.join(places) or 'no module'}")
    for sibling in plugins.names(place) if place in plugins.ROLES else ():
      if f"{name}.".startswith(f"looped_lm.{place}.{sibling}."):
        wrong.append(f"line {line}: plug-ins do not know each other, yet it imports {sibling}")
  return wrong


def test_every_file_imports_only_what_its_place_allows():
  wrong = []
  for path in sorted(PACKAGE.rglob("*.py")):
    if path.parent == CARRIED:
      continue
    place = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    wrong += [f"{path.relative_to(ROOT)} {line}" for line in misplaced(path.read_text(), place)]
  assert wrong == []


def test_carried_code_imports_torch_transformers_and_itself_alone():
  tops = set()
  for path in sorted(CARRIED.glob("*.py")):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Import):
        tops |= {alias.name.split(".")[0] for alias in node.names}
      elif isinstance(node, ast.ImportFrom):
        name = str(node.module).split(".")[0]
        tops.add(f".{name}" if node.level else name)
  own = {f".{path.stem}" for path in CARRIED.glob("*.py")}
  assert {"torch", "transformers"} <= tops
  assert tops - own <= {"torch", "transformers", *sys.stdlib_module_names}


@pytest.mark.parametrize(
  ("place", "source", "found"),
  [
    ("train", "import flax.linen as nn", "line 1: flax.linen belongs in"),
    ("train", "from flax import linen as nn", "line 1: flax.linen belongs in"),
    ("train", "from flax import struct", ""),
    ("nn", "import flax.linen as nn", ""),
    ("train", "def f():\n  import grain", "line 2: grain belongs in data"),
    ("train", "import grain_of_salt", ""),
    ("init", "import torch", "line 1: torch belongs in no module"),
    (
      "export",
      "def f():\n  from transformers import AutoModel",
      "transformers belongs in no module",
    ),
    ("blocks", "from looped_lm.blocks.gpt_bert import Block", "plug-ins do not know each other"),
    ("blocks", "from looped_lm.nn import norms", ""),
    ("optim", "from looped_lm.optim import lamb", "plug-ins do not know each other"),
    ("optim", "from looped_lm.optim import schedules", ""),
  ],
)
def test_a_misplaced_import_is_found(place, source, found):
  wrong = misplaced(source, place)
  assert found in "".join(wrong)
  assert bool(wrong) == bool(found)


def test_the_program_imports_without_the_optional_libraries():
  absent = ["torch", "transformers", "safetensors", "matplotlib", "pytest"]
  program = f"""
import sys
for name in {absent}:
  sys.modules[name] = None
import looped_lm.main
"""
  done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
