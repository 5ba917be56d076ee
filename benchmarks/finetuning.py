"""Fine-tunes one run here and by the official BabyLM pipeline, on one labelled set.

    python benchmarks/finetuning.py --config=configs/quickstart.py --workdir=runs/quickstart \
      --data=evaluation_data/full_eval/blimp_filtered --pipeline=babylm-eval/strict

The set has GLUE's form (rte: two sentences and a label) and is made of the minimal pairs of two
paradigms: which of them is a pair from? Every fifth is for validation. The pipeline fine-tunes the
exported folder, `--mode=eval` the run, by the same rate, passes, batches and seed; draws differ.
Results: docs/evaluation.md.
"""

import argparse
import json
import pathlib
import sys
import tempfile

from evaluation import main_command, pipeline_environment, read, seconds

FILES = ("determiner_noun_agreement_1.jsonl", "anaphor_number_agreement.jsonl")


def write_set(files, folder):
  """Writes rte.train.jsonl and rte.valid.jsonl; returns the label of each line of the latter."""
  parts = {"train": [], "valid": []}
  lines = zip(*(file.read_text().splitlines() for file in files), strict=False)
  for number, each in enumerate(lines):
    for label, line in enumerate(each):
      pair = json.loads(line)
      row = {"sentence1": pair["sentence_good"], "sentence2": pair["sentence_bad"]}
      parts["train" if number % 5 else "valid"].append({**row, "label": label, "idx": number})
  for part, rows in parts.items():
    (folder / f"rte.{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return [row["label"] for row in parts["valid"]]


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", required=True)
  parser.add_argument("--workdir", required=True, type=pathlib.Path)
  parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of minimal pairs")
  parser.add_argument("--files", nargs=2, default=FILES, help="of two paradigms")
  parser.add_argument("--pipeline", required=True, help="the folder of evaluation_pipeline/")
  parser.add_argument("--python", default=sys.executable, help="for the pipeline")
  parser.add_argument("--learning-rate", type=float, default=3e-4)
  parser.add_argument("--epochs", type=int, default=3)
  args = parser.parse_args()
  args.workdir = args.workdir.resolve()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    labels = write_set([args.data / file for file in args.files], folder)
    export = folder / "export"
    seconds(main_command(args, "export", f"--output={export}"))
    command = [args.python, "-m", "evaluation_pipeline.finetune.run"]
    command += ["--model_name_or_path", export, "--task", "rte", "--num_labels", "2"]
    for part, file in (("train", "train"), ("valid", "valid"), ("predict", "valid")):
      command += [f"--{part}_data", folder / f"rte.{file}.jsonl"]
    command += ["--learning_rate", str(args.learning_rate), "--num_epochs", str(args.epochs)]
    command += ["--batch_size", "32", "--metric_for_valid", "accuracy", "--padding_side", "left"]
    command += ["--take_final", "--results_dir", folder / "results"]
    their_s = seconds(command, cwd=args.pipeline, env=pipeline_environment())
    our_s = seconds(
      main_command(
        args,
        "eval",
        "--config.evals.names=('glue',)",
        "--config.evals.final_names=()",
        f"--config.evals.glue.path={folder}",
        "--config.evals.glue.tasks=('rte',)",
        f"--config.evals.glue.learning_rate={args.learning_rate}",
        f"--config.evals.glue.epochs={args.epochs}",
        "--config.evals.glue.batch_size=32",
        "--config.evals.glue.backend=bidirectional",
      )
    )
    (mine,) = (args.workdir / "evals" / "glue").rglob("predictions.json")
    (other,) = (folder / "results").rglob("predictions.json")
    print("| | validation accuracy | seconds |\n|---|---|---|")
    for who, path, took in (("here", mine, our_s), ("pipeline", other, their_s)):
      told = [int(row["pred"]) for row in read(path)["rte"]["predictions"]]
      right = sum(a == b for a, b in zip(told, labels, strict=True))
      print(f"| {who} | {right / len(labels):.1%} of {len(labels)} | {took:.0f} |")


if __name__ == "__main__":
  main()
