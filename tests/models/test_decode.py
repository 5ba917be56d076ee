"""Reading tokens after others gives what reading all at once gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import visibility
from looped_lm.errors import UserError
from looped_lm.nn.cache import Policy
from looped_lm.nn.decode import Decoding
from looped_lm.nn.halting import Halting
from looped_lm.types import Continuation, Inputs

LENGTH = 10
# Texts of 10 and 7 tokens, the shorter one behind three pads.
PADS = np.array([0, 3])
REAL = np.arange(LENGTH)[None, :] >= PADS[:, None]
TOKENS = np.random.default_rng(0).integers(16, 60, (2, LENGTH)).astype(np.int32)


def at_once(model, params, tokens_BT, num_loops):
  """Hidden vectors of whole texts without a cache."""
  tokens_BT = jnp.asarray(tokens_BT)
  inputs = Inputs(
    tokens_BT=tokens_BT,
    order_BT=visibility.causal(tokens_BT),
    segments_BT=jnp.ones_like(tokens_BT),
    row_B=jnp.arange(len(tokens_BT), dtype=jnp.int32),
  )
  encode = jax.jit(lambda params: model.encode(params, inputs, num_loops=num_loops).hidden_BTD)
  return np.asarray(encode(params))


def in_parts(model, params, lengths, decoding, *, tokens_BT=TOKENS, real_BT=REAL, capacity=12):
  """Hidden vectors and loops from chunks of some lengths."""
  batch = len(tokens_BT)
  cache = model.make_cache(params, batch, capacity, decoding)
  step = jax.jit(lambda params, cache, chunk: model.decode(params, cache, chunk, decoding))
  hidden, loops, start = [], [], 0
  for length in lengths:
    real_BS = np.zeros((batch, capacity), bool)
    real_BS[:, : start + length] = real_BT[:, : start + length]
    chunk = Continuation(
      tokens_BT=jnp.asarray(tokens_BT[:, start : start + length]),
      start=jnp.int32(start),
      real_BS=jnp.asarray(real_BS),
    )
    decoded, cache = step(params, cache, chunk)
    hidden.append(decoded.hidden_BTD)
    loops.append(decoded.loops_BT)
    start += length
  return np.concatenate(hidden, axis=1), np.concatenate(loops, axis=1)


def test_cached_decoding_is_the_full_forward(build, form):
  model, params = build(form)
  decoding = Decoding(num_loops=4)
  ours, loops = in_parts(model, params, [6, 1, 1, 1, 1], decoding)
  np.testing.assert_array_equal(loops, np.where(REAL, 4, 0))
  for row, pads in enumerate(PADS):
    theirs = at_once(model, params, TOKENS[row : row + 1, pads:], 4)[0]
    np.testing.assert_allclose(ours[row, pads:], theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.slow
def test_with_x64_it_is_in_float64(build, x64):
  model, params = build("gpt_bert")
  params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
  ours, _ = in_parts(model, params, [6, 1, 1, 1, 1], Decoding(num_loops=4))
  theirs = at_once(model, params, TOKENS[:1], 4)[0]
  np.testing.assert_allclose(ours[0], theirs, atol=1e-12 * np.abs(theirs).max())


# Thresholds at which some tokens of each model halt early and others late.
HALTINGS = [
  ("gpt_bert", Halting(name="state_change", threshold=0.08)),
  ("parcae", Halting(name="kl", threshold=0.0055, min_loops=2)),
  ("gpt_bert", Halting(name="kl", threshold=0.0015)),
  ("gpt_bert", Halting(name="argmax_stable", patience=4)),
  ("parcae", Halting(name="state_change", threshold=0.123)),
  ("parcae", Halting(name="entropy", threshold=3.85)),
  ("grt", Halting(name="entropy", threshold=4.05)),
  ("hyper_connections", Halting(name="state_change", threshold=0.25)),
  ("sandwich", Halting(name="kl", threshold=0.05)),
  ("exit_gate", Halting(name="exit_gate", threshold=0.97)),
]


@pytest.mark.parametrize(
  ("form", "halting"),
  [
    pytest.param(*case, id=f"{case[0]}-{case[1].name}", marks=pytest.mark.nightly if place else ())
    for place, case in enumerate(HALTINGS)
  ],
)
def test_tokens_that_halt_are_the_same_one_by_one_all_at_once_and_alone(build, form, halting):
  model, params = build(form)
  # More loops than any token takes, so that tokens read together do not all run as long.
  decoding = Decoding(num_loops=12, halting=halting)
  ours, loops = in_parts(model, params, [4, 1, 1, 1, 1, 1, 1], decoding)
  own = loops[REAL]
  assert own.min() < own.max(), f"all tokens halt together: {own}"
  assert (loops[~REAL] == 0).all()
  whole, whole_loops = in_parts(model, params, [LENGTH], decoding)
  np.testing.assert_array_equal(loops, whole_loops)
  for row, pads in enumerate(PADS):
    scale = np.abs(whole[row, pads:]).max()
    np.testing.assert_allclose(ours[row, pads:], whole[row, pads:], atol=1e-5 * scale)
    alone, alone_loops = in_parts(
      model,
      params,
      [LENGTH - pads],
      decoding,
      tokens_BT=TOKENS[row : row + 1, pads:],
      real_BT=REAL[row : row + 1, pads:],
    )
    np.testing.assert_array_equal(alone_loops[0], loops[row, pads:])
    np.testing.assert_allclose(alone[0], whole[row, pads:], atol=1e-5 * scale)


def test_a_halted_token_s_later_keys_come_from_its_last_state(build):
  model, params = build("gpt_bert")
  token = Continuation(
    tokens_BT=jnp.full((1, 1), 1), start=jnp.int32(0), real_BS=jnp.ones((1, 1), bool)
  )

  def keys(halting):
    decoding = Decoding(num_loops=12, halting=halting)
    read = jax.jit(lambda params, cache: model.decode(params, cache, token, decoding))
    decoded, cache = read(params, model.make_cache(params, 1, 1, decoding))
    return int(decoded.loops_BT[0, 0]), jax.tree.map(np.asarray, cache["cache"]["core"])

  took, halted = keys(HALTINGS[0][1])
  _, free = keys(Halting())
  assert 2 < took < 10
  for ours, theirs in zip(jax.tree.leaves(halted), jax.tree.leaves(free), strict=True):
    np.testing.assert_allclose(ours[: took + 1], theirs[: took + 1], atol=1e-5)
    assert np.abs(theirs[took] - theirs[took - 1]).max() > 1e-3
    for later in ours[took:]:
      np.testing.assert_array_equal(later, ours[took])


@pytest.mark.slow
def test_policies_share_slots_and_are_not_the_full_one(build):
  model, params = build("gpt_bert")
  theirs = in_parts(model, params, [6, 1, 1, 1, 1], Decoding(num_loops=4))[0]
  for policy, slots in [
    (Policy(name="last"), 1),
    (Policy(name="every", budget=2), 2),
    (Policy(name="mean"), 1),
  ]:
    decoding = Decoding(num_loops=4, policy=policy)
    shapes = jax.eval_shape(lambda: model.make_cache(params, 2, 12, decoding))  # noqa: B023
    assert {leaf.shape[0] for leaf in jax.tree.leaves(shapes["cache"])} == {slots}
    ours = in_parts(model, params, [6, 1, 1, 1, 1], decoding)[0]
    # The prompt is read at once, loop by loop, with every policy.
    np.testing.assert_allclose(ours[REAL][:6], theirs[REAL][:6], atol=1e-4)
    assert np.abs(ours[:, 6:] - theirs[:, 6:]).max() > 1e-3


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: Policy(name="some"), r"generate.cache='some' is none of"),
    (lambda: Policy(name="every"), r"generate.cache_budget=0 must be at least 1"),
    (lambda: Policy(name="full", budget=2), r"cache_budget=2 .* cache='full'"),
    (lambda: Halting(name="sometimes"), r"generate.halting='sometimes' is none of"),
    (lambda: Halting(name="kl"), r"generate.halting_threshold=0.0 must be above 0"),
    (lambda: Halting(name="exit_gate", threshold=1.5), r"=1.5 is a probability"),
    (lambda: Halting(name="argmax_stable", patience=1), r"halting_patience=1 must be at least 2"),
    (lambda: Halting(name="entropy", threshold=1.0, min_loops=0), r"min_loops=0 must be"),
    (lambda: Decoding(num_loops=0), r"generate.num_loops=0 must be at least 1"),
    (
      lambda: Decoding(num_loops=2, halting=Halting(min_loops=3)),
      r"halting_min_loops=3 must be at most the 2 loops",
    ),
  ],
)
def test_a_wrong_setting_is_named(make, message):
  with pytest.raises(UserError, match=message):
    make()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_loop_copies_widens_or_turns_the_cache(build, dtype):
  model, params = build("gpt_bert" if dtype == "float32" else "gpt_bert_bfloat16")
  decoding = Decoding(num_loops=8)
  cache = model.make_cache(params, 1, 1024, decoding)
  chunk = Continuation(
    tokens_BT=jnp.full((1, 1), 20, jnp.int32),
    start=jnp.int32(5),
    real_BS=jnp.ones((1, 1024), bool),
  )
  step = jax.jit(
    lambda params, cache: model.decode(params, cache, chunk, decoding), donate_argnums=1
  )
  program = step.lower(params, cache).compile()
  arrays = jax.tree.leaves(cache["cache"])
  slots, _, heads, _, head_dim = arrays[0].shape
  lines = program.as_text().splitlines()
  assert any(f"[{heads},1024,{head_dim}]" in line for line in lines)
  if dtype == "float32":
    assert program.memory_analysis().temp_size_in_bytes < max(x.nbytes for x in arrays)
    assert not [line for line in lines if f"= f32[{heads},{head_dim},1024]" in line]
  else:
    assert arrays[0].dtype.itemsize == 2
    assert not [line for line in lines if f"f32[{slots},1,{heads},1024,{head_dim}]" in line]
