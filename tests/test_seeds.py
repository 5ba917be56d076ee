"""One config with several seeds: ordinary runs one after another, and what they say together."""

import contextlib
import io
import json
import math
import os
import signal
import statistics

import pytest

from looped_lm import jobs
from looped_lm.errors import UserError
from looped_lm.jobs import evaluation, training
from looped_lm.jobs import seeds as series
from looped_lm.train import interrupt, window
from looped_lm.train import metrics as log
from looped_lm.train.checkpoint import Checkpoints

STEPS = 2


def train(config, workdir, seeds, **flags):
  flags = {"overrides": {}, "allow_config_change": False} | flags
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    code = jobs.run("train", config, workdir=str(workdir), seeds=seeds, **flags)
  return code, printed.getvalue()


def steps_started_from(workdir):
  return [start["step"] for start in json.loads((workdir / "run.json").read_text())["starts"]]


def signal_at(step, number):
  """A patch for `window.add`: the signal comes in a step."""
  add = window.add

  def then_signal(*arguments):
    if arguments[2] == step:
      os.kill(os.getpid(), number)
    return add(*arguments)

  return then_signal


@pytest.fixture(scope="module")
def config(tiny_config):
  config = tiny_config()
  config["train"] |= {"total_steps": STEPS, "eval_every_steps": 1, "save_every_steps": 0}
  config["model"]["num_loops"] = 2
  config["evals"] |= {"names": ("held_out",), "num_batches": 1}
  config["evals"]["held_out"] = {"modes": ("clm",)}
  return config


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
  """Two seeds, trained: their folder and what was printed."""
  workdir = tmp_path_factory.mktemp("seeds")
  code, printed = train(config, workdir, (3, 1), overrides={"train.total_steps": STEPS})
  assert code == 0
  return workdir, printed


@pytest.mark.nightly
def test_the_figures_are_those_of_each_runs_last_evaluation(trained):
  workdir, printed = trained
  written = json.loads((workdir / "seeds.json").read_text())
  assert written["seeds"] == [3, 1]
  logged = [
    {
      name: value
      for record in log.read(str(workdir / f"seed_{seed}"))
      for name, value in record.items()
      if record["step"] == STEPS and name.startswith("eval/")
    }
    for seed in (3, 1)
  ]
  assert "eval/clm/loss_nats" in logged[0]
  assert written["figures"].keys() == logged[0].keys() == logged[1].keys()
  rows = dict(line.split(maxsplit=1) for line in printed.splitlines() if line.startswith("eval/"))
  for name, each in written["figures"].items():
    values = [run[name] for run in logged]
    assert each["values"] == values
    assert each["mean"] == pytest.approx(statistics.mean(values), rel=1e-12)
    assert each["std"] == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-12)
    assert rows[name].split() == [f"{each['mean']:.5f}", f"{each['std']:.5f}"]
  assert written["figures"]["eval/clm/loss_nats"]["std"] > 0


@pytest.mark.nightly
def test_each_run_is_an_ordinary_one_of_its_seed(trained):
  workdir, _ = trained
  for seed in (3, 1):
    folder = workdir / f"seed_{seed}"
    assert json.loads((folder / "config.json").read_text())["seed"] == seed
    record = json.loads((folder / "run.json").read_text())["starts"][0]
    assert record["overrides"] == {"train.total_steps": STEPS, "seed": seed}
    assert (folder / "report.html").exists()


@pytest.mark.nightly
def test_the_same_command_trains_nothing_again(trained, config, monkeypatch):
  workdir, printed = trained
  written = (workdir / "seeds.json").read_bytes()
  (workdir / "seeds.json").unlink()
  monkeypatch.setattr(training, "train_run", lambda *_, **__: pytest.fail("trained again"))
  code, again = train(config, workdir, (3, 1))
  assert code == 0
  assert (workdir / "seeds.json").read_bytes() == written
  table = printed[printed.index("Last evaluation, seeds 3, 1") :]
  assert again.endswith(table)


@pytest.mark.nightly
def test_a_stopped_seed_stops_the_series_and_the_same_command_goes_on(trained, config, monkeypatch):
  """SIGTERM in a step of the second of three; the first is trained already."""
  workdir, _ = trained
  with monkeypatch.context() as patch:
    patch.setattr(window, "add", signal_at(1, signal.SIGTERM))
    code, printed = train(config, workdir, (1, 2, 3))
  assert code == 0
  assert "Seed 1 is trained" in printed
  assert "Stopped at seed 2 of 1, 2, 3; the same command goes on." in printed
  assert "Last evaluation" not in printed
  assert "Seed 3" not in printed
  assert not (workdir / "seeds.json").exists()
  code, _ = train(config, workdir, (1, 2, 3))
  assert code == 0
  assert steps_started_from(workdir / "seed_2") == [0, 1]
  assert steps_started_from(workdir / "seed_1") == steps_started_from(workdir / "seed_3") == [0]
  assert json.loads((workdir / "seeds.json").read_text())["seeds"] == [1, 2, 3]


