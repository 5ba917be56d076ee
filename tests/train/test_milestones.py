"""Weights are kept at the words that were asked for, whatever interrupts the run."""

import contextlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.data import packing
from looped_lm.data.pipeline import Pipeline
from looped_lm.data.rows import Rows
from looped_lm.errors import UserError
from looped_lm.train import checkpoint, interrupt, loop, metrics, milestones, watchdog
from looped_lm.train.checkpoint import Checkpoints
from looped_lm.types import State

STEPS = 12
WORDS = (5, 6, 30, 48)  # At steps 2, 2, 8 and 12: four words a step.


@pytest.fixture(scope="module")
def pipeline():
  """Ten rows of two words each."""
  tokens_S = np.repeat(np.arange(16, 26, dtype=np.uint16), 7)
  words_S = np.tile(np.array([1, 1, 0, 0, 0, 0, 0], np.int8), 10)
  pieces = packing.Pieces(
    row_P=np.arange(10, dtype=np.int32), start_P=np.arange(10) * 7, length_P=np.full(10, 7)
  )
  rows = Rows.build(pieces, tokens_S=tokens_S, words_S=words_S, seq_len=8, bos_id=1, pad_id=3)
  return Pipeline(rows, batch_size=2, seed=0)


class Host:
  """A strategy of one device that compiles nothing."""

  def compile_step(self, step):
    return step

  def split(self, batch):
    return batch

  def diverged(self, state):
    return None

  def to_saved(self, state):
    return state


def initial_state():
  params = {"table": jnp.arange(4.0)}
  return State(
    step=jnp.asarray(0, jnp.int32),
    params=params,
    ema=jax.tree.map(lambda x: x / 2, params),
    opt_state={"count": jnp.zeros(())},
    key=jax.random.key(0),
  )


def train_step(state, batch):
  change = float(batch.tokens_BT.sum())
  state = state.replace(
    step=state.step + 1,
    params=jax.tree.map(lambda x: x + change, state.params),
    ema=jax.tree.map(lambda x: x - change, state.ema),
  )
  one = jnp.ones(())
  return state, {"loss_nats": (one, one), "grad_norm": (one, one)}


def train(workdir, pipeline, *, words=WORDS, evaluate=lambda _: {}, eval_every_words=0, save=3):
  """Trains, or goes on; the last step that the run went on from."""
  kept = milestones.Milestones(
    str(workdir), words, pipeline=pipeline, total_steps=STEPS, config={"seed": 0}
  )
  with Checkpoints(str(workdir / "checkpoints"), keep_latest=2, config={}) as checkpoints:
    state, data = initial_state(), {}
    if checkpoints.latest_step() is not None:
      state, data = checkpoints.restore(state)
    first = int(state.step)
    with (
      metrics.Metrics(
        str(workdir), total_steps=STEPS, resumed_step=first, progress=lambda _: None
      ) as log,
      interrupt.Interrupts(progress=lambda _: None) as interrupts,
      watchdog.Watchdog(0.0) as dog,
    ):
      loop.train(
        state,
        train_step=train_step,
        strategy=Host(),
        pipeline=pipeline,
        evaluate=evaluate,
        checkpoints=checkpoints,
        milestones=kept,
        metrics=log,
        interrupts=interrupts,
        watchdog=dog,
        resumed=data,
        total_steps=STEPS,
        log_every_steps=5,
        eval_every_steps=0,
        eval_every_words=eval_every_words,
        save_every_steps=save,
      )
  return first


def kept_weights(workdir):
  """Name -> step, params, ema."""
  like = initial_state().params
  return {
    name: (
      checkpoint.saved_step(folder),
      *(
        np.asarray(checkpoint.restore_params(folder, like, which=which)["table"]).tolist()
        for which in ("params", "ema")
      ),
    )
    for name, folder in milestones.saved(str(workdir)).items()
  }


