"""Our scorer beside the official BabyLM pipeline, on one model: do they agree, and who is faster?

    python benchmarks/evaluation.py --config=configs/quickstart.py --workdir=runs/quickstart \
      --data=evaluation_data/full_eval --pipeline=babylm-eval/strict --tasks=blimp --per-group=200

The run is exported; the pipeline (a checkout of it, unmodified) scores the export and `--mode=eval`
the run, each in a process of its own, timed from start to end. `--python` names the Python of an
environment that has what the pipeline imports (torch, transformers, pandas, statsmodels, …).
Choices are compared item by item; where our options tie the pipeline draws one at random, so those
are counted apart. For reading, and for wug with a pipeline that still has it, per-item numbers are
compared. Results: docs/evaluation.md.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

# Ours -> the pipeline's task and the set's folder or file.
CHOICES = {
  "blimp": ("blimp", "blimp_filtered"),
  "blimp_supplement": ("blimp", "supplement_filtered"),
  "entity_tracking": ("entity_tracking", "entity_tracking"),
  "entity_tracking_all": ("entity_tracking", "entity_tracking"),
  "wug": ("wug_adj", "wug_adj_nominalization"),
}
READING = "reading/reading_data.csv"
# Tasks that are compared by numbers: the group of the predictions, and the numbers' names.
NUMBERS = {"reading": ("reading", ("pred", "prev_pred")), "wug": ("wug_adj", ("prob",))}


def subset(source, target, per_group):
  """Copies a set, at most so many lines of each file; 0 copies all."""
  target.mkdir(parents=True)
  for file in sorted(source.glob("*.jsonl")):
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    (target / file.name).write_text("\n".join(lines[: per_group or None]) + "\n")
  return target


def seconds(command, **options):
  """Runs a command to its end; its last lines are shown where it fails."""
  started = time.perf_counter()
  done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
  if done.returncode:
    raise SystemExit("\n".join([" ".join(map(str, command)), *done.stderr.splitlines()[-15:]]))
  return time.perf_counter() - started


def main_command(args, mode, *flags):
  """Our program's command on the run at hand."""
  command = [sys.executable, "-m", "looped_lm.main", f"--config={args.config}", f"--mode={mode}"]
  return [*command, f"--workdir={args.workdir}", *flags]


def pipeline_environment():
  """Offline, whatever the pipeline would like to report."""
  return os.environ | {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "offline",
  }


def ours(args, task, backend, path):
  return seconds(
    main_command(
      args,
      "eval",
      f"--config.evals.names=('{task}',)",
      "--config.evals.final_names=()",
      f"--config.evals.backends=('{backend}',)",
      f"--config.evals.{task}.path={path}",
    )
  )


def theirs(args, export, task, backend, path, output):
  module, extra = "sentence_zero_shot", ["--task", task, "--save_predictions"]
  if task == "reading":
    module, extra = "reading", []
  command = [args.python, "-m", f"evaluation_pipeline.{module}.run", *extra]
  command += ["--model_path_or_name", export, "--backend", backend]
  command += ["--data_path", path, "--output_dir", output]
  return seconds(command, cwd=args.pipeline, env=pipeline_environment())


def read(path):
  return json.loads(path.read_text())


def compare_choices(mine, credits, official):
  """Items, ties, different choices, and the pipeline's accuracy by group."""
  items = ties = differ = 0
  for group, told in mine.items():
    other = official[group]["predictions"]
    assert [p["id"] for p in told["predictions"]] == [p["id"] for p in other]
    for credit, a, b in zip(credits[group], told["predictions"], other, strict=True):
      items += 1
      # A tie that leaves out the right option has credit 0, and is compared with the rest.
      if 0 < credit < 1:
        ties += 1
      elif a["pred"].strip() != b["pred"].strip():
        differ += 1
        print(f"  {a['id']}: ours {a['pred']!r}, theirs {b['pred']!r}")
  return items, ties, differ


def official_score(folder, task):
  """As its report has it."""
  if task == "reading":
    lines = (folder / "report.txt").read_text().split("\n")
    return " / ".join(line.split()[-1] for line in lines if line.strip())
  average = (folder / "best_temperature_report.txt").read_text().split("### AVERAGE")[1]
  return average.split("\n")[1].strip()


def largest_difference(mine, other, names):
  """Of per-item numbers; a number that both lack is none."""
  worst = 0.0
  for a, b in zip(mine, other, strict=True):
    for name in names:
      if not (math.isnan(a[name]) and math.isnan(b[name])):
        worst = max(worst, abs(a[name] - b[name]))
  return worst


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", required=True)
  parser.add_argument("--workdir", required=True, type=pathlib.Path)
  parser.add_argument("--pipeline", required=True, help="the folder of evaluation_pipeline/")
  parser.add_argument("--data", required=True, type=pathlib.Path, help="its full_eval folder")
  parser.add_argument("--python", default=sys.executable, help="for the pipeline")
  parser.add_argument("--tasks", nargs="+", default=["blimp"], choices=[*CHOICES, "reading"])
  parser.add_argument("--backends", nargs="+", default=["mntp"], choices=["causal", "mntp"])
  parser.add_argument("--per-group", type=int, default=0, help="lines of each file; 0: all")
  args = parser.parse_args()
  args.workdir = args.workdir.resolve()
  print("| task | backend | items | ties | choices that differ | ours | pipeline | ", end="")
  print("seconds ours | pipeline | ratio |\n|---|---|---|---|---|---|---|---|---|---|")
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    export = folder / "export"
    seconds(main_command(args, "export", f"--output={export}"))
    for task in args.tasks:
      for backend in args.backends:
        if task == "reading":
          official, path = "reading", (args.data / READING).resolve()
        else:
          official, directory = CHOICES[task]
          path = folder / task / backend / directory
          path = subset(args.data / directory, path, args.per_group)
        their_s = theirs(args, export, official, backend, path, folder / "results")
        our_s = ours(args, task, backend, path)
        left = args.workdir / "evals" / task / backend
        right = folder / "results" / "export" / "main" / "zero_shot" / backend
        right = right / "reading" if task == "reading" else right / official / path.name
        timing = f"{our_s:.0f} | {their_s:.0f} | {their_s / our_s:.1f} |"
        mine, other = read(left / "predictions.json"), read(right / "predictions.json")
        scores = read(left / "scores.json")
        if task in NUMBERS:
          group, names = NUMBERS[task]
          mine, other = mine[group]["predictions"], other[group]["predictions"]
          worst = largest_difference(mine, other, names)
          print(f"| {task} | {backend} | {len(mine)} | | at most {worst:.1e} ", end="")
        else:
          credits = read(left / "credits.json")["credits"]
          items, ties, differ = compare_choices(mine, credits, other)
          print(f"| {task} | {backend} | {items} | {ties} | {differ} ", end="")
        told = [v for name, v in scores.items() if name.endswith("_percent") and "ties" not in name]
        told = " / ".join(f"{value:.2f}" for value in told if isinstance(value, float))
        print(f"| {told} | {official_score(right, task)} | {timing}", flush=True)


if __name__ == "__main__":
  main()
