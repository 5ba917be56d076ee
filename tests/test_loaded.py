"""A trained model in Python, from a folder alone: no text, no config file."""

import copy
import functools
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import looped_lm
from looped_lm import visibility
from looped_lm.data import tokenizer as tokenizers
from looped_lm.errors import UserError
from looped_lm.evals.scoring import Passage, Scorer
from looped_lm.export import huggingface, model_card
from looped_lm.generate import continuation
from looped_lm.generate.infill import Infiller
from looped_lm.generate.sampling import Sampling
from looped_lm.models import looped
from looped_lm.nn.positions import bucket_table
from looped_lm.train.checkpoint import Checkpoints
from looped_lm.types import Inputs, State, Subject

LINES = ["The old dog sees the small cat.", "A cat sat on the mat, and 12 dogs ran."]
TEXTS = ["The old dog ran.", "A cat.", "the small cat sees the mat"]
SEQ_LEN = 16
LONG = "the cat sat and " * 6


def noise(like, seed):
  """Parameters with which every loop and every distance makes a difference."""
  rng = np.random.default_rng(seed)

  def leaf(path, shape):
    array = 0.2 * rng.standard_normal(shape.shape, np.float32)
    return jnp.asarray(array + (path[-1].key in ("scale", "alpha")))

  return jax.tree_util.tree_map_with_path(leaf, like)


@pytest.fixture(scope="module")
def run(tiny_config, tmp_path_factory):
  """What training leaves of a run of drawn depth whose text is gone: step 10 is its best."""
  config, workdir = tiny_config(), tmp_path_factory.mktemp("run")
  config["data"] |= {"seq_len": SEQ_LEN, "paths": ("no such text",)}
  config["model"]["depth"]["name"] = "poisson"
  config["model"]["block"]["max_distance"] = 240
  config["generate"] |= {"temperature": 0.0, "max_new_tokens": 5}
  tokenizer = tokenizers.train(LINES * 30, vocab_size=300, min_frequency=2, add_prefix_space=True)
  model = looped.build(config["model"], vocab_size=tokenizer.vocab_size)
  like = jax.eval_shape(model.init, jax.random.key(0))
  directory = str(workdir / "checkpoints")
  with Checkpoints(directory, keep_latest=2, best_metric="loss", config=config) as checkpoints:
    for step in (10, 20):
      state = State(
        step=jnp.int32(step),
        params=noise(like, step),
        ema=noise(like, step + 1),
        opt_state={"count": jnp.int32(step)},
        key=jax.random.key(0),
      )
      checkpoints.save(state, data={"next_step": step}, metrics={"loss": float(step)})
  tokenizer.save(str(workdir / "tokenizer.json"))
  return config, workdir, model, like


@pytest.fixture(scope="module")
def model(run):
  return looped_lm.load(run[1])


@pytest.fixture(scope="module")
def export(run, model):
  """The same model as an exported folder."""
  config, workdir, *_ = run
  facts = model_card.Facts(
    name="x",
    license="",
    weights="raw",
    step=20,
    words_seen=None,
    tokens_seen=None,
    epochs_seen=None,
    figures={},
    config={},
  )
  return huggingface.export(
    str(workdir / "export"),
    model.params,
    model=config["model"],
    tokenizer=model.tokenizer,
    causal=False,
    seq_len=SEQ_LEN,
    facts=facts,
  )


@pytest.fixture(scope="module")
def alone(run, model):
  """Ids, states and logits of the first text, as the model gives them without any padding."""
  ids = [model.tokenizer.bos_id, *model.tokenizer.encode(TEXTS[0]).tolist()]
  tokens = jnp.asarray([ids], jnp.int32)
  built, row = run[2], jnp.zeros(1, jnp.int32)

  @functools.cache
  def read(causal, num_loops):
    order = (visibility.causal if causal else visibility.bidirectional)(tokens)
    inputs = Inputs(tokens_BT=tokens, order_BT=order, segments_BT=jnp.ones_like(tokens), row_B=row)

    @jax.jit
    def program(params):
      output = built.encode(params, inputs, num_loops=num_loops, keep_states=True)
      return output.states_RBTD, built.readout(params, output.hidden_BTD, row)

    states, logits = program(model.params)
    nats = np.asarray(jax.nn.log_softmax(logits))[0, np.arange(len(ids) - 1), ids[1:]]
    return np.asarray(states)[:, 0], nats

  return read


