"""Times one training step, alone or against plain PyTorch, in one run.

    python benchmarks/train_step.py --config=configs/looped_gpt_bert.py --batch=8
    python benchmarks/train_step.py --config=... --batch=8 --against=torch
    python benchmarks/train_step.py --config=... --batch=8 --against=model.remat=full

The step is the whole one: drawing the corruption, forward, backward, optimiser and average, on
random tokens and without dropout (`--dropout` keeps the config's). With `--against` two steps take
turns, A B A B, and the figure is the median of the pairs' ratios with their spread; machines that
others use are noisy, and ratios are not. "torch" is `plain_torch.py` (install `torch` beside the
project), whose first loss must equal ours; anything else is a field of the config with another
value. "Share of peak" divides the step's FLOPs by a dense product at the model's own shapes.
`--profile-compile` shows what compiling the step consists of and times nothing else.
Results: docs/performance.md.
"""

import argparse
import ast
import collections
import contextlib
import copy
import functools
import gzip
import json
import os
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm import plugins, visibility
from looped_lm.configuration import sibling
from looped_lm.jobs.experiment import picked, rematerialised
from looped_lm.models import looped
from looped_lm.nn.positions import bucket_table
from looped_lm.optim import schedules
from looped_lm.scaling import flops
from looped_lm.train import step as steps
from looped_lm.types import Batch, Vocabulary

TOTAL_STEPS = 1000
WARM_UP = 2


class OurStep:
  """A config's training step, compiled for these rows."""

  def __init__(self, config, tokens_BT, *, compile_trace=None):
    self.config = config
    vocabulary = Vocabulary(
      size=config["tokenizer"]["vocab_size"], num_special=16, bos_id=1, pad_id=3, mask_id=4
    )
    self.model = looped.build(config["model"], vocab_size=vocabulary.size)
    kind = plugins.load("objectives", config["objective"]["name"]).Objective
    self.objective = picked(kind, {**config["objective"], "vocabulary": vocabulary})
    optimizer = picked(plugins.load("optim", config["optim"]["name"]).Optimizer, config["optim"])
    self.schedule = schedules.make(config["optim"], total_steps=TOTAL_STEPS)
    self.tx = tx = optimizer.build(self.schedule)
    train = config["train"]
    make = functools.partial(steps.initial_state, self.model.init, tx, seed=0)
    self.state = jax.jit(functools.partial(make, ema=train["ema_decay"] > 0))()
    # A copy for torch: the state itself is donated.
    self.first_params = jax.tree.map(np.array, self.state.params)
    self.first_key = self.state.key.copy()
    self.batch = jax.tree.map(
      jnp.asarray,
      Batch(
        tokens_BT=tokens_BT,
        segments_BT=np.ones_like(tokens_BT),
        row_B=np.arange(len(tokens_BT), dtype=np.int32),
      ),
    )
    one_step = steps.make_train_step(
      model=self.model,
      objective=self.objective,
      tx=tx,
      schedule=self.schedule,
      total_steps=TOTAL_STEPS,
      micro_batches=train["micro_batches"],
      ema_decay=train["ema_decay"],
    )
    started = time.perf_counter()
    lowered = jax.jit(one_step, donate_argnums=0).lower(self.state, self.batch)
    self.trace_s = time.perf_counter() - started
    # Where given, a folder for the profiler's trace of the compilation.
    with jax.profiler.trace(compile_trace) if compile_trace else contextlib.nullcontext():
      self.compiled = lowered.compile()
    self.compile_s = time.perf_counter() - started - self.trace_s
    memory = self.compiled.memory_analysis()
    self.temporary_bytes = None if memory is None else memory.temp_size_in_bytes
    self.flops = tokens_BT.size * flops.training_flops_per_token(
      config["model"], self.first_params, seq_len=tokens_BT.shape[1], rows=len(tokens_BT)
    )

  def task(self, step):
    """What a step predicts: the same draws as inside it."""
    key_task, _ = jax.random.split(jax.random.fold_in(self.first_key, step))
    task = self.objective.draw(self.batch, key=key_task, progress=step / TOTAL_STEPS)
    return self.objective.weigh(task, total=lambda x: x)

  def __call__(self):
    self.state, metrics = self.compiled(self.state, self.batch)
    return float(metrics["loss_nats"][0])


