"""A trained model in Python, from a folder alone: no text, no config file."""

import json
import pathlib
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
from looped_lm.train.checkpoint import Checkpoints
from looped_lm.train.parallel.pmap import Pmap
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
  config["model"]["block"]["max_distance"] = 64
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


def alone(run, model, text, *, causal, num_loops):
  """Ids, states and logits of one text, as the model gives them without any padding."""
  ids = [model.tokenizer.bos_id, *model.tokenizer.encode(text).tolist()]
  tokens = jnp.asarray([ids], jnp.int32)
  order = visibility.causal if causal else visibility.bidirectional
  inputs = Inputs(
    tokens_BT=tokens,
    order_BT=order(tokens),
    segments_BT=jnp.ones_like(tokens),
    row_B=jnp.zeros(1, jnp.int32),
  )
  built = run[2]

  @jax.jit
  def read(params):
    output = built.encode(params, inputs, num_loops=num_loops, keep_states=True)
    return output.states_RBTD, built.readout(params, output.hidden_BTD, inputs.row_B)

  states, logits = read(model.params)
  return np.asarray(ids), np.asarray(states)[:, 0], np.asarray(logits)[0]


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


def test_a_score_is_the_log_probability_of_the_text_alone(run, model):
  got = model.score([TEXTS[0], TEXTS[1], TEXTS[0]])
  ids, _, logits = alone(run, model, TEXTS[0], causal=True, num_loops=3)
  nats = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(ids) - 1), ids[1:]]
  assert got.nats_N[0] == got.nats_N[2] == pytest.approx(nats.sum(), abs=1e-4)
  assert got.tokens_N[0] == len(ids) - 1
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
    strategy=Pmap(),
    batch_size=config["evals"]["batch_size"],
    num_batches=0,
  )
  scorer = Scorer(subject=subject, backend=mode)
  wanted = scorer.score(subject.strategy.replicate(model.params), [Passage(text=t) for t in TEXTS])
  got = model.score(TEXTS, mode=mode)
  np.testing.assert_allclose(got.nats_N, wanted.nats_LN[0], rtol=1e-6)
  np.testing.assert_array_equal(got.tokens_N, wanted.tokens_N)


@pytest.mark.parametrize("mode", ["causal", "mntp"])
def test_hidden_states_are_those_of_each_text_alone(run, model, mode):
  found = model.hidden_states([*TEXTS, ""], mode=mode)
  for text, states in zip(TEXTS[::2], found[:3:2], strict=True):
    ids, wanted, _ = alone(run, model, text, causal=mode == "causal", num_loops=3)
    assert states.shape == (3, len(ids), 32)
    np.testing.assert_allclose(states, wanted, atol=1e-4)
  assert found[3].shape == (3, 1, 32)
  assert model.hidden_states([]) == []


def test_the_number_of_loops_can_be_set_and_holds_for_all(run):
  model = looped_lm.load(run[1])
  before = model.score(TEXTS[:1]).nats_N[0]
  model.num_loops = 5
  ids, states, logits = alone(run, model, TEXTS[0], causal=True, num_loops=5)
  nats = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(ids) - 1), ids[1:]].sum()
  got = model.score(TEXTS[:1]).nats_N[0]
  assert got == pytest.approx(nats, abs=1e-4)
  assert abs(got - before) > 1e-2
  np.testing.assert_allclose(model.hidden_states(TEXTS[:1])[0], states, atol=1e-4)
  (continued,) = model.generate(TEXTS[:1], max_new_tokens=2)
  assert continued.loops == (5, 5)
  filled = Infiller(
    model=run[2],
    params=model.params,
    tokenizer=model.tokenizer,
    sampling=Sampling(temperature=0),
    num_loops=5,
  ).run(["The<mask> ran."])
  assert model.infill(["The<mask> ran."]) == filled
  model.num_loops = 3
  assert model.score(TEXTS[:1]).nats_N[0] == before
  for wrong in (0, -1, 2.5, True, "4"):
    with pytest.raises(UserError, match=rf"num_loops={wrong!r} must be a whole number"):
      model.num_loops = wrong
  assert model.num_loops == 3


