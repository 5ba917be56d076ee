"""What single decisions save of a training step, on the config's own shapes.

    python benchmarks/parts_of_a_step.py --config=configs/looped_gpt_bert.py --batch=8

What runs once per step, and would run in every loop, is timed alone, forward and backward, and
given as a share of the whole step per further loop. The other figures are medians of pairs that
take turns. Results: docs/performance.md.
"""

import argparse
import os
import tempfile

import jax
from jax.experimental.compilation_cache import compilation_cache
import jax.numpy as jnp
import numpy as np
import optax
from train_step import OurStep, changed, spread, timed, without_dropout

from looped_lm import visibility
from looped_lm.configuration import sibling


def called(function, *arguments):
  """A call to be timed: compiled, run once, and waited for."""
  compiled = jax.jit(function)
  jax.block_until_ready(compiled(*arguments))
  return lambda: jax.block_until_ready(compiled(*arguments))


def best(call, times=10):
  return min(timed(call) for _ in range(times))


def turns(a, b, times=15):
  """The ratios of b's time to a's."""
  return [timed(b) / timed(a) for _ in range(times)]


def backward(function):
  """A function and its gradients, for a sum of squares."""
  return jax.grad(lambda *x: (function(*x) ** 2).sum(), argnums=(0, 1))


def compile_seconds(config, tokens_BT):
  """With an empty persistent cache, and with what that left there."""
  with tempfile.TemporaryDirectory() as folder:
    jax.config.update("jax_compilation_cache_dir", folder)
    found = []
    for _ in range(2):
      jax.clear_caches()
      found.append(OurStep(config, tokens_BT).compile_s)
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
  return found


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", required=True, help="one with GPT-BERT blocks")
  parser.add_argument("--batch", type=int, default=8, help="rows")
  parser.add_argument("--seq-len", type=int, default=128)
  parser.add_argument("--pairs", type=int, default=5, help="of whole steps")
  args = parser.parse_args()
  path, _, form = args.config.partition(":")
  config = sibling(path, os.path.basename(path).removesuffix(".py"), form).to_dict()
  config = without_dropout(changed(config, "model.remat=attention"))
  model, vocab_size = config["model"], config["tokenizer"]["vocab_size"]
  rng = np.random.default_rng(0)
  tokens_BT = rng.integers(16, vocab_size, (args.batch, args.seq_len)).astype(np.int32)

  cold_s, warm_s = compile_seconds(config, tokens_BT)
  step = OurStep(config, tokens_BT)
  step()
  step_s = best(step, 4)
  print(f"{args.config}, {args.batch} x {args.seq_len} tokens, a step at its best {step_s:.2f} s")
  print(f"compiling {cold_s:.1f} s, from the persistent cache {warm_s:.1f} s")
  donated = step.compiled.memory_analysis().alias_size_in_bytes
  parameters = sum(x.size for x in jax.tree.leaves(step.first_params))
  print(f"donated state: {donated / 1e6:.0f} MB, {donated / parameters:.1f} bytes a parameter")

  def update(params, state):
    # The parameters in place of gradients, which lie as they do.
    return optax.apply_updates(params, step.tx.update(params, state, params)[0])

  params = jax.tree.map(jnp.asarray, step.first_params)
  share = best(called(update, params, step.state.opt_state)) / step_s
  print(f"optimiser update: {share:.1%} of the step")

  width, layers = model["embed_dim"], model["core_layers"]
  x_BTD = jax.random.normal(jax.random.key(0), (*tokens_BT.shape, width))
  up_DF = jax.random.normal(jax.random.key(1), (width, 2 * model["block"]["mlp_dim"]))
  flat = called(backward(lambda x, w: x.reshape(-1, width) @ w), x_BTD, up_DF)
  batched = called(backward(lambda x, w: jnp.einsum("BTD,DF->BTF", x, w)), x_BTD, up_DF)
  print(f"a dense layer on [B, T, D] takes {spread(turns(flat, batched))} of it on [B T, D]")

  table_PD = jax.random.normal(jax.random.key(2), (2 * model["block"]["num_buckets"] - 1, width))
  qk_DE = jax.random.normal(jax.random.key(3), (width, 2 * width))
  share = layers * best(called(backward(jnp.matmul), table_PD, qk_DE), 50) / step_s
  print(f"projecting the position table: {share:.2%} of the step for each further loop")
  seen = called(visibility.visible, visibility.bidirectional(tokens_BT), np.ones_like(tokens_BT))
  print(f"the mask: {layers * best(seen, 50) / step_s:.2%} of the step for each further loop")

  def waiting():
    for _ in range(4):
      step()

  def ahead():
    for _ in range(4):
      step.state, metrics = step.compiled(step.state, step.batch)
    float(metrics["loss_nats"][0])

  ratios = turns(ahead, waiting, args.pairs)
  print(f"waiting for the loss after each step: {spread(ratios)} of going ahead")
  other = "gather" if model["block"]["position_lookup"] == "one_hot" else "one_hot"
  rival = OurStep(changed(config, f"model.block.position_lookup={other}"), tokens_BT)
  rival()
  print(f"position terms by {other}: {spread(turns(step, rival, args.pairs))} of the config's way")


if __name__ == "__main__":
  main()