class TorchStep:
  """The same with plain PyTorch; what its steps predict is drawn beforehand and not timed."""

  def __init__(self, ours, *, num_steps, compiled=False):
    import plain_torch
    import torch

    model = ours.config["model"]
    if model["block"]["name"] != "gpt_bert" or model["prelude_layers"] or model["coda_layers"]:
      raise SystemExit("--against=torch knows looped_gpt_bert, looped_gpt_bert_paper and gpt_bert.")
    buckets = bucket_table(
      ours.batch.tokens_BT.shape[1],
      num_buckets=model["block"]["num_buckets"],
      max_distance=model["block"]["max_distance"],
    ).astype(np.int64)
    self._torch, self._ours, self._step = plain_torch, ours, 0
    self._device = "cuda" if torch.cuda.is_available() else "cpu"
    narrow = model["compute_dtype"] == "bfloat16"
    self._precision = torch.autocast(self._device, torch.bfloat16, enabled=narrow)
    self._batches = [self._batch(ours.task(step)) for step in range(num_steps)]
    self._model = plain_torch.LoopedGptBert(ours.first_params, model, buckets, compiled)
    self._model.to(self._device).train()
    ema_decay = ours.config["train"]["ema_decay"]
    self._lamb = plain_torch.Lamb(self._model, ours.config["optim"], ema_decay)
    self._rates = [float(ours.schedule(step)) for step in range(num_steps)]

  def _batch(self, task):
    import torch

    inputs = task.inputs
    see_BTS = visibility.visible(inputs.order_BT, inputs.segments_BT)
    arrays = (
      np.asarray(inputs.tokens_BT, np.int64),
      np.array(see_BTS[:, None]),
      np.asarray(task.targets_BT, np.int64),
      np.array(task.weight_BT),
    )
    return [torch.tensor(array, device=self._device) for array in arrays]

  def __call__(self):
    z_loss_weight = self._ours.config["objective"]["z_loss_weight"]
    with self._precision:
      loss = self._torch.loss(self._model, *self._batches[self._step], z_loss_weight)
    loss.backward()
    self._lamb.step(self._rates[self._step])
    self._step += 1
    return loss.item()

  def device_bytes(self):
    """The most a GPU held; None on a CPU."""
    import torch

    return torch.cuda.max_memory_allocated() if self._device == "cuda" else None


def peak_flops(config, tokens_N):
  """FLOP/s of a chain of the block's own widest products, the best of several."""
  width = config["model"]["embed_dim"]
  inner = config["model"]["block"].get("mlp_dim", 4 * width)
  dtype = jnp.dtype(config["model"]["compute_dtype"])
  key = jax.random.key(0)
  x_ND = jax.random.normal(key, (tokens_N, width), dtype)
  up_DF = jax.random.normal(key, (width, 2 * inner), dtype) / width**0.5
  down_FD = jax.random.normal(key, (2 * inner, width), dtype) / inner**0.5
  rounds = 10

  @jax.jit
  def chain(x_ND):
    return jax.lax.fori_loop(0, rounds, lambda _, x: (x @ up_DF) @ down_FD, x_ND)

  chain(x_ND).block_until_ready()
  times = []
  for _ in range(10):
    started = time.perf_counter()
    chain(x_ND).block_until_ready()
    times.append(time.perf_counter() - started)
  return rounds * 2 * 2 * tokens_N * width * 2 * inner / min(times)


def changed(config, assignment):
  """A copy of the config with `a.b=value` set."""
  path, _, text = assignment.partition("=")
  config = copy.deepcopy(config)
  *groups, name = path.split(".")
  group = config
  for part in groups:
    group = group[part]
  if name not in group:
    raise SystemExit(f"{path} is no field of this config; there are {sorted(group)}.")
  try:
    group[name] = ast.literal_eval(text)
  except (SyntaxError, ValueError):
    group[name] = text
  return config


def without_dropout(config):
  def off(tree):
    return {
      name: off(value) if isinstance(value, dict) else 0.0 if "dropout_rate" in name else value
      for name, value in tree.items()
    }

  return config | {"model": off(config["model"])}


def timed(step):
  started = time.perf_counter()
  step()
  return time.perf_counter() - started


def resident_bytes(field):
  """VmRSS, what the process holds, or VmHWM, the most it held; Linux."""
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def with_growth(step):
  """A step's result, and by how many bytes at most the process grew meanwhile."""
  pathlib.Path("/proc/self/clear_refs").write_text("5")
  before = resident_bytes("VmRSS")
  result = step()
  return result, resident_bytes("VmHWM") - before


def spread(values):
  return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def show(name, step, seconds, peak):
  tokens = step.batch.tokens_BT.size
  memory = "?" if step.temporary_bytes is None else f"{step.temporary_bytes / 1e9:.2f}"
  median = statistics.median(seconds)
  print(
    f"| {name} | {tokens / median:,.0f} | {tokens / min(seconds):,.0f} "
    f"| {step.flops / median / peak:.0%} | {step.flops / min(seconds) / peak:.0%} "
    f"| {memory} | {step.trace_s:.1f} + {step.compile_s:.1f} |"
  )