def test_importing_the_package_is_light():
  program = "import sys, looped_lm; assert 'jax' not in sys.modules; print(looped_lm.__all__)"
  root = pathlib.Path(__file__).parents[1]
  done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
  assert done.stdout == "['load']\n", done.stderr


def test_it_comes_from_the_folder_alone(run, model):
  config, workdir, built, like = run
  assert sorted(path.name for path in workdir.iterdir()) == ["checkpoints", "tokenizer.json"]
  assert model.config == config
  assert model.tokenizer.vocab_size == 300
  assert model.num_loops == config["model"]["num_loops"] == 3
  jax.tree.map(np.testing.assert_array_equal, model.params, noise(like, 20))


@pytest.mark.parametrize(
  ("wanted", "seed"),
  [
    ({"weights": "ema"}, 21),
    ({"step": 10}, 10),
    ({"step": "best", "weights": "raw"}, 10),
    ({"step": "best", "weights": "ema"}, 11),
  ],
)
def test_weights_and_step_are_a_choice(run, wanted, seed):
  params = looped_lm.load(str(run[1]), **wanted).params
  jax.tree.map(np.testing.assert_array_equal, params, noise(run[3], seed))


def test_a_score_is_the_log_probability_of_the_text_alone(model, alone):
  got = model.score([TEXTS[0], TEXTS[1], TEXTS[0]])
  _, nats = alone(True, 3)
  assert got.nats_N[0] == got.nats_N[2] == pytest.approx(nats.sum(), abs=1e-4)
  assert got.tokens_N[0] == len(nats)
  start = TEXTS[0].index(" ran")
  (located,) = model.tokenizer.locate_batch([TEXTS[0]])
  scored = located.end_T > start
  part = model.score([TEXTS[0]], starts=[start])
  assert part.nats_N[0] == pytest.approx(nats[scored].sum(), abs=1e-4)
  assert part.tokens_N[0] == scored.sum() < len(nats)
  assert model.score([]).nats_N.shape == (0,)


@pytest.mark.parametrize("mode", ["causal", "mntp"])
def test_scores_are_those_of_the_evaluations(run, model, mode):
  config, _, built, _ = run
  subject = Subject(
    model=built,
    vocabulary=model._subject(1).vocabulary,
    tokenizer=model.tokenizer,
    held_out=type("Rows", (), {"seq_len": SEQ_LEN}),
    unigram_V=None,
    strategy=model._strategy,
    batch_size=config["evals"]["batch_size"],
    num_batches=0,
  )
  scorer = Scorer(subject=subject, backend=mode)
  wanted = scorer.score(subject.strategy.replicate(model.params), [Passage(text=t) for t in TEXTS])
  got = model.score(TEXTS, mode=mode)
  np.testing.assert_allclose(got.nats_N, wanted.nats_LN[0], rtol=1e-6)
  np.testing.assert_array_equal(got.tokens_N, wanted.tokens_N)


@pytest.mark.parametrize("mode", ["causal", "mntp"])
def test_hidden_states_are_those_of_each_text_alone(model, alone, mode):
  found = model.hidden_states([TEXTS[2], "", TEXTS[0]], mode=mode)
  wanted, _ = alone(mode == "causal", 3)
  assert found[2].shape == wanted.shape == (3, wanted.shape[1], 32)
  np.testing.assert_allclose(found[2], wanted, rtol=1e-5, atol=1e-4)
  assert found[1].shape == (3, 1, 32)
  assert model.hidden_states([]) == []