@pytest.mark.nightly
def test_a_signal_in_the_last_evaluation_or_save_begins_no_other_seed(
  trained, config, monkeypatch, tmp_path
):
  """The last step is saved then; in the first case its evaluation is owed, and made next time."""
  (tmp_path / "seed_1").symlink_to(trained[0] / "seed_1")
  with monkeypatch.context() as patch:
    patch.setattr(window, "add", signal_at(STEPS, signal.SIGTERM))
    code, printed = train(config, tmp_path, (1, 5, 6))
  assert (code, "Stopped at seed 5" in printed) == (0, True)
  assert not evaluation.logged_figures(str(tmp_path / "seed_5"), step=STEPS)
  save = Checkpoints.save

  def save_and_signal(self, *arguments, **named):
    os.kill(os.getpid(), signal.SIGINT)
    return save(self, *arguments, **named)

  with monkeypatch.context() as patch:
    patch.setattr(Checkpoints, "save", save_and_signal)
    code, printed = train(config, tmp_path, (5, 7, 6))
  assert "Seed 5 is trained" not in printed
  assert evaluation.logged_figures(str(tmp_path / "seed_5"), step=STEPS)
  assert (code, "Stopped at seed 7" in printed) == (130, True)
  assert (tmp_path / "seed_7" / "report.html").exists()
  assert not (tmp_path / "seed_6").exists()
  assert not (tmp_path / "seeds.json").exists()


@pytest.mark.nightly
def test_a_folder_of_another_run_is_told_before_any_seed_is_trained(trained, config, tmp_path):
  (tmp_path / "seed_1").symlink_to(trained[0] / "seed_1")
  other = json.loads(json.dumps(config))
  other["optim"]["learning_rate"] = 0.5
  with pytest.raises(UserError, match=r"seed_1 was started with another config .*learning_rate"):
    train(other, tmp_path, (8, 1))
  assert not (tmp_path / "seed_8").exists()


def test_without_an_evaluation_there_is_nothing_to_compare(config, tmp_path):
  empty = json.loads(json.dumps(config))
  empty["evals"] |= {"names": [], "final_names": []}
  with pytest.raises(UserError, match=r"evals.names and evals.final_names are empty; name one"):
    train(empty, tmp_path, (1, 2))


def test_a_figure_that_a_run_lacks_is_named():
  summed_up = series.summary({4: {"eval/a": 1.0, "eval/b": 2.0}, 9: {"eval/a": 2.0, "eval/c": 0.0}})
  assert summed_up["eval/a"] == {"values": [1.0, 2.0], "mean": 1.5, "std": pytest.approx(0.5**0.5)}
  assert summed_up["eval/b"] == {"values": [2.0, None], "mean": None, "std": None}
  assert summed_up["eval/c"] == {"values": [None, 0.0], "mean": None, "std": None}
  lines = [line.split(maxsplit=1) for line in series.table((4, 9), summed_up).splitlines() if line]
  assert lines[2:] == [
    ["eval/b", "not measured with seed 9"],
    ["eval/c", "not measured with seed 4"],
  ]


@pytest.mark.nightly
def test_figures_that_are_not_finite_are_summed_up(trained, config, monkeypatch):
  workdir, _ = trained
  found = {"eval/a": math.inf, "eval/b": math.nan, "eval/c": 1.0}
  monkeypatch.setattr(series, "logged_figures", lambda *_, **__: found)
  monkeypatch.setattr(training, "train_run", lambda *_, **__: interrupt.Interrupts())
  assert train(config, workdir, (3, 1))[0] == 0
  figures = json.loads((workdir / "seeds.json").read_text(), parse_constant=pytest.fail)["figures"]
  assert figures["eval/a"] == {"values": ["inf", "inf"], "mean": "inf", "std": "nan"}
  assert figures["eval/b"] == {"values": ["nan", "nan"], "mean": "nan", "std": "nan"}
  assert figures["eval/c"] == {"values": [1.0, 1.0], "mean": 1.0, "std": 0.0}


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("3", "--seeds=3 is one seed, which has no deviation; name two or more"),
    ("1,2,01", "--seeds=1,2,01 names 1 2 times; name it once"),
    ("", r"'' is no seed; give whole numbers in \[0, 2\*\*63\)"),
    ("1,,2", "'' is no seed"),
    ("1,-2", "'-2' is no seed"),
    ("1,2.0", "'2.0' is no seed"),
    ("1,²", "'²' is no seed"),
    (f"1,{2**63}", "'9223372036854775808' is no seed"),
  ],
)
def test_wrong_seeds_are_one_line(text, message):
  with pytest.raises(UserError, match=message) as error:
    series.read_seeds(text)
  assert "\n" not in str(error.value)


def test_seeds_keep_their_order():
  assert series.read_seeds("10, 2,0") == (10, 2, 0)