def show_compile(config, tokens_BT, *, lines=16):
  """Prints the compiler's own spans of time in the step's compilation, the longest first.

  Spans hold each other, and those of several threads add up.
  """
  jax.config.update("jax_enable_compilation_cache", False)
  with tempfile.TemporaryDirectory() as folder:
    ours = OurStep(config, tokens_BT, compile_trace=folder)
    (path,) = pathlib.Path(folder).rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
  total_s, times = collections.Counter(), collections.Counter()
  for span in events:
    # The interpreter's own begin with a dollar sign.
    if span.get("ph") == "X" and span["name"][0] != "$":
      total_s[span["name"]] += span["dur"] / 1e6
      times[span["name"]] += 1
  print(f"traced in {ours.trace_s:.1f} s, compiled in {ours.compile_s:.1f} s")
  for name, seconds in total_s.most_common(lines):
    print(f"{seconds:6.2f} s  {times[name]:5d} x {name}")


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", required=True)
  parser.add_argument("--batch", type=int, default=8, help="rows")
  parser.add_argument("--seq-len", type=int, default=128)
  parser.add_argument("--dtype", default="float32", help="model.compute_dtype")
  parser.add_argument("--set", action="append", default=[], metavar="A.B=VALUE")
  parser.add_argument("--against", default="", help="torch, torch-compile, or A.B=VALUE")
  parser.add_argument("--dropout", action="store_true", help="keep the config's dropout")
  parser.add_argument("--pairs", type=int, default=8)
  parser.add_argument("--profile-compile", action="store_true", help="what compiling consists of")
  args = parser.parse_args()
  path, _, form = args.config.partition(":")
  config = sibling(path, os.path.basename(path).removesuffix(".py"), form).to_dict()
  config["model"]["compute_dtype"] = args.dtype
  for assignment in args.set:
    config = changed(config, assignment)
  config["train"]["batch_size"] = args.batch
  config["data"]["seq_len"] = args.seq_len
  config, choice = rematerialised(config, vocab_size=config["tokenizer"]["vocab_size"])
  if choice:
    print(choice)
  if not args.dropout:
    config = without_dropout(config)
  rng = np.random.default_rng(0)
  shape = (args.batch, args.seq_len)
  tokens_BT = rng.integers(16, config["tokenizer"]["vocab_size"], shape).astype(np.int32)
  tokens_BT[:, 0] = 1

  if args.profile_compile:
    show_compile(config, tokens_BT)
    return
  peak = peak_flops(config, tokens_BT.size)
  ours = OurStep(config, tokens_BT)
  names, other = ("ours", args.against), None
  if args.against.startswith("torch"):
    compiled = args.against == "torch-compile"
    other = TorchStep(ours, num_steps=WARM_UP + args.pairs, compiled=compiled)
  elif args.against:
    other = OurStep(changed(config, args.against), tokens_BT)
  print(f"{args.config}, {args.batch} x {args.seq_len} tokens, {args.dtype}")
  growth = None
  for _ in range(WARM_UP):
    losses = [ours()]
    if isinstance(other, TorchStep):
      loss, grown = with_growth(other)
      losses, growth = [*losses, loss], growth or grown
    elif other is not None:
      losses.append(other())
    print("loss " + " and ".join(f"{loss:.5f}" for loss in losses))
    if args.against.startswith("torch") and not args.dropout and abs(losses[0] - losses[1]) > 1e-2:
      raise SystemExit("The losses differ: not the same mathematics.")
  a, b = [], []
  for _ in range(args.pairs):
    a.append(timed(ours))
    if other is not None:
      b.append(timed(other))
  print(f"peak of a dense product at these shapes: {peak / 1e9:,.0f} GFLOP/s")
  print("| | tokens/s median | best | share of peak median | best | temporary GB | compile s |")
  print("|---|---|---|---|---|---|---|")
  show("ours", ours, a, peak)
  if isinstance(other, OurStep):
    show(names[1], other, b, peak)
  elif other is not None:
    tokens = tokens_BT.size
    speeds = f"{tokens / statistics.median(b):,.0f} | {tokens / min(b):,.0f}"
    # Gradients and optimiser included; on a CPU it is by how much the first step grew the process.
    memory = other.device_bytes() or growth
    print(f"| {names[1]} | {speeds} | | | {memory / 1e9:.2f} | |")
  if other is not None:
    ratios = [theirs / mine for mine, theirs in zip(a, b, strict=True)]
    print(f"{names[1]} takes {spread(ratios)} times as long as ours, {args.pairs} pairs")


if __name__ == "__main__":
  main()
