"""Trains one small model with every injection at several learning rates, to see which diverge.

    python benchmarks/injection_stability.py [--out DIR] [--injections A,B] [--learning_rates X,Y]
      [--steps N] [--embed_dim D] [--loops R] [--seed S] [--tiny]

Every run is a run of the package with `configs/injection_stability.py`, its workdir under `--out`.
Given again, the command goes on where it was stopped and repeats nothing that is done. It leaves
results.json, table.md and plot.png. Results: docs/experiments.md.

A run has diverged if a loss or gradient is not finite, which stops it, or if it ends about where
guessing by frequency stands: its training loss, averaged over the last tenth of the steps, is less
than `_LEARNT_NATS` below the entropy of the training tokens. The largest rise says how high the
training loss, averaged over `_WINDOW` steps, ever rose above its lowest value before.
"""

import argparse
from collections.abc import Sequence
import contextlib
import json
import math
import os
import pathlib
import time
from typing import Any

import numpy as np

from looped_lm import jobs
from looped_lm.configuration import sibling
from looped_lm.data.prepare import find_prepared
from looped_lm.errors import UserError
from looped_lm.train import metrics

INJECTIONS = (
  "none",
  "add",
  "add_norm",
  "diagonal",
  "diagonal_zoh",
  "linear",
  "gated",
  "hyper_connections",
)
LEARNING_RATES = (0.004, 0.016, 0.064)
_CONFIG = pathlib.Path(__file__).resolve().parents[1] / "configs" / "injection_stability.py"
_WINDOW = 5
_LEARNT_NATS = 0.25
# Of Parcae's decay, and a bound from above for the state's half of a matrix.
_RHO = ("eval/injection/rho_max", "eval/injection/rho_bound")
_COLUMNS = (
  "injection",
  "learning rate",
  "diverged",
  "training loss",
  "held-out loss",
  "largest rise",
  "state RMS, loop 1",
  "last loop",
  "ρ",
)
# Okabe and Ito's colours; the plot has one per learning rate.
_COLOURS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#E69F00")
Result = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> list[Result]:
  """Trains what is missing; writes results, table and plot after every run."""
  args = _arguments(arguments)
  out = pathlib.Path(args.out)
  (out / "runs").mkdir(parents=True, exist_ok=True)
  path = out / "results.json"
  known = json.loads(path.read_text()) if path.exists() else {}
  wanted = {}
  for injection in args.injections.split(","):
    for rate in map(float, args.learning_rates.split(",")):
      name, config = f"{injection}-{rate:g}", _config(injection, rate, args)
      result = known.get(name)
      if result is None:
        print(f"{name}: training", flush=True)
        result = {"injection": injection, "learning_rate": rate}
        result |= train(config, out / "runs" / name)
      elif result["config"] != _plain(config):
        raise UserError(f"{path} has {name} with another config; give another --out.")
      wanted[name] = result | {"diverged": has_diverged(result)}
      _replace(path, json.dumps(known | wanted, indent=1))
      done = list(wanted.values())
      _replace(out / "table.md", table(done))
      plot(done, out / "plot.png")
      print(table(done).splitlines()[-1], flush=True)
  return done


def train(config: dict[str, Any], workdir: pathlib.Path) -> Result:
  """Trains to the end, or to the first step that is not finite; reads the figures off the log."""
  began, complete = time.process_time(), True
  with open(f"{workdir}.log", "a") as log, contextlib.redirect_stdout(log):
    try:
      jobs.run("train", config, workdir=str(workdir), overrides={}, allow_config_change=False)
    except UserError:
      # A loss that is not finite stops a run, and is what we are here to see; other errors are not.
      complete = False
      if not (workdir / "metrics.jsonl").exists() or _finite(metrics.read(str(workdir))):
        raise
  records = metrics.read(str(workdir))
  prepared = find_prepared(config["data"], config["tokenizer"], seed=config["seed"])
  assert prepared is not None
  share_V = prepared.unigram_V[prepared.unigram_V > 0] / prepared.unigram_V.sum()
  entropy_nats = float(-(share_V * np.log(share_V)).sum())
  losses = [record["train/loss_nats"] for record in records if "train/loss_nats" in record]
  last = {name: value for record in records for name, value in record.items()}
  if complete and "eval/clm/loss_nats" not in last:
    raise SystemExit(f"{workdir} was stopped; the same command goes on with it.")
  return {
    "config": _plain(config),
    "stopped_at_step": None if complete else len(losses),
    # JSON has no nan: a step that was not finite has no loss.
    "train_loss_nats": [loss if math.isfinite(loss) else None for loss in losses],
    "final_train_loss_nats": _tail(losses) if complete else None,
    "largest_rise_nats": largest_rise([loss for loss in losses if math.isfinite(loss)]),
    "entropy_nats": entropy_nats,
    "held_out_loss_nats": last["eval/clm/loss_nats"] if complete else None,
    "state_rms_R": [
      value for name, value in sorted(last.items()) if complete and name.endswith("/state_rms")
    ],
    "rho": [
      (record["step"], record[name]) for record in records for name in _RHO if name in record
    ],
    "cpu_seconds": time.process_time() - began,
  }


def has_diverged(result: Result) -> bool:
  """As the module says."""
  if result["stopped_at_step"] is not None:
    return True
  return result["final_train_loss_nats"] > result["entropy_nats"] - _LEARNT_NATS


