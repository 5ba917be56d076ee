"""The papers of the project say what is there: commands, links, docstrings, versions."""

import ast
from pathlib import Path
import re
import subprocess
import tomllib

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))


def tracked(*patterns: str) -> list[Path]:
  listed = subprocess.run(
    ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
  )
  return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def texts(*patterns: str):
  """Yields (name, line number, line) of the tracked text files."""
  for path in tracked(*patterns):
    try:
      lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
      continue  # Arrays and pictures.
    for number, line in enumerate(lines, start=1):
      yield path.relative_to(ROOT).as_posix(), number, line


def found(pattern: str, *patterns: str) -> list[str]:
  return [
    f"{name}:{number}: {line.strip()}"
    for name, number, line in texts(*patterns)
    if re.search(pattern, line)
  ]


def test_no_file_names_a_path_of_one_machine():
  assert found(r"(?<![\w.~$}])/(?:work|root|home|Users|tmp)/\w") == []


def test_nothing_is_left_to_do():
  assert found(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b", "*.py", "*.md", "*.sh", "Makefile") == []


def test_no_file_is_named_for_nothing():
  nameless = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
  assert [p for p in tracked("*.py") if p.name in nameless] == []


def test_every_make_target_in_the_papers_exists():
  targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
  named = {
    target
    for _, _, line in texts("*.md", ".ci/run")
    for target in re.findall(r"(?:`|^\s*|&& )make ([a-z-]+)", line)
  }
  assert {"quickstart", "test"} <= named
  assert named - targets == set()


def test_every_file_named_in_the_papers_exists():
  pattern = r"(?<![\w/.])((?:configs|docs|launch|colab|tests|looped_lm|benchmarks)/[\w./-]*\w)"
  missing = [
    f"{name}:{number}: {path}"
    for name, number, line in texts("*.md", "Makefile", "*.ipynb")
    for path in re.findall(pattern, line)
    # Placeholders (NAME, foo) and folders that a command makes are no promises.
    if not re.search(r"NAME|foo", path) and not (ROOT / path).exists()
  ]
  assert missing == []


def test_every_relative_link_leads_somewhere():
  missing = [
    f"{path.relative_to(ROOT)}: {link}"
    for path in tracked("*.md")
    for link in re.findall(r"\]\(([^)#\s]+)", path.read_text())
    if "://" not in link and not (path.parent / link).exists()
  ]
  assert missing == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_tells_its_story_and_its_command(path):
  tree = ast.parse(path.read_text())
  story = ast.get_docstring(tree) or ""
  assert len(story.splitlines()) >= 3, "what it shows, command, hardware, time, result"
  assert f"configs/{path.name}" in story or f"make {path.stem}" in story, "the command"
  assert "get_config" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_there_are_configs():
  names = {path.stem for path in CONFIGS}
  assert {"quickstart", "looped_gpt_bert", "looped_gpt_bert_paper", "gpt_bert"} <= names


def test_the_changelog_opens_with_what_is_not_released_and_names_changed_numbers():
  headings = re.findall(r"^#+ .*", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
  assert headings[:2] == ["# Changelog", "## Unreleased"]
  assert "### Numerics" in headings


def test_one_version_everywhere():
  version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
  assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize(
  "script", [".ci/run", "launch/local.sh", "launch/push_checkpoints.sh", "launch/tpu_vm.sh"]
)
def test_scripts_can_be_run(script):
  assert (ROOT / script).stat().st_mode & 0o111