def test_generation_takes_the_runs_settings_and_those_given(model):
  settings = {"temperature": 1.0, "max_new_tokens": 3}
  compiled = continuation._program.cache_info().misses
  found = model.generate(TEXTS, **settings, seed=1)
  # One by one, each as the first of a batch: its draws are those of its index.
  assert model.generate(TEXTS, **settings, seed=1, batch_size=1) == found
  assert model.generate(TEXTS, **settings, seed=2) != found
  assert continuation._program.cache_info().misses == compiled + 1
  greedy = model.generate(TEXTS[:1])
  assert greedy == model.generate(TEXTS[:1], temperature=0, max_new_tokens=5)
  assert len(greedy[0].ids) == 5 or greedy[0].finished == "end of text"
  letter = greedy[0].text[1]
  (stopped,) = model.generate(TEXTS[:1], stop=letter)
  assert stopped.finished == "stop"
  assert letter not in stopped.text


@pytest.mark.parametrize("source", ["run", "export"])
def test_far_distances_read_as_the_longest_trained_one(request, run, model, source):
  place = run[1] if source == "run" else request.getfixturevalue("export")
  clamped = looped_lm.load(place, clamp_distance=True)
  free = model if source == "run" else looped_lm.load(place)
  short = LONG[:28]
  assert len(model.tokenizer.encode(short)) < SEQ_LEN
  np.testing.assert_array_equal(clamped.score([short]).nats_N, free.score([short]).nats_N)
  difference = clamped.score([LONG]).nats_N - free.score([LONG]).nats_N
  assert abs(difference[0]) > 1e-3
  # Rows of 16 tokens have distances up to 15. Where the vectors of farther ones are made those of
  # 15, the free model must give what the clamped one gives.
  settings = run[0]["model"]["block"]
  table = looped_lm.jobs.loading.looped  # The module is there once a model was loaded.
  assert table is looped
  from looped_lm.nn.positions import bucket_table

  K = settings["num_buckets"]
  row = bucket_table(64, num_buckets=K, max_distance=64)[:, 0]
  vectors = np.array(model.params["shared"]["positions"]["embedding"])
  for distance in range(SEQ_LEN, 64):
    assert row[distance] >= row[SEQ_LEN - 1]
  far = np.unique(row[SEQ_LEN:])
  vectors[far] = vectors[row[SEQ_LEN - 1]]
  vectors[2 * (K - 1) - far] = vectors[2 * (K - 1) - row[SEQ_LEN - 1]]
  positions = model.params["shared"]["positions"] | {"embedding": jnp.asarray(vectors)}
  same = looped_lm.load(run[1])
  same._params = model.params | {"shared": {"positions": positions}}
  np.testing.assert_allclose(
    clamped.score([LONG]).nats_N, same.score([LONG]).nats_N, rtol=1e-6
  )


def test_an_exported_folder_is_the_same_model(run, model, export):
  loaded = looped_lm.load(export)
  jax.tree.map(np.testing.assert_array_equal, loaded.params, model.params)
  np.testing.assert_allclose(
    loaded.score(TEXTS).nats_N, model.score(TEXTS).nats_N, rtol=1e-6
  )
  given = {"temperature": 0, "max_new_tokens": 4}
  assert loaded.generate(TEXTS[:1], **given) == model.generate(TEXTS[:1], **given)
  assert loaded.infill(["A<mask>."], temperature=0)[0].text == model.infill(["A<mask>."])[0].text
  assert loaded.config["model"]["embed_dim"] == 32
  for given in ({"weights": "ema"}, {"step": 20}):
    with pytest.raises(UserError, match=r"has no meaning for .*export: an exported folder holds"):
      looped_lm.load(export, **given)
  told = json.loads((export / "config.json").read_text())
  assert told.pop("trained_length") == SEQ_LEN
  (export / "config.json").write_text(json.dumps(told))
  with pytest.raises(UserError, match=r"does not say how long the rows were"):
    looped_lm.load(export, clamp_distance=True)
  told["trained_length"] = SEQ_LEN
  (export / "config.json").write_text(json.dumps(told))


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    (lambda m: m.score("The dog"), r"texts must be a list of texts, not one text: \['The dog'\]"),
    (lambda m: m.score(["a"], mode="both"), r"mode='both' is none of \['causal', 'mntp', 'mlm'\]"),
    (lambda m: m.score(["a", ""]), r"texts\[1\]: there is no token to score"),
    (lambda m: m.score(["a"], starts=[0, 1]), r"starts has 2 numbers for 1 texts"),
    (lambda m: m.hidden_states(["a"], mode="mlm"), r"mode='mlm' is none of \['causal', 'mntp'\]"),
    (lambda m: m.generate(["a"], num_loops=2), r"num_loops is not given per call: set it"),
    (lambda m: m.generate(["a"], prompts=["b"]), r"prompts is not a setting here; there are"),
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
