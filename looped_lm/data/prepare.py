"""Prepared data: built once for given inputs and settings, found again by their hash.

A folder `<prepared_dir>/<hash>` holds all that training reads (building.py says what). The hash
is over the files' names, sizes and contents and over every setting that changes the result, so a
changed input or setting makes another folder, and an equal one is reused.
"""

from collections.abc import Callable
import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from etils import epath
from jaxtyping import Int
import numpy as np

from looped_lm.data import building, clean, folders, packing, quickstart, sources
from looped_lm.data.layer import PATHS, VALIDATION_PATHS
from looped_lm.data.rows import Rows
from looped_lm.data.tokenizer import Tokenizer
from looped_lm.errors import UserError

# Raise it when the same inputs and settings give other contents.
FORMAT = 1
_HASH_CHARACTERS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
  """All that training reads.

  Attributes:
    tokenizer: The vocabulary.
    train: Rows to train on.
    validation: Held-out rows; none where no text is held out.
    report: What was prepared from what, in numbers.
    unigram_V: How often each token occurs in the training text.
    directory: The folder on this machine; its name is the hash.
  """

  tokenizer: Tokenizer
  train: Rows
  validation: Rows
  report: dict[str, Any]
  unigram_V: Int[np.ndarray, " V"]
  directory: pathlib.Path


def prepare(
  data: dict[str, Any],
  tokenizer: dict[str, Any],
  *,
  seed: int,
  progress: Callable[[str], None] = print,
  process_index: int = 0,
  wait_seconds: float = 3600.0,
) -> Prepared:
  """Gives prepared data: what is there already, else built now.

  Args:
    data: The config's group `data`.
    tokenizer: The config's group `tokenizer`.
    seed: Of the packing's shuffle, at least 0.
    progress: Told how far the work is, a line at a time.
    process_index: Process 0 builds; the others wait for its result, which they must be able to see.
    wait_seconds: How long they wait.

  Raises:
    UserError: A setting or an input cannot work, or what is there is damaged. Nothing half-built
      is left.
  """
  inputs = _check(data, tokenizer, seed=seed, progress=progress)
  place, name = _place(data, inputs)
  bucket = epath.Path(place) / name if _is_bucket(place) else None
  folder = pathlib.Path(place if bucket is None else user_cache()) / name

  def build(temporary: pathlib.Path) -> dict[str, Any]:
    progress(f"Preparing data in {folder}.")
    report = building.build(temporary, inputs, progress=progress)
    facts = {"format": FORMAT, "seq_len": data["seq_len"], "settings": _settings(inputs)}
    return facts | {"words": {k: v["words"] for k, v in report["splits"].items()}}

  if process_index:
    folders.wait_for(bucket or folder, seconds=wait_seconds, progress=progress)
  if bucket is not None and folders.is_complete(bucket):
    folders.build_once(folder, lambda temporary: _download(bucket, temporary), progress=progress)
  else:
    folders.build_once(folder, build, progress=progress)
    if bucket is not None:
      manifest = folders.read_manifest(folder, verify=True)
      progress(f"Copying prepared data to {bucket}.")
      folders.copy(folder, bucket, manifest=manifest)
  # Reading it once more costs less than the inputs took, which are hashed on every start.
  return load_prepared(folder, verify=True)


def find_prepared(data: dict[str, Any], tokenizer: dict[str, Any], *, seed: int) -> Prepared | None:
  """Gives prepared data where it is there already, else None; nothing is built.

  Args:
    data: The config's group `data`.
    tokenizer: The config's group `tokenizer`.
    seed: As for `prepare`.

  Raises:
    UserError: A setting cannot work, or what is there is damaged.
  """
  if not data[PATHS]:
    return None
  inputs = _check(data, tokenizer, seed=seed, progress=lambda _: None)
  place, name = _place(data, inputs)
  if not folders.is_complete(epath.Path(place) / name):
    return None
  return load_prepared(epath.Path(place) / name)


def load_prepared(directory: epath.PathLike, *, verify: bool = False) -> Prepared:
  """Opens prepared data; arrays stay on disk until they are read.

  Args:
    directory: A folder that `prepare` made; one in a bucket is copied to the user's cache first.
    verify: Compare the checksums of all files; their sizes are always compared.

  Raises:
    UserError: It is no prepared data, or a file is missing or damaged; names it.
  """
  if _is_bucket(os.fspath(directory)):
    bucket = epath.Path(directory)
    folder = user_cache() / bucket.name
    folders.build_once(folder, lambda temporary: _download(bucket, temporary), progress=print)
  else:
    folder = pathlib.Path(directory)
  manifest = folders.read_manifest(folder, verify=verify)
  if manifest.get("format") != FORMAT:
    raise UserError(
      f"{folder} was prepared in format {manifest.get('format')}, this program reads {FORMAT}. "
      "Prepare the data again (--mode=prepare)."
    )
  tokenizer = Tokenizer.load(str(folder / "tokenizer.json"))
  ids = {"bos_id": tokenizer.bos_id, "pad_id": tokenizer.pad_id}
  return Prepared(
    tokenizer=tokenizer,
    train=Rows.load(folder / building.TRAIN, seq_len=manifest["seq_len"], **ids),
    validation=Rows.load(folder / building.VALIDATION, seq_len=manifest["seq_len"], **ids),
    report=json.loads((folder / "report.json").read_text()),
    unigram_V=np.load(folder / "unigram.npy"),
    directory=folder,
  )


