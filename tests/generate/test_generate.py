"""Continuations and fills, with a model of random weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import visibility
from looped_lm.data import tokenizer as tokenizers
from looped_lm.errors import UserError
from looped_lm.generate.continuation import Generator, _Row
from looped_lm.generate.infill import Infiller
from looped_lm.generate.sampling import Sampling
from looped_lm.models import looped
from looped_lm.nn.decode import Decoding
from looped_lm.types import Inputs

TEXTS = ["The old dog sees the small cat.", "A cat sat on the mat, and 12 dogs ran."] * 30
PROMPTS = ["The old dog", "A", "", "the small cat sees the old dog on the mat and"]


@pytest.fixture(scope="module")
def subject(tiny_config):
  tokenizer = tokenizers.train(TEXTS, vocab_size=300, min_frequency=2, add_prefix_space=True)
  settings = tiny_config()["model"] | {"num_loops": 2}
  model = looped.build(settings, vocab_size=tokenizer.vocab_size)
  params = jax.jit(model.init)(jax.random.key(0))
  return {"model": model, "params": params, "tokenizer": tokenizer}


@pytest.fixture(scope="module")
def greedy(subject):
  return Generator(
    **subject,
    sampling=Sampling(temperature=0.0),
    decoding=Decoding(num_loops=2),
    max_new_tokens=5,
  )


@pytest.fixture(scope="module")
def batch(greedy):
  return greedy.run(PROMPTS)


def test_a_greedy_continuation_is_the_argmax_of_the_full_forward(subject, batch):
  model, params, tokenizer = subject["model"], subject["params"], subject["tokenizer"]

  @jax.jit
  def next_logits(tokens_BT):
    inputs = Inputs(
      tokens_BT=tokens_BT,
      order_BT=visibility.causal(tokens_BT),
      segments_BT=jnp.ones_like(tokens_BT),
      row_B=jnp.zeros((1,), jnp.int32),
    )
    return model.readout(params, model.encode(params, inputs).hidden_BTD, inputs.row_B)[0]

  for prompt, continued in zip(PROMPTS, batch[0], strict=True):
    ids = [tokenizer.bos_id, *tokenizer.encode(prompt).tolist()]
    padded = np.zeros((1, 40), np.int32)
    for token in continued.ids:
      padded[0, : len(ids)] = ids  # What comes later is invisible to a causal row.
      logits = np.array(next_logits(jnp.asarray(padded)))[len(ids) - 1]
      logits[[i for i in tokenizer.special_ids if i != tokenizer.eos_id]] = -np.inf
      assert int(logits.argmax()) == token
      ids.append(token)
    assert continued.text == tokenizer.decode(ids[1:])[len(tokenizer.decode(ids[1:-5])) :]
    assert continued.finished == "length"
    assert continued.loops == (2,) * 5


def test_a_batch_says_what_each_prompt_says_alone(greedy, batch):
  for prompt, continued in zip(PROMPTS, batch[0], strict=True):
    assert greedy.run([prompt])[0] == [continued]


def test_what_streams_is_the_text(greedy, batch):
  pieces = []
  found, _ = greedy.run(PROMPTS[:1], on_text=lambda row, new: pieces.append((row, new)))
  assert "".join(new for _, new in pieces) == found[0].text == batch[0][0].text
  assert {row for row, _ in pieces} == {0}


def test_the_cost_counts_tokens_and_bytes(batch):
  cost = batch[1]
  assert cost.new_tokens == 20
  # Keys and values of 1 layer x 2 loops x 4 rows x (32 + 5) places x 32 channels of 4 bytes.
  assert cost.cache_bytes == 2 * 1 * 2 * 4 * 37 * 32 * 4
  assert cost.timed_tokens == 12
  assert cost.tokens_per_second > 0


@pytest.mark.slow
def test_draws_depend_on_the_seed_and_the_prompt_s_index_alone(subject):
  generator = Generator(
    **subject,
    sampling=Sampling(temperature=2.0),
    decoding=Decoding(num_loops=2),
    max_new_tokens=5,
  )

  def run(seed, prompts, first_index=0):
    generator.seed = seed
    return [continued.ids for continued in generator.run(prompts, first_index=first_index)[0]]

  both = run(0, ["A cat", "A cat"])
  assert both[0] != both[1]
  assert run(0, ["A cat"], first_index=1) == both[1:]
  assert run(1, ["A cat"]) != both[:1]


def test_no_special_but_the_end_is_ever_drawn(subject, batch):
  drawn = {token for continued in batch[0] for token in continued.ids}
  assert not drawn & set(subject["tokenizer"].special_ids)


class Letters:
  """A tokenizer of one letter per id; "é" is two halves, 98 and 99."""

  eos_id = 0

  def decode(self, ids):
    text = "".join(chr(i) if i not in (98, 99) else {98: "(", 99: ")"}[i] for i in ids)
    return text.replace("()", "é").replace("(", "\ufffd")


def grow(ids, *, stop=(), most=20):
  row = _Row(Letters(), [ord("x")], stop, most)
  return [row.add(token, 1) for token in ids], row.result()


def test_a_stop_string_ends_a_text_and_is_held_back_while_it_may_come():
  shown, result = grow(map(ord, "uv-w--z"), stop=("--",))
  # The first dash might begin a stop; it is shown once it does not.
  assert shown[:6] == ["u", "v", "", "-w", "", ""]
  assert (result.text, result.finished) == ("uv-w", "stop")


def test_half_a_character_is_held_back():
  shown, result = grow([ord("u"), 98, 99, ord("v")], most=4)
  assert shown == ["u", "", "é", "v"]
  assert (result.text, result.finished) == ("uév", "length")


def test_the_end_of_text_shows_what_was_held_back():
  shown, result = grow([ord("u"), ord("-"), 0], stop=("--",))
  assert shown == ["u", "", "-"]
  assert (result.text, result.finished) == ("u-", "end of text")
  assert result.ids == (ord("u"), ord("-"))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"max_new_tokens": 0}, r"generate.max_new_tokens=0 must be at least 1"),
    ({"stop": ("",)}, r"generate.stop holds an empty string"),
  ],
)
def test_a_wrong_setting_is_named(subject, changes, message):
  settings = {
    "sampling": Sampling(),
    "decoding": Decoding(num_loops=2),
    "max_new_tokens": 5,
    **changes,
  }
  with pytest.raises(UserError, match=message):
    Generator(**subject, **settings)


def test_a_prompt_longer_than_the_positions_is_one_line(subject, tiny_config):
  settings = tiny_config("grt")["model"]
  limited = looped.build(settings, vocab_size=300)
  generator = Generator(
    **(subject | {"model": limited}),
    sampling=Sampling(),
    decoding=Decoding(num_loops=2),
    max_new_tokens=20,
  )
  with pytest.raises(UserError, match=r"has 17 tokens with <s>, and 20 new ones .* 32 positions"):
    generator.run(["A cat sat on the mat, and 12 dogs ran."])


@pytest.fixture(scope="module")
def infiller(subject):
  return Infiller(**subject, sampling=Sampling(temperature=0.0), num_loops=2)


def test_the_surest_mask_is_filled_first_and_seen_by_the_others(subject, infiller):
  model, params, tokenizer = subject["model"], subject["params"], subject["tokenizer"]
  filled = infiller.run(["The<mask> dog sees the<mask>cat."])[0]
  ids = [tokenizer.bos_id, *tokenizer.encode_with_specials("The<mask> dog sees the<mask>cat.")]
  masks = [i for i, token in enumerate(ids) if token == tokenizer.mask_id]
  assert len(masks) == len(filled.fills) == 2

  def log_p(ids):
    tokens = jnp.asarray([ids])
    inputs = Inputs(
      tokens_BT=tokens,
      order_BT=visibility.bidirectional(tokens),
      segments_BT=jnp.ones_like(tokens),
      row_B=jnp.zeros((1,), jnp.int32),
    )
    logits = model.readout(params, model.encode(params, inputs).hidden_BTD, inputs.row_B)[0]
    logits = logits.at[:, jnp.asarray(sorted(tokenizer.special_ids))].set(-jnp.inf)
    return np.asarray(jax.nn.log_softmax(logits))

  first = log_p(ids)
  order = sorted(masks, key=lambda place: -first[place - 1].max())
  expected = {}
  for place in order:
    now = log_p(ids)[place - 1]
    ids[place] = int(now.argmax())
    expected[place] = float(np.exp(now.max()))
  assert filled.text == tokenizer.decode(ids[1:])
  assert "<mask>" not in filled.text
  np.testing.assert_allclose(filled.probabilities, [expected[p] for p in masks], rtol=1e-4)


def test_a_text_without_a_mask_is_refused(infiller):
  with pytest.raises(UserError, match=r"has no <mask> to fill"):
    infiller.run(["The dog."])
