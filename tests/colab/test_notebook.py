"""The notebook runs from its first cell to its last, and only tells."""

import ast
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "colab").glob("*.ipynb"))


def code_of(notebook) -> str:
  """The notebook's Python, without the lines that are shell commands."""
  cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
  return "\n".join(line for cell in cells for line in cell.splitlines() if line[:1] not in "!%")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
  read = nbformat.read(request.param, as_version=4)
  nbformat.validate(read)
  return read


def test_it_defines_nothing_and_is_stored_without_results(notebook):
  tree = ast.parse(code_of(notebook))
  defined = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
  assert defined == []
  assert all(not cell.get("outputs") for cell in notebook.cells)
  assert all(cell.get("execution_count") is None for cell in notebook.cells)


@pytest.mark.nightly
@pytest.mark.notebook
def test_it_runs_headless_and_shows_its_plots(notebook, tmp_path, monkeypatch):
  monkeypatch.setenv("LOOPED_LM_WORKDIR", str(tmp_path / "run"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
  client = nbclient.NotebookClient(
    notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": ROOT / "colab"}}
  )
  client.execute()
  outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
  assert "installed: nothing" in outputs[0]["text"]
  said = "".join(output.get("text", "") for output in outputs)
  loops = [line for line in said.splitlines() if line.startswith("loop ")]
  assert len(loops) >= 2
  assert all(len(line.split("'")) > 10 for line in loops), "five guesses after every loop"
  pictures = [output for output in outputs if "image/png" in output.get("data", {})]
  assert len(pictures) >= 3
