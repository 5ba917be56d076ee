"""A model small enough to be computed by hand, and its tokenizer."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.data import tokenizer as tokenizers
from looped_lm.train.parallel.pmap import Pmap
from looped_lm.types import Model, Output, Subject, Vocabulary
from looped_lm.visibility import visible

TEXT = ["The cat sat on the mat.", "A dog saw the cats and a mouse.", "Who ran? The dogs did."]


@dataclasses.dataclass(frozen=True)
class ByHand:
  """A model of three tables: a position's own token, the mean of what it sees, and loops.

  After loop r its logits are r · (own[token] + mean over visible s of seen[token_s]).
  """

  vocabulary: Vocabulary

  def params(self, seed=0):
    size = self.vocabulary.size
    own, seen = jax.random.normal(jax.random.key(seed), (2, size, size))
    return {"own": own, "seen": seen}

  def logits(self, params, tokens_T, *, causal, loops=2):
    """The same in numpy, for one sequence without padding."""
    own_VV, seen_VV = np.asarray(params["own"], float), np.asarray(params["seen"], float)
    logits_TV = own_VV[tokens_T]
    for t in range(len(tokens_T)):
      logits_TV[t] += seen_VV[tokens_T[: t + 1] if causal else tokens_T].mean(axis=0)
    return loops * logits_TV

  def log_probs(self, params, tokens_T, *, backend, loops=2):
    """Log-probability of each token behind `<s>`."""
    nats = []
    for place in range(1, len(tokens_T)):
      read = np.array(tokens_T)
      if backend != "causal":
        read[place] = self.vocabulary.mask_id
      logits_TV = self.logits(params, read, causal=backend == "causal", loops=loops)
      logits_V = logits_TV[place if backend == "mlm" else place - 1]
      nats.append(logits_V[tokens_T[place]] - np.log(np.exp(logits_V).sum()))
    return np.array(nats)

  def model(self):
    def encode(
      params, inputs, *, key=None, num_loops=None, keep_states=False, progress=1.0, read_BK=None
    ):
      see_BTS = visible(inputs.order_BT, inputs.segments_BT).astype(jnp.float32)
      see_BTS = see_BTS / jnp.maximum(see_BTS.sum(axis=-1, keepdims=True), 1.0)
      state = params["own"][inputs.tokens_BT] + see_BTS @ params["seen"][inputs.tokens_BT]
      states = jnp.stack([loop * state for loop in range(1, (num_loops or 2) + 1)])
      hidden_BTD = states[-1]
      if read_BK is not None:
        hidden_BTD = jnp.take_along_axis(hidden_BTD, read_BK[..., None], axis=1)
      return Output(hidden_BTD=hidden_BTD, states_RBTD=states if keep_states else None)

    return Model(
      init=lambda key: self.params(),
      encode=encode,
      finish=lambda params, state, inputs: state,
      readout=lambda params, hidden, row_B, key=None: hidden,
      prepare=lambda params, hidden, row_B, key=None: (hidden, ()),
      project=lambda x, weights: x,
      draw_loops=lambda row_B, key, progress=1.0: row_B,
      make_cache=None,
      decode=None,
      max_length=None,
      exit_probability=None,
      diagnose=lambda params: {},
      num_loops=2,
      vocab_size=self.vocabulary.size,
    )


@pytest.fixture(scope="session")
def spelling():
  return tokenizers.train(TEXT * 5, vocab_size=300, min_frequency=2, add_prefix_space=True)


@pytest.fixture(scope="session")
def by_hand(spelling):
  return ByHand(Vocabulary(size=spelling.vocab_size, num_special=16, bos_id=1, pad_id=3, mask_id=4))


@pytest.fixture(scope="session")
def subject(by_hand, spelling):
  return Subject(
    model=by_hand.model(),
    vocabulary=by_hand.vocabulary,
    tokenizer=spelling,
    held_out=types.SimpleNamespace(seq_len=32),
    unigram_V=None,
    strategy=Pmap(),
    batch_size=8,
    num_batches=0,
  )


@pytest.fixture(scope="session")
def favouring(by_hand, spelling):
  """Parameters that make each step of the given texts likely, and all else alike."""

  def params(texts):
    own = np.zeros((by_hand.vocabulary.size,) * 2, np.float32)
    for text in texts:
      ids = [by_hand.vocabulary.bos_id, *spelling.encode(text).tolist()]
      own[ids[:-1], ids[1:]] = 10.0
    return {"own": jnp.asarray(own), "seen": jnp.zeros_like(own)}

  return params
