"""No file that the program reads can run code, and nobody else can write what it runs."""

import ast
import os
import pathlib
import stat

import jax
import numpy as np
import pytest

import looped_lm
from looped_lm import jobs
from looped_lm.data.rows import Rows
from looped_lm.errors import UserError
from looped_lm.train import parallel, views

PROGRAM = pathlib.Path(looped_lm.__file__).parent
PICKLES = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
RUNNERS = {"eval", "exec", "os.popen", "os.system", "subprocess.getoutput"}
ARGUMENTS = {"allow_pickle", "filter", "shell", "weights_only"}
TABLES = ("tokens", "start_P", "length_P", "first_N", "words_N")
# It reads torch files with an unpickler of its own, which tests/test_tensor_files.py attacks.
MAY_IMPORT = {"tensor_files.py": ["import of pickle"]}


def dangers(source):
  """What in some code may run what a file or a text says."""
  return [danger for node in ast.walk(ast.parse(source)) for danger in _dangers(node)]


def _dangers(node):
  match node:
    case ast.Import(names=names):
      yield from (f"import of {n.name}" for n in names if n.name.split(".")[0] in PICKLES)
    case ast.ImportFrom(module=str(module), names=names):
      if module.split(".")[0] in PICKLES:
        yield f"import of {module}"
      yield from (n.name for n in names if f"{module}.{n.name}" in RUNNERS)
    case ast.ClassDef(bases=bases, body=body) if "pickle.Unpickler" in map(ast.unparse, bases):
      if "find_class" not in [getattr(part, "name", "") for part in body]:
        yield "an unpickler that finds any class"
    case ast.Call(func=func, args=args, keywords=keywords):
      yield from _dangers_of_call(
        ast.unparse(func),
        len(args),
        {k.arg: ast.unparse(k.value) for k in keywords if k.arg in ARGUMENTS},
      )


def _dangers_of_call(name, num_args, named):
  if name in RUNNERS or name.split(".")[0] in PICKLES:
    yield name
  if named.get("shell", "False") != "False":
    yield "shell"
  # numpy's own default is False; the third argument of `np.load` is the same one.
  if named.get("allow_pickle", "False") != "False" or (name == "np.load" and num_args > 2):
    yield "allow_pickle"
  if name == "torch.load" and named.get("weights_only") != "True":
    yield name
  last = name.split(".")[-1]
  if last in ("extractall", "unpack_archive") and named.get("filter") != "'data'":
    yield last


@pytest.mark.parametrize(
  "snippet",
  [
    "import pickle",
    "import numpy, dill as d",
    "from joblib import load",
    "from marshal import loads",
    "pickle.load(file)",
    "pickle.Unpickler(file).load()",
    "class Mine(pickle.Unpickler): pass",
    "eval(text)",
    "exec(text)",
    "os.system(text)",
    "from os import system",
    "subprocess.run(text, shell=True)",
    "np.load(file, allow_pickle=True)",
    "np.load(file, allow_pickle=trusted)",
    "np.load(file, None, True)",
    "torch.load(file)",
    "torch.load(file, weights_only=False)",
    "archive.extractall(folder)",
    "shutil.unpack_archive(file, folder)",
  ],
)
def test_a_danger_is_found(snippet):
  assert dangers(f"def f():\n  {snippet}")


@pytest.mark.parametrize(
  "snippet",
  [
    "np.load(file, allow_pickle=False)",
    'np.load(file, mmap_mode="r")',
    "torch.load(file, weights_only=True)",
    "model.eval()",
    "ast.literal_eval(text)",
    'subprocess.run(["git", "status"], shell=False)',
    'archive.extractall(folder, filter="data")',
  ],
)
def test_what_runs_nothing_is_no_danger(snippet):
  assert not dangers(snippet)


def test_the_program_has_no_danger():
  files = {str(f.relative_to(PROGRAM)): f.read_text() for f in PROGRAM.rglob("*.py")}
  assert {"tensor_files.py", "data/rows.py", "train/views.py"} <= set(files)
  found = {name: dangers(source) for name, source in files.items()}
  assert {name: what for name, what in found.items() if what} == MAY_IMPORT