def _place(data: dict[str, Any], inputs: building.Inputs) -> tuple[str, str]:
  """The folder that holds prepared data, and the name of this one in it."""
  place = os.path.expanduser(data["prepared_dir"]) or str(user_cache())
  return place, _key(inputs)[:_HASH_CHARACTERS]


def _download(bucket: epath.Path, temporary: pathlib.Path) -> dict[str, Any]:
  manifest = folders.read_manifest(bucket, verify=False)
  folders.copy(bucket, temporary, manifest=manifest)
  folders.read_manifest(temporary, verify=True)
  return {key: value for key, value in manifest.items() if key != "files"}


def _is_bucket(path: str) -> bool:
  return "://" in path


def user_cache() -> pathlib.Path:
  """The folder of this program in the user's cache folder."""
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "looped_lm"


# ---- What goes in


def _check(
  data: dict[str, Any], tokenizer: dict[str, Any], *, seed: int, progress: Callable[[str], None]
) -> building.Inputs:
  """Refuses what cannot work before anything is built, and looks the inputs up."""
  packing.check(seq_len=data["seq_len"], packing=data["packing"])
  if not 0 <= data["validation_fraction"] <= 0.5:
    raise UserError(
      f"data.validation_fraction={data['validation_fraction']} must lie in [0, 0.5]: the part of "
      "the documents that is held out."
    )
  if data["validation_paths"] and data["validation_fraction"]:
    raise UserError(
      "data.validation_paths and data.validation_fraction both hold text out; set one of them, the "
      "other to () or 0."
    )
  if not 0 <= seed < 2**63:
    raise UserError(f"seed={seed} must lie in [0, 2**63).")
  clean.Cleaner(data["cleaning"])
  loaded = Tokenizer.load(tokenizer["path"]) if tokenizer["path"] else None
  if loaded and tokenizer["vocab_size"] not in (0, loaded.vocab_size):
    raise UserError(
      f"tokenizer.path={tokenizer['path']!r} has {loaded.vocab_size} tokens, but "
      f"tokenizer.vocab_size={tokenizer['vocab_size']}; set it to {loaded.vocab_size}."
    )
  paths = {PATHS: sources.resolve(data["paths"], progress=progress)}
  if data["validation_paths"]:
    held = sources.resolve(data["validation_paths"], progress=progress)
    both = sorted(set(held) & set(paths[PATHS]))
    if both:
      raise UserError(
        f"{both[0]} is in data.paths and in data.validation_paths; text must be in one of them."
      )
    paths[VALIDATION_PATHS] = held
  for files in paths.values():
    sources.read(files, document=data["document"], text_field=data["text_field"])
  return building.Inputs(
    data=data,
    tokenizer=tokenizer,
    seed=seed,
    files={split: [_identify(file) for file in files] for split, files in paths.items()},
    loaded=loaded,
  )


def _identify(file: str) -> dict[str, Any]:
  """Names a file's content; where it lies makes no difference."""
  if file in quickstart.BUILT_IN:
    parts = quickstart.provenance(file)
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return {"path": file, "name": file, "bytes": 0, "sha256": digest, "parts": parts}
  path = epath.Path(file)
  size = path.stat().length
  return {"path": file, "name": path.name, "bytes": size, "sha256": folders.sha256(path)}


def _settings(inputs: building.Inputs) -> dict[str, Any]:
  """All that decides the result."""
  kept = ("document", "text_field", "cleaning", "packing", "seq_len", "validation_fraction")
  vocabulary = {k: v for k, v in inputs.tokenizer.items() if k != "path"}
  if inputs.loaded:  # Then nothing is trained, and the other settings say nothing.
    path = epath.Path(inputs.tokenizer["path"])
    vocabulary = {"sha256": folders.sha256(path / "tokenizer.json" if path.is_dir() else path)}
  return {
    "seed": inputs.seed,
    "data": {name: inputs.data[name] for name in kept},
    "tokenizer": vocabulary,
    "files": {
      split: [{k: v for k, v in file.items() if k != "path"} for file in files]
      for split, files in inputs.files.items()
    },
  }


def _key(inputs: building.Inputs) -> str:
  text = json.dumps({"format": FORMAT} | _settings(inputs), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()