def test_the_number_of_loops_can_be_set_and_holds_for_all(run, model, alone):
  model = copy.copy(model)
  before = model.score(TEXTS[:1]).nats_N[0]
  model.num_loops = 5
  states, nats = alone(True, 5)
  got = model.score(TEXTS[:1]).nats_N[0]
  assert got == pytest.approx(nats.sum(), abs=1e-4)
  assert abs(got - before) > 1e-2
  np.testing.assert_allclose(model.hidden_states(TEXTS[:1])[0], states, rtol=1e-5, atol=1e-4)
  (continued,) = model.generate(TEXTS[:1], max_new_tokens=1)
  assert continued.loops == (5,)
  filled = Infiller(
    model=run[2],
    params=model.params,
    tokenizer=model.tokenizer,
    sampling=Sampling(temperature=0),
    num_loops=5,
  ).run(["The<mask> ran."])
  assert model.infill(["The<mask> ran."], top_p=1.0) == filled
  model.num_loops = 3
  assert model.score(TEXTS[:1]).nats_N[0] == before
  for wrong in (0, -1, 2.5, True, "4"):
    with pytest.raises(UserError, match=rf"num_loops={wrong!r} must be a whole number"):
      model.num_loops = wrong
  assert model.num_loops == 3


def test_generation_takes_the_runs_settings_and_those_given(model):
  compiled = continuation._program.cache_info().misses
  given = {"temperature": 1.0, "batch_size": 1}
  first, second = model.generate(TEXTS[:1] * 2, **given, seed=1)
  assert first.ids != second.ids, "a prompt's draws are those of its index, in whatever batch"
  assert model.generate(TEXTS[:1], **given, seed=1) == [first]
  assert model.generate(TEXTS[:1], **given, seed=2) != [first]
  assert continuation._program.cache_info().misses == compiled + 1
  greedy = model.generate(TEXTS[:1])
  assert greedy == model.generate(TEXTS[:1], temperature=0, max_new_tokens=5)
  assert len(greedy[0].ids) == 5 or greedy[0].finished == "end of text"
  letter = greedy[0].text[1]
  (stopped,) = model.generate(TEXTS[:1], stop=letter)
  assert stopped.finished == "stop"
  assert letter not in stopped.text


def test_far_distances_read_as_the_longest_trained_one(run, model):
  """Rows of 16 tokens have distances up to 15; beyond, 16 begins a bucket."""
  clamped = looped_lm.load(run[1], clamp_distance=True)
  short = LONG[:28]
  assert len(model.tokenizer.encode(short)) < SEQ_LEN < len(model.tokenizer.encode(LONG)) < 64
  free_short, free_long = model.hidden_states([short, LONG])
  short, long = clamped.hidden_states([short, LONG])
  np.testing.assert_array_equal(short, free_short)
  np.testing.assert_array_equal(long[:, :SEQ_LEN], free_long[:, :SEQ_LEN])
  assert np.abs(long - free_long)[:, SEQ_LEN + 8 :].max() > 1e-3
  # Where the vectors of farther distances are that of 15, the free model gives the same.
  K = run[0]["model"]["block"]["num_buckets"]
  bucket = bucket_table(64, num_buckets=K, max_distance=240)[:, 0]
  vectors = np.array(model.params["shared"]["positions"]["embedding"])
  assert bucket[15] < bucket[16] <= bucket[63] == 2 * (K - 1)
  vectors[bucket[16:]] = vectors[bucket[15]]
  positions = model.params["shared"]["positions"] | {"embedding": jnp.asarray(vectors)}
  changed = copy.copy(model)
  changed._params = model.params | {"shared": {"positions": positions}}
  np.testing.assert_allclose(changed.hidden_states([LONG])[0], long, rtol=1e-5, atol=1e-4)


