"""What a cache saves in decoding, and what its cheaper policies cost in quality.

python benchmarks/decoding.py --config=configs/quickstart.py --workdir=runs/quickstart
python benchmarks/decoding.py --config=configs/looped_gpt_bert.py --speed-only

The first table needs a trained run: held-out rows are read 32 tokens at once and then one by one
with each policy; "loss" is that of the tokens read one by one, "KL" compares each prediction with
the full cache's. The second times one token with the cache against reading everything again, side
by side, medians of rounds; it works with random weights. Without XLA's flags changed, on whatever
devices jax finds first.
"""

import argparse
import functools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm import jobs, visibility
from looped_lm.configuration import sibling
from looped_lm.models import looped
from looped_lm.nn import cache
from looped_lm.nn.cache import Policy
from looped_lm.nn.decode import Decoding
from looped_lm.train import checkpoint
from looped_lm.types import Continuation, Inputs

PROMPT = 32
POLICIES = {
  "full": Policy(),
  "every 2": Policy(name="every", budget=2),
  "last": Policy(name="last"),
  "mean": Policy(name="mean"),
}


def quality(model, params, tokens_BT, num_loops):
  """A line per policy: slots, bytes of a row, loss, mean KL from the full cache."""
  batch, length = tokens_BT.shape
  target_BT = tokens_BT[:, PROMPT + 1 :]
  reference = None
  for name, policy in POLICIES.items():
    if policy.budget >= num_loops:
      continue
    decoding = Decoding(num_loops=num_loops, policy=policy)

    @jax.jit
    def read(params, past, tokens_BT, start, decoding=decoding):
      chunk = Continuation(
        tokens_BT=tokens_BT, start=start, real_BS=jnp.ones((batch, length), bool)
      )
      decoded, past = model.decode(params, past, chunk, decoding)
      logits = model.readout(params, decoded.hidden_BTD[:, -1:], jnp.arange(batch))[:, 0]
      return jax.nn.log_softmax(logits), past

    past = model.make_cache(params, batch, length, decoding)
    size = cache.num_bytes(past) // batch
    _, past = read(params, past, tokens_BT[:, :PROMPT], jnp.int32(0))
    found = []
    for place in range(PROMPT, length - 1):
      log_p_BV, past = read(params, past, tokens_BT[:, place : place + 1], jnp.int32(place))
      found.append(log_p_BV)
    log_p = jnp.stack(found, axis=1)
    loss = -float(jnp.take_along_axis(log_p, target_BT[..., None], axis=-1).mean())
    if reference is None:
      reference = log_p
    nats = float((jnp.exp(reference) * (reference - log_p)).sum(-1).mean())
    print(f"| {name:8} | {policy.slots(num_loops):5} | {size:>13,} | {loss:.4f} | {nats:.5f} |")


def speed(model, params, length, rounds, num_loops):
  """Milliseconds per token with a full cache of `length` places, and by reading all again."""
  decoding = Decoding(num_loops=num_loops)
  tokens_BT = jnp.full((1, length), 20, jnp.int32)
  row_B = jnp.zeros((1,), jnp.int32)

  @functools.partial(jax.jit, donate_argnums=1)
  def cached(params, past, start):
    chunk = Continuation(
      tokens_BT=tokens_BT[:, :1], start=start, real_BS=jnp.ones((1, length), bool)
    )
    decoded, past = model.decode(params, past, chunk, decoding)
    return model.readout(params, decoded.hidden_BTD, row_B)[:, 0].argmax(-1), past

  @jax.jit
  def again(params):
    inputs = Inputs(
      tokens_BT=tokens_BT,
      order_BT=visibility.causal(tokens_BT),
      segments_BT=jnp.ones_like(tokens_BT),
      row_B=row_B,
    )
    hidden_BTD = model.encode(params, inputs, num_loops=num_loops).hidden_BTD
    return model.readout(params, hidden_BTD[:, -1:], row_B)[:, 0].argmax(-1)

  past = model.make_cache(params, 1, length, decoding)
  last = jnp.int32(length - 1)
  token, past = cached(params, past, last)
  jax.block_until_ready((token, again(params)))
  ours, theirs = [], []
  for _ in range(rounds):
    started = time.perf_counter()
    for _ in range(8):
      token, past = cached(params, past, last)
      token.block_until_ready()
    ours.append((time.perf_counter() - started) / 8)
    started = time.perf_counter()
    again(params).block_until_ready()
    theirs.append(time.perf_counter() - started)
  ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
  print(
    f"| {length:6} | {1e3 * statistics.median(ours):8.1f} | {1e3 * statistics.median(theirs):8.1f} "
    f"| {statistics.median(ratios):5.1f} ({min(ratios):.1f} to {max(ratios):.1f}) |"
  )


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--config", required=True)
  parser.add_argument("--workdir")
  parser.add_argument("--speed-only", action="store_true")
  parser.add_argument("--rows", type=int, default=32)
  parser.add_argument("--rounds", type=int, default=9)
  parser.add_argument("--float32", action="store_true", help="compute in float32")
  arguments = parser.parse_args()
  path, _, form = arguments.config.partition(":")
  name = path.rsplit("/", 1)[-1].removesuffix(".py")
  config = sibling(path, name, form).to_dict()
  if arguments.float32:
    config["model"]["compute_dtype"] = "float32"
  if arguments.speed_only:
    model = looped.build(config["model"], vocab_size=config["tokenizer"]["vocab_size"])
    params = jax.jit(model.init)(jax.random.key(0))
  else:
    experiment = jobs.build(config)
    model = experiment.model
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = checkpoint.restore_params(arguments.workdir, shapes)
    held_out = experiment.prepared.validation
    rows = np.arange(min(arguments.rows, held_out.num_rows))
    tokens_BT = jnp.asarray(held_out.gather(rows)[0])
    print("| policy | slots | bytes per text | loss, nats | KL, nats |\n|---|---|---|---|---|")
    quality(model, params, tokens_BT, model.num_loops)
  print("\n| tokens | cached, ms | again, ms | ratio |\n|---|---|---|---|")
  for length in (128, 256):
    speed(model, params, length, arguments.rounds, model.num_loops)


if __name__ == "__main__":
  main()