def largest_rise(losses: Sequence[float]) -> float:
  """How high the averaged loss ever rose above its lowest value before, in nats."""
  rise, lowest = 0.0, math.inf
  for end in range(_WINDOW, len(losses) + 1):
    mean = sum(losses[end - _WINDOW : end]) / _WINDOW
    lowest = min(lowest, mean)
    rise = max(rise, mean - lowest)
  return rise


def table(results: Sequence[Result]) -> str:
  """Markdown, a line per run."""
  lines = [
    f"| {' | '.join(_COLUMNS)} |",
    f"|{'---|' * len(_COLUMNS)}",
  ]
  for result in results:
    stopped, rms_R = result["stopped_at_step"], result["state_rms_R"]
    why = f"**yes**, step {stopped}" if stopped else "**yes**" if result["diverged"] else "no"
    rho = result["rho"][-1][1] if result["rho"] else None
    cells = [
      result["injection"],
      f"{result['learning_rate']:g}",
      why,
      *(_number(result[name], 3) for name in ("final_train_loss_nats", "held_out_loss_nats")),
      _number(result["largest_rise_nats"], 2),
      *(_number(rms, 2) for rms in ([rms_R[0], rms_R[-1]] if rms_R else [None, None])),
      _number(rho, 2),
    ]
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines) + "\n"


def plot(results: Sequence[Result], path: pathlib.Path) -> None:
  """Training loss of every run, a panel per injection; a cross ends a run that diverged."""
  from matplotlib.figure import Figure

  names = list(dict.fromkeys(result["injection"] for result in results))
  rates = sorted({result["learning_rate"] for result in results})
  columns = min(4, len(names))
  rows = math.ceil(len(names) / columns)
  figure = Figure(figsize=(2.7 * columns + 1.3, 2.3 * rows + 0.6), layout="constrained")
  panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
  for panel, name in zip(panels.flat, names, strict=False):
    for result in results:
      if result["injection"] != name:
        continue
      rate = result["learning_rate"]
      colour = _COLOURS[rates.index(rate) % len(_COLOURS)]
      losses = [loss for loss in result["train_loss_nats"] if loss is not None]
      means = [np.mean(losses[max(0, i - _WINDOW + 1) : i + 1]) for i in range(len(losses))]
      panel.plot(range(1, len(means) + 1), means, color=colour, linewidth=1.2, label=f"{rate:g}")
      if result["diverged"]:
        panel.plot(len(means), means[-1], "x", color=colour, markersize=8, clip_on=False)
    panel.axhline(results[0]["entropy_nats"], color="grey", linestyle=":", linewidth=1)
    panel.set_title(name, fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
  for panel in panels.flat[len(names) :]:
    panel.set_axis_off()
  # A curve that leaves the panel has blown up; how far is in results.json.
  panels.flat[0].set_ylim(top=results[0]["entropy_nats"] + 3)
  figure.supxlabel("optimiser step", fontsize=10)
  figure.supylabel("training loss, nats per token", fontsize=10)
  longest = max(panels.flat[: len(names)], key=lambda panel: len(panel.get_lines()))
  handles, labels = longest.get_legend_handles_labels()
  figure.legend(handles, labels, title="learning rate", loc="outside right center", frameon=False)
  new = path.with_suffix(".new.png")
  figure.savefig(new, dpi=100)
  os.replace(new, path)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--out", default="runs/injection_stability", help="folder of the results")
  parser.add_argument("--injections", default=",".join(INJECTIONS))
  parser.add_argument("--learning_rates", default=",".join(map(str, LEARNING_RATES)))
  parser.add_argument("--steps", type=int, help="of every run")
  parser.add_argument("--embed_dim", type=int, help="D")
  parser.add_argument("--loops", type=int, help="R")
  parser.add_argument("--seed", type=int)
  parser.add_argument("--tiny", action="store_true", help="the config's size for tests")
  return parser.parse_args(arguments)


def _config(injection: str, rate: float, args: argparse.Namespace) -> dict[str, Any]:
  """The resolved config of one run; what no flag sets is the config file's."""
  parts = [injection]
  parts += [] if args.embed_dim is None else [f"d{args.embed_dim}"]
  parts += [] if args.loops is None else [f"r{args.loops}"]
  parts += ["tiny"] if args.tiny else []
  config = sibling(str(_CONFIG), _CONFIG.stem, ",".join(parts)).to_dict()
  config["optim"]["learning_rate"] = rate
  if args.steps is not None:
    config["train"]["total_steps"] = args.steps
  if args.seed is not None:
    config["seed"] = args.seed
  return config


def _plain(config: dict[str, Any]) -> Any:
  """As it comes back from JSON, where tuples are lists."""
  return json.loads(json.dumps(config))


def _finite(records: Sequence[dict[str, float]]) -> bool:
  return all(
    math.isfinite(record.get(name, 0.0))
    for record in records
    for name in ("train/loss_nats", "train/grad_norm")
  )


def _tail(losses: Sequence[float]) -> float:
  """Mean over the last tenth."""
  tail = losses[-max(1, len(losses) // 10) :]
  return sum(tail) / len(tail)


def _number(value: float | None, digits: int) -> str:
  if value is None:
    return "—"
  return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.1e}"


def _replace(path: pathlib.Path, text: str) -> None:
  new = path.with_name(path.name + ".new")
  new.write_text(text)
  os.replace(new, path)


if __name__ == "__main__":
  main()