def test_an_exported_folder_is_the_same_model(model, export):
  loaded = looped_lm.load(export)
  jax.tree.map(np.testing.assert_array_equal, loaded.params, model.params)
  np.testing.assert_allclose(loaded.score(TEXTS).nats_N, model.score(TEXTS).nats_N, rtol=1e-6)
  given = {"temperature": 0, "max_new_tokens": 5, "top_p": 0.95}
  assert loaded.generate(TEXTS[:1], **given) == model.generate(TEXTS[:1])
  assert loaded.config["model"]["embed_dim"] == 32
  for given in ({"weights": "ema"}, {"step": 20}):
    with pytest.raises(UserError, match=r"has no meaning for .*export: an exported folder holds"):
      looped_lm.load(export, **given)


def test_an_exported_folder_knows_the_longest_trained_distance(run, export, tmp_path):
  shutil.copytree(export, tmp_path / "copy")
  wanted = looped_lm.load(run[1], clamp_distance=True).hidden_states([LONG])[0]
  got = looped_lm.load(export, clamp_distance=True).hidden_states([LONG])[0]
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)
  told = json.loads((export / "config.json").read_text())
  assert told.pop("trained_length") == SEQ_LEN
  (tmp_path / "copy" / "config.json").write_text(json.dumps(told))
  with pytest.raises(UserError, match=r"does not say how long the rows were"):
    looped_lm.load(tmp_path / "copy", clamp_distance=True)


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    (lambda m: m.score("The dog"), r"texts must be a list of texts, not one text: \['The dog'\]"),
    (lambda m: m.score(["a"], mode="both"), r"mode='both' is none of \['causal', 'mntp', 'mlm'\]"),
    (lambda m: m.score(["a", ""]), r"texts\[1\]: there is no token to score"),
    (lambda m: m.score(["a"], starts=[0, 1]), r"starts has 2 numbers for 1 texts"),
    (lambda m: m.hidden_states(["a"], mode="mlm"), r"mode='mlm' is none of \['causal', 'mntp'\]"),
    (lambda m: m.generate(["a"], num_loops=2), r"num_loops is not given per call: set it"),
    (lambda m: m.generate(["a"], task="infill"), r"task is not a setting here; there are"),
    (lambda m: m.generate(["a"], top_p=0.0), r"generate.top_p=0.0 must lie in"),
    (lambda m: m.generate(["a"], halting="exit_gate", halting_threshold=0.5), r"exit_gate=True"),
    (lambda m: m.infill(["a"]), r"has no <mask> to fill"),
    (lambda m: m.infill(["a<mask>"], stop="."), r"stop is not a setting here"),
  ],
)
def test_a_wrong_request_is_one_line(model, wrong, message):
  with pytest.raises(UserError, match=message):
    wrong(model)


def test_a_folder_that_is_no_model_is_one_line(run, tmp_path):
  with pytest.raises(UserError, match=r"nowhere does not exist; give the --workdir of a run, or"):
    looped_lm.load("nowhere")
  with pytest.raises(UserError, match=r"holds neither checkpoints nor an exported model; give"):
    looped_lm.load(tmp_path)
  (tmp_path / "config.json").write_text('{"model_type": "bert"}')
  with pytest.raises(UserError, match=r"holds neither checkpoints nor an exported model; give"):
    looped_lm.load(tmp_path)
  (tmp_path / "checkpoints").symlink_to(run[1] / "checkpoints")
  with pytest.raises(UserError, match=r"has no tokenizer.json; copy the one"):
    looped_lm.load(tmp_path)
  for wrong in ({"weights": "average"}, {"step": "latest"}, {"step": True}):
    with pytest.raises(UserError, match=next(iter(wrong))):
      looped_lm.load(run[1], **wrong)
  with pytest.raises(UserError, match=r"has no checkpoint of step 15; it has \[10, 20\]"):
    looped_lm.load(run[1], step=15)
