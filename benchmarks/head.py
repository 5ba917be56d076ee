"""What the output head costs, on the supervised positions in chunks against all positions at once.

    python benchmarks/head.py --chunks 128 256 512 [--objective mntp] [--vocab 32768]

The head alone is timed: its loss and gradients, given the hidden states. The programs take turns,
A B A B …, in one process; a ratio is that of neighbours, and its median and range are printed, so
that other load on the machine tells little. Memory is what the compiler reports for temporaries.
Tokens are random; of a causal row all positions but the last are supervised. For the whole step:

    python benchmarks/train_step.py --against=objective.chunk_tokens=0

Results: docs/performance.md.
"""

import argparse
import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp

from looped_lm.configuration import sibling
from looped_lm.jobs.experiment import picked
from looped_lm.models import looped
from looped_lm.plugins import load
from looped_lm.types import Batch, Output, Vocabulary


def programs(config, *, rows, length, chunks):
  """Compiles a program per chunk size, 0 first: {size: (compiled, arguments)}."""
  vocab_size = config["tokenizer"]["vocab_size"]
  model = looped.build(config["model"], vocab_size=vocab_size)
  params = jax.jit(model.init)(jax.random.key(1))
  tokens_BT = jax.random.randint(jax.random.key(0), (rows, length), 16, vocab_size)
  batch = Batch(tokens_BT=tokens_BT, segments_BT=jnp.ones_like(tokens_BT), row_B=jnp.arange(rows))
  vocabulary = Vocabulary(size=vocab_size, num_special=16, bos_id=1, pad_id=3, mask_id=4)
  objective = picked(
    load("objectives", config["objective"]["name"]).Objective,
    {**config["objective"], "vocabulary": vocabulary},
  )
  task = objective.draw(batch, key=jax.random.key(2), progress=0.0)
  task = objective.weigh(task, total=lambda x: x)
  share = float((task.weight_BT != 0).mean())
  print(f"supervised: {share:.2f} of {rows} x {length} positions")
  hidden_BTD = jax.random.normal(jax.random.key(3), (rows, length, config["model"]["embed_dim"]))
  arguments = (params, hidden_BTD, task)

  made = {}
  for size in (0, *chunks):
    function = head_alone(model, dataclasses.replace(objective, chunk_tokens=size))
    began = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - began
    jax.block_until_ready(compiled(*arguments))
    memory = compiled.memory_analysis().temp_size_in_bytes / 1e6
    print(f"chunks of {size or 'all'}: {memory:,.0f} MB temporaries, compiled in {seconds:.1f} s")
    made[size] = (compiled, arguments)
  return made


def head_alone(model, objective):
  """(params, hidden, task) -> the loss and its gradients by the first two."""

  def loss(params, hidden_BTD, task):
    given = dataclasses.replace(model, encode=lambda *_, **__: Output(hidden_BTD=hidden_BTD))
    loss = objective.loss(given, params, task, key=jax.random.key(4))
    return loss.sum_nats, loss.metrics

  return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)


def seconds_of(program):
  compiled, arguments = program
  began = time.perf_counter()
  jax.block_until_ready(compiled(*arguments))
  return time.perf_counter() - began


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", default="configs/looped_gpt_bert.py")
  parser.add_argument("--chunks", type=int, nargs="+", default=[256])
  parser.add_argument("--objective", default="", help="in place of the config's")
  parser.add_argument("--rows", type=int, default=8)
  parser.add_argument("--length", type=int, default=128)
  parser.add_argument("--vocab", type=int, default=0, help="0 takes the config's")
  parser.add_argument("--dtype", default="float32", help="model.compute_dtype")
  parser.add_argument("--pairs", type=int, default=12)
  flags = parser.parse_args()
  path, _, form = flags.config.partition(":")
  config = sibling(path, path.rsplit("/", 1)[-1].removesuffix(".py"), form).to_dict()
  config["model"]["compute_dtype"] = flags.dtype
  config["tokenizer"]["vocab_size"] = flags.vocab or config["tokenizer"]["vocab_size"]
  config["objective"]["name"] = flags.objective or config["objective"]["name"]
  made = programs(config, rows=flags.rows, length=flags.length, chunks=flags.chunks)
  times = {size: [] for size in made}
  for _ in range(flags.pairs):
    for size, program in made.items():
      times[size].append(seconds_of(program))
  print("| chunk | s, median | all at once / chunks, median (range) |\n|---|---|---|")
  for size, seconds in times.items():
    ratios = [whole / ours for whole, ours in zip(times[0], seconds, strict=True)]
    print(
      f"| {size or 'all'} | {statistics.median(seconds):.3f} | {statistics.median(ratios):.2f} "
      f"({min(ratios):.2f} to {max(ratios):.2f}) |"
    )


if __name__ == "__main__":
  main()
