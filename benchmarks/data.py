"""Measures preparation (words/s) and feeding (rows/s) in one process.

    python benchmarks/data.py [--paths PATHS] [--repeat N] [--seconds S]

Preparation is timed with a tokenizer at hand, so that its training is apart. `--repeat` writes the
text N times, each copy's words marked, to see what a larger corpus costs. Results: docs/data.md.
"""

import argparse
import os
import pathlib
import resource
import tempfile
import time

from looped_lm.data import clean, sources
from looped_lm.data.pipeline import Pipeline
from looped_lm.data.prepare import Prepared, prepare

SEQ_LEN = 128
BATCH_SIZE = 256


def repeated(paths: str, count: int, folder: pathlib.Path) -> str:
  """Writes the lines of a corpus `count` times; copies differ, or duplicates would be removed."""
  path = folder / "repeated.txt"
  with open(path, "w") as file:
    for copy in range(count):
      for document in sources.read(sources.resolve([paths]), document="line", text_field=""):
        text = document.text.replace("\n", " ")
        file.write(f"{text} {copy}\n" if copy else f"{text}\n")
  return os.fspath(path)


def timed_prepare(
  paths: str, folder: pathlib.Path, *, tokenizer_path: str, cleaning: tuple[str, ...], packing: str
) -> tuple[Prepared, float, float]:
  data = {
    "paths": (paths,),
    "document": "line",
    "text_field": "",
    "cleaning": cleaning,
    "prepared_dir": os.fspath(folder),
    "packing": packing,
    "seq_len": SEQ_LEN,
    "validation_fraction": 0.01,
    "validation_paths": (),
  }
  tokenizer = {
    "path": tokenizer_path,
    "vocab_size": 0 if tokenizer_path else 8192,
    "min_frequency": 2,
    "add_prefix_space": True,
  }
  began, began_cpu = time.perf_counter(), time.process_time()
  prepared = prepare(data, tokenizer, seed=0, progress=lambda line: None)
  return prepared, time.perf_counter() - began, time.process_time() - began_cpu


def fed_rows_per_second(prepared: Prepared, seconds: float) -> float:
  iterator = Pipeline(prepared.train, batch_size=BATCH_SIZE, seed=0).iterator(0)
  for _ in range(20):
    next(iterator)
  batches, began = 0, time.perf_counter()
  while time.perf_counter() - began < seconds:
    next(iterator)
    batches += 1
  rate = batches * BATCH_SIZE / (time.perf_counter() - began)
  iterator.close()
  return rate


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--paths", default="corpus:quickstart", help="as data.paths")
  parser.add_argument("--repeat", type=int, default=1, help="copies of the text")
  parser.add_argument("--seconds", type=float, default=5.0, help="time to feed rows")
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    first, seconds, _ = timed_prepare(
      args.paths, folder, tokenizer_path="", cleaning=(), packing="lines"
    )
    paths = repeated(args.paths, args.repeat, folder) if args.repeat > 1 else args.paths
    tokenizer_path = os.fspath(first.directory / "tokenizer.json")
    print(f"{args.paths}: a vocabulary of 8,192 trained and all prepared in {seconds:.1f} s")
    for cleaning in ((), tuple(clean.NAMES)):
      for packing in ("lines", "documents"):
        prepared, seconds, cpu_seconds = timed_prepare(
          paths,
          folder / "timed",
          tokenizer_path=tokenizer_path,
          cleaning=cleaning,
          packing=packing,
        )
        # With operations, the words that went in count, not those that were left.
        counts = prepared.report["cleaning"]
        facts = prepared.report["splits"].values()
        words = (
          counts[cleaning[0]]["words_before"]
          if cleaning
          else sum(split["words"] for split in facts)
        )
        fill = prepared.report["splits"]["train"]["fill_fraction"]
        print(
          f"preparation, packing {packing}, {len(cleaning)} cleaning operations: {words:,} words "
          f"in {seconds:.1f} s = {words / seconds:,.0f} words/s, "
          f"{words / cpu_seconds:,.0f} per CPU-second (fill {fill:.3f})"
        )
        rate = fed_rows_per_second(prepared, args.seconds)
        print(f"  feeding: {rate:,.0f} rows of {SEQ_LEN} per second, batches of {BATCH_SIZE}")
  peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  print(f"peak memory {peak_bytes / 1e9:.2f} GB")


if __name__ == "__main__":
  main()