class Bomb:
  """Unpickled, it makes a folder."""

  def __init__(self, folder):
    self.folder = folder

  def __reduce__(self):
    return os.mkdir, (str(self.folder),)


@pytest.fixture
def bomb(tmp_path):
  """An array whose reading, with pickles allowed, makes a folder; none may be there afterwards."""
  folder = tmp_path / "went off"
  yield np.array([Bomb(folder)], dtype=object)
  assert not folder.exists()


@pytest.mark.parametrize("name", TABLES)
def test_prepared_rows_of_objects_are_refused(tmp_path, bomb, name):
  for plain in TABLES:
    np.save(tmp_path / f"{plain}.npy", np.zeros(2, np.int32))
  Rows.load(tmp_path, seq_len=4, bos_id=1, pad_id=3)
  np.save(tmp_path / f"{name}.npy", bomb, allow_pickle=True)
  with pytest.raises(ValueError, match="Python objects"):
    Rows.load(tmp_path, seq_len=4, bos_id=1, pad_id=3)


def test_diagnostics_of_objects_are_refused(tmp_path, bomb):
  views.write(str(tmp_path), {"maps": {"loops": np.arange(3)}})
  views.read(str(tmp_path))
  np.savez(tmp_path / "diagnostics" / "maps.npz", loops=bomb)
  with pytest.raises(ValueError, match="allow_pickle"):
    views.read(str(tmp_path))


@pytest.fixture
def no_cache():
  """JAX as a user has it, who has not told it where to keep programs."""
  told = jax.config.values["jax_compilation_cache_dir"]
  jax.config.update("jax_compilation_cache_dir", None)
  yield lambda: jax.config.values["jax_compilation_cache_dir"]
  jax.config.update("jax_compilation_cache_dir", told)


def mode(folder):
  return stat.S_IMODE(folder.stat().st_mode)


def test_programs_are_kept_by_default_in_a_folder_of_the_user_alone(
  tiny_config, tmp_path, monkeypatch, no_cache
):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  before = os.umask(0)
  try:
    with pytest.raises(UserError, match="--workdir is missing"):  # Nothing is compiled here.
      jobs.run("train", tiny_config(), workdir=None, overrides={}, allow_config_change=False)
  finally:
    os.umask(before)
  folder = tmp_path / "looped_lm" / "compiled"
  assert no_cache() == str(folder)
  assert mode(folder) == 0o700


@pytest.mark.parametrize("wide", [0o777, 0o755, 0o770, 0o500])
def test_a_folder_of_programs_that_was_open_is_closed_to_others(tmp_path, no_cache, wide):
  folder = tmp_path / "compiled"
  folder.mkdir()
  folder.chmod(wide)
  parallel.cache_programs(folder)
  assert no_cache() == str(folder)
  assert mode(folder) == 0o700


def test_a_folder_of_programs_that_belongs_to_somebody_else_is_refused(
  tmp_path, monkeypatch, no_cache
):
  folder = tmp_path / "compiled"
  folder.mkdir(mode=0o755)
  owner = os.geteuid()
  monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
  with pytest.raises(
    UserError, match=f"belongs to user {owner}, not to you; set JAX_COMPILATION_C"
  ):
    parallel.cache_programs(folder)
  assert no_cache() is None
  assert mode(folder) == 0o755


def test_a_place_that_cannot_keep_programs_is_one_line(tmp_path, no_cache):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match=r"cannot keep compiled programs .*; set JAX_COMP"):
    parallel.cache_programs(tmp_path / "file" / "compiled")
  assert no_cache() is None


def test_a_folder_that_jax_was_told_of_is_left_as_it_is(tmp_path, no_cache):
  jax.config.update("jax_compilation_cache_dir", str(tmp_path))
  parallel.cache_programs(tmp_path / "compiled")
  assert no_cache() == str(tmp_path)
  assert not (tmp_path / "compiled").exists()