@pytest.fixture(scope="module")
def undisturbed(pipeline, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("undisturbed")
  train(workdir, pipeline)
  return kept_weights(workdir)


def test_names_are_those_of_babylm():
  names = [milestones.name(words) for words in milestones.BABYLM_WORDS]
  assert names == [f"chck_{n}M" for n in [*range(1, 10), *range(10, 101, 10)]]
  assert milestones.name(1500) == "chck_1500"
  assert milestones.name(1_500_000) == "chck_1500000"


def test_weights_are_kept_at_the_first_step_that_reaches_each_figure(undisturbed):
  assert {name: entry[0] for name, entry in undisturbed.items()} == {
    "chck_5": 2,
    "chck_6": 2,
    "chck_30": 8,
    "chck_48": 12,
  }
  assert undisturbed["chck_5"] == undisturbed["chck_6"]
  assert undisturbed["chck_30"][1] != undisturbed["chck_30"][2] != undisturbed["chck_48"][2]


def test_a_milestone_has_no_optimiser_and_no_run_goes_on_from_it(pipeline, tmp_path):
  train(tmp_path, pipeline)
  folder = tmp_path / "milestones" / "chck_30"
  assert {path.name for path in (folder / "8").iterdir()} >= {"params", "ema", "config", "layout"}
  assert not (folder / "8" / "opt").exists()
  assert checkpoint.saved_config(str(folder)) == {"seed": 0}
  with pytest.raises(UserError, match="holds weights alone: it can be exported, and no run can go"):
    checkpoint.restore_state(str(folder), initial_state())


class Killed(BaseException):
  """Stands in for SIGKILL: nothing that handles errors handles it."""


def before_writing(words):
  """Gone before the milestone is begun."""

  def patch(monkeypatch):
    save = Checkpoints.save

    def dies(self, state, **settings):
      if settings["data"].get("words") == words:
        raise Killed
      return save(self, state, **settings)

    monkeypatch.setattr(Checkpoints, "save", dies)

  return patch


def before_the_checkpoint_of(step):
  """Gone when milestones of this step are written and its checkpoint is not."""

  def patch(monkeypatch):
    save = Checkpoints.save

    def dies(self, state, **settings):
      if settings["data"].get("next_step") == step:
        raise Killed
      return save(self, state, **settings)

    monkeypatch.setattr(Checkpoints, "save", dies)

  return patch


def after_the_checkpoint_of(step):
  """Gone when the checkpoint of this step is whole."""

  def patch(monkeypatch):
    save = Checkpoints.save

    def dies(self, state, **settings):
      save(self, state, **settings)
      if settings["data"].get("next_step") == step:
        self.wait()
        raise Killed

    monkeypatch.setattr(Checkpoints, "save", dies)

  return patch


@pytest.mark.parametrize(
  ("fault", "save", "resumes", "written"),
  [
    (before_writing(5), 2, 0, set()),
    pytest.param(before_writing(6), 2, 0, {"chck_5"}, marks=pytest.mark.slow),
    (before_writing(30), 3, 6, {"chck_5", "chck_6"}),
    pytest.param(before_the_checkpoint_of(2), 2, 0, {"chck_5", "chck_6"}, marks=pytest.mark.slow),
    (before_the_checkpoint_of(9), 3, 6, {"chck_5", "chck_6", "chck_30"}),
    (after_the_checkpoint_of(2), 2, 2, {"chck_5", "chck_6"}),
    pytest.param(
      after_the_checkpoint_of(8), 4, 8, {"chck_5", "chck_6", "chck_30"}, marks=pytest.mark.slow
    ),
  ],
)
def test_a_killed_run_ends_with_every_milestone_and_writes_each_once(
  undisturbed, pipeline, tmp_path, monkeypatch, fault, save, resumes, written
):
  with monkeypatch.context() as patch:
    fault(patch)
    with pytest.raises(Killed):
      train(tmp_path, pipeline, save=save)
  there = {}
  with contextlib.suppress(UserError):
    there = milestones.saved(str(tmp_path))
  assert set(there) == written
  times = {name: os.stat(f"{folder}/{2 if name in ('chck_5', 'chck_6') else 8}").st_mtime_ns
           for name, folder in there.items()}  # fmt: skip
  assert train(tmp_path, pipeline, save=save) == resumes
  assert kept_weights(tmp_path) == undisturbed
  for name, folder in there.items():
    assert os.stat(f"{folder}/{undisturbed[name][0]}").st_mtime_ns == times[name]


def test_what_a_kill_left_half_written_is_written_again(undisturbed, pipeline, tmp_path):
  folder = tmp_path / "milestones" / "chck_30"
  (folder / "8.orbax-checkpoint-tmp-0" / "params").mkdir(parents=True)
  (tmp_path / "milestones" / "chck_48").mkdir()
  (tmp_path / "milestones" / "notes").mkdir()
  with pytest.raises(UserError, match=r"has no milestones: train with train.save_at_words"):
    milestones.saved(str(tmp_path))
  train(tmp_path, pipeline)
  assert kept_weights(tmp_path) == undisturbed
  assert [path.name for path in folder.iterdir()] == ["8"]


def test_a_milestone_of_another_step_is_not_taken_for_ours(pipeline, tmp_path):
  train(tmp_path, pipeline)
  os.rename(tmp_path / "milestones" / "chck_30", tmp_path / "milestones" / "chck_20")
  with pytest.raises(
    UserError, match=r"chck_20 holds step 8, and this run reaches 20 words at .* 5"
  ):
    train(tmp_path, pipeline, words=(20,))


def test_a_milestone_asked_for_too_late_is_named(pipeline, tmp_path):
  train(tmp_path, pipeline, words=(30,))
  late = milestones.Milestones(
    str(tmp_path), (8, 30, 48), pipeline=pipeline, total_steps=STEPS, config={}
  )
  assert late.missed(2) == ["chck_8"]
  assert late.missed(12) == ["chck_8", "chck_48"]


@pytest.mark.parametrize("words", [(0,), (-3, 5), (5, 5), (6, 5), (True,), (2.0,)])
def test_figures_must_rise_from_above_0(words):
  with pytest.raises(UserError, match="must be whole numbers of words above 0, in rising order"):
    milestones.check(words)


def test_the_end_reaches_what_one_batch_more_would_and_nothing_beyond(pipeline, tmp_path):
  def at(words):
    return milestones.Milestones(
      str(tmp_path), (words,), pipeline=pipeline, total_steps=STEPS, config={}
    ).due(STEPS)

  assert at(44) == []
  assert at(48) == [48]
  assert at(52) == [52]
  with pytest.raises(
    UserError, match=r"save_at_words has 53, and the run ends after 12 steps with"
  ):
    at(53)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stop_at", [None, 5, pytest.param(6, marks=pytest.mark.slow)])
def test_evaluations_come_by_words_and_again_after_a_restart(pipeline, tmp_path, stop_at):
  """Multiples of 10 words are passed at steps 3, 5, 8 and 10; the end is evaluated as ever."""
  asked = []

  def evaluate(state):
    asked.append(int(state.step))
    return {"eval/loss": float(state.step)}

  if stop_at is not None:
    with pytest.MonkeyPatch.context() as patch:
      after_the_checkpoint_of(stop_at)(patch)
      with pytest.raises(Killed):
        train(tmp_path, pipeline, evaluate=evaluate, eval_every_words=10, save=stop_at)
  train(tmp_path, pipeline, evaluate=evaluate, eval_every_words=10, save=stop_at or 3)
  assert asked == [3, 5, 8, 10, 12]
  lines = metrics.read(str(tmp_path))
  assert [line["step"] for line in lines if "eval/loss" in line] == asked
