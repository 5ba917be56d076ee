"""A model and its cost as text, before anything is trained."""

from collections.abc import Iterable, Mapping
import math
from typing import Any

import jax

from looped_lm.data.pipeline import Pipeline
from looped_lm.scaling import flops, memory
from looped_lm.types import Model, Params


def describe(model: Model, config: Mapping[str, Any], prepared: Any = None) -> str:
  """Describes a run: its parameters, FLOPs, memory and exposure to text.

  Args:
    model: The built model.
    config: The whole configuration.
    prepared: The prepared data, or None where there is none yet; words are counted from it alone.

  Returns:
    Text of several sections, lines of at most about 100 characters.
  """
  params = flops.abstract_params(model)
  sections = [
    ("Layers", _layers(params)),
    ("Parameters", _parameters(params, num_loops=config["model"]["num_loops"])),
    ("Cost", _cost(config, params)),
    ("Text", _text(config, prepared)),
  ]
  return "\n\n".join(f"{title}\n{_indent(lines)}" for title, lines in sections) + "\n"


def compiled(program: Any) -> str:
  """What a compiled step needs of each device's memory, by the compiler's own account.

  Args:
    program: A compiled `jax.stages.Compiled`.
  """
  told = program.memory_analysis()
  if told is None:
    return f"Compiled\n  the compiler for {jax.default_backend()} does not tell its memory\n"
  held, temporary = told.argument_size_in_bytes, told.temp_size_in_bytes
  # Results that do not take the place of an argument.
  new = told.output_size_in_bytes - told.alias_size_in_bytes
  rows = [
    ("state and rows", _bytes(held), f"on each of {jax.device_count()} device(s)"),
    ("temporaries", _bytes(temporary), f"as compiled for {jax.default_backend()}"),
    ("results besides", _bytes(new), ""),
    ("together", _bytes(held + temporary + new), "of a device's memory at most"),
  ]
  return f"Compiled\n{_indent(_table(rows, align='lrl'))}\n"


def _layers(params: Params) -> list[str]:
  leaves = jax.tree_util.tree_flatten_with_path(params)[0]
  rows = [("name", "shape", "parameters")]
  for path, leaf in leaves:
    name = "/".join(str(getattr(key, "key", key)) for key in path)
    rows.append((name, " × ".join(map(str, leaf.shape)) or "1", f"{math.prod(leaf.shape):,}"))
  return _table(rows, align="llr")


def _parameters(params: Params, *, num_loops: int) -> list[str]:
  counts = flops.count_parameters(params)
  rows = [(part, f"{count:,}", "") for part, count in counts.by_part.items()]
  rows += [
    ("total", f"{counts.total:,}", ""),
    ("non-embedding", f"{counts.non_embedding:,}", "without the token embeddings"),
    ("looped", f"{counts.looped:,}", f"core and injection, used {num_loops} time(s)"),
  ]
  return _table(rows, align="lrl")


