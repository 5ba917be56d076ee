"""The widest model of a config whose training step fits a device, by the compiler's own account.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu \
      python benchmarks/largest_model.py --config=configs/looped_gpt_bert.py --rows=8

Nothing is run or allocated: the step is compiled for that many devices, as `--mode=describe
--compiled` does, and width is searched by halving; heads keep their size and the feed-forward its
ratio. A tenth of the memory is left free. `--mesh` splits the state over all devices. The compiler
is the CPU's, which fuses less than those of accelerators. Results: docs/scaling.md.
"""

import argparse
import copy
import functools
import os

import jax

from looped_lm.configuration import sibling
from looped_lm.jobs.experiment import lowered_step
from looped_lm.models import looped
from looped_lm.scaling import flops

STEP = 128  # Widths are multiples of it.
SHARE = 0.9


def widened(config, width):
  """The config at another width."""
  config = copy.deepcopy(config)
  model = config["model"]
  block, before = model["block"], model["embed_dim"]
  model["embed_dim"] = width
  for name in ("num_heads", "num_kv_heads"):
    if name in block:
      block[name] = width // (before // block[name])
  block["mlp_dim"] = block["mlp_dim"] * width // before // 64 * 64
  return config


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", required=True)
  parser.add_argument("--rows", type=int, default=8, help="of a device at a time")
  parser.add_argument("--mesh", action="store_true", help="fsdp over all devices, else pmap")
  parser.add_argument("--remat", default="full")
  parser.add_argument("--gigabytes", type=float, nargs="+", default=[16, 32, 80, 141])
  args = parser.parse_args()
  path, _, form = args.config.partition(":")
  config = sibling(path, os.path.basename(path).removesuffix(".py"), form).to_dict()
  devices = jax.device_count()
  config["model"]["remat"] = args.remat
  config["train"] |= {"batch_size": args.rows * devices, "micro_batches": 1}
  if args.mesh:
    config["parallel"] |= {"strategy": "mesh", "fsdp": devices}
  vocab_size = config["tokenizer"]["vocab_size"]

  @functools.cache
  def needed(width):
    lowered = lowered_step(widened(config, width), vocab_size=vocab_size)
    told = lowered.compile().memory_analysis()
    new = told.output_size_in_bytes - told.alias_size_in_bytes
    return (told.argument_size_in_bytes + told.temp_size_in_bytes + new) / 1e9

  how = "mesh, fsdp" if args.mesh else "pmap"
  print(f"{args.config}, {how} on {devices} devices, {args.rows} rows each, remat {args.remat}")
  print("| GB | width | parameters | GB needed |\n|---|---|---|---|")
  for gigabytes in args.gigabytes:
    fits, fails = 0, 1
    while needed(fails * STEP) <= SHARE * gigabytes:
      fits, fails = fails, 2 * fails
    while fails - fits > 1:
      middle = (fits + fails) // 2
      if needed(middle * STEP) <= SHARE * gigabytes:
        fits = middle
      else:
        fails = middle
    if not fits:
      print(f"| {gigabytes:g} | not {STEP} | | {needed(STEP):.1f} |", flush=True)
      continue
    model = looped.build(widened(config, fits * STEP)["model"], vocab_size=vocab_size)
    count = flops.count_parameters(flops.abstract_params(model)).total
    told = f"{fits * STEP:,} | {count / 1e6:,.0f}M | {needed(fits * STEP):.1f}"
    print(f"| {gigabytes:g} | {told} |", flush=True)


if __name__ == "__main__":
  main()