def _cost(config: Mapping[str, Any], params: Params) -> list[str]:
  model, train = config["model"], config["train"]
  seq_len = config["data"]["seq_len"]
  macs = flops.forward_macs(model, params, seq_len=seq_len)
  forward = flops.forward_flops_per_token(model, params, seq_len=seq_len)
  devices = jax.device_count()
  rows = max(1, train["batch_size"] // (devices * train["micro_batches"]))
  training = flops.training_flops_per_token(model, params, seq_len=seq_len, rows=rows)
  size = memory.activation_bytes(
    model,
    params,
    rows=rows,
    seq_len=seq_len,
    chunk_tokens=config.get("objective", {}).get("chunk_tokens", 0),
  )
  layers = model["prelude_layers"] + macs.num_loops * model["core_layers"] + model["coda_layers"]
  pieces = f"{layers} layer applications: {model['prelude_layers']} + "
  pieces += f"{macs.num_loops} × {model['core_layers']} + {model['coda_layers']}"
  on = f"{rows} rows × {seq_len} tokens on each of {devices} device(s)"
  table = [
    ("forward FLOPs per token", _quantity(forward), pieces),
    ("  of which one loop", _quantity(2 * macs.loop), ""),
    ("  of which the head", _quantity(2 * macs.head), ""),
    ("training FLOPs per token", _quantity(training), f"with remat={model['remat']!r}"),
    *_trained_loops(model, params, seq_len=seq_len, rows=rows),
    ("activation memory", _bytes(size), f"an estimate: {on}"),
  ]
  return _table(table, align="lrl")


def _trained_loops(
  model: Mapping[str, Any], params: Params, *, seq_len: int, rows: int
) -> list[tuple[str, str, str]]:
  """Lines on what training runs of the loop, where that is not simply R loops with gradient."""
  loops = flops.executed_loops(model, rows=rows)
  name = model.get("depth", {"name": "fixed"})["name"]
  if name == "fixed" and loops.prefix == 0:
    return []
  alone = flops.training_flops_per_token(model, params, seq_len=seq_len)
  executed = f"{loops.prefix:.2f} without gradient + {loops.grad:.2f} with"
  return [
    ("  if no row waited", _quantity(alone), "each row's own loops alone"),
    ("mean trained loops", f"{loops.mean:.2f}", f"depth {name!r}, over the whole run"),
    ("mean executed loops", f"{loops.prefix + loops.grad:.2f}", executed),
  ]


def _text(config: Mapping[str, Any], prepared: Any) -> list[str]:
  train, seq_len = config["train"], config["data"]["seq_len"]
  positions = train["batch_size"] * seq_len
  rows = [("positions per step", f"{positions:,}", f"{train['batch_size']} rows × {seq_len}")]
  if prepared is None:
    if train["total_steps"] > 0:
      rows.append(("steps", f"{train['total_steps']:,}", ""))
    lines = _table(rows, align="lrl")
    return [*lines, "Words are counted on prepared data: run --mode=prepare, then describe again."]
  pipeline = Pipeline(prepared.train, batch_size=train["batch_size"], seed=config["seed"])
  steps = _steps(train, pipeline)
  words, tokens = pipeline.words_seen(steps), pipeline.tokens_seen(steps)
  corpus_words = int(prepared.train.words_N.sum())
  rows += [
    ("tokens per step", f"{tokens / steps:,.0f}", "mean, without <s> and padding"),
    ("words per step", f"{words / steps:,.0f}", "mean"),
    ("steps", f"{steps:,}", f"{pipeline.epochs_seen(steps):.2f} epochs of {corpus_words:,} words"),
    ("total tokens", f"{tokens:,}", ""),
    ("total words", f"{words:,}", "exposures: a word read twice counts twice"),
  ]
  return _table(rows, align="lrl")


def _steps(train: Mapping[str, Any], pipeline: Pipeline) -> int:
  """Steps of the run, from whichever budget is given."""
  for unit in ("words", "tokens", "epochs"):
    if train[f"total_{unit}"] > 0:
      return pipeline.steps_for(**{unit: train[f"total_{unit}"]})
  return train["total_steps"]


def _table(rows: Iterable[tuple[str, ...]], *, align: str) -> list[str]:
  """Lines up columns; `align` has one of l and r per column."""
  rows = list(rows)
  widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
  lines = []
  for row in rows:
    cells = zip(row, widths, align, strict=True)
    parts = [c.rjust(width) if side == "r" else c.ljust(width) for c, width, side in cells]
    lines.append("  ".join(parts).rstrip())
  return lines


def _indent(lines: Iterable[str]) -> str:
  return "\n".join(f"  {line}" for line in lines)


def _quantity(value: float) -> str:
  """Gives three digits and a decimal prefix: 2.33e8 -> '233 M'."""
  for scale, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
    if value >= scale:
      return f"{value / scale:.3g} {letter}"
  return f"{value:.3g}"


def _bytes(value: float) -> str:
  return _quantity(value) + "B"
