"""A whole run in this process, and what a wrong config gets before anything compiles."""

import contextlib
import io
import json
import math
import os
import re
import signal

import jax
import pytest

import looped_lm
from looped_lm import jobs
from looped_lm.errors import UserError
from looped_lm.evals import generated_pairs
from looped_lm.jobs import evaluation, experiment
from looped_lm.models import looped
from looped_lm.scaling import flops
from looped_lm.train import metrics as log
from looped_lm.train import milestones, window


def run(mode, config, workdir, **flags):
  flags = {"overrides": {}, "allow_config_change": False} | flags
  jobs.run(mode, config, workdir=str(workdir), **flags)


@pytest.fixture(scope="module")
def trained(tiny_config, tmp_path_factory):
  """A finished run: its config and folder, with what it printed beside them."""
  config, workdir = tiny_config(), tmp_path_factory.mktemp("run")
  config["evals"] |= {
    "final_names": ("loop_diagnostics", "logit_lens", "attention_maps"),
    "loop_diagnostics": {"modes": ("clm",), "num_batches": 1},
  }
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    run("train", config, workdir, overrides={"train.total_steps": 20})
  (workdir / "printed.txt").write_text(printed.getvalue())
  return config, workdir


def test_a_run_ends_with_its_figures(trained):
  printed = (trained[1] / "printed.txt").read_text().splitlines()
  figures = dict(line.split() for line in printed if line.startswith("eval/"))
  assert {"eval/clm/loss_nats", "eval/clm/loop/01/loss_nats"} <= figures.keys()
  assert float(figures["eval/unigram/train_entropy_nats"]) > 0
  assert printed[-1].startswith("Report: ")


def test_a_run_leaves_log_checkpoints_record_and_report(trained):
  config, workdir = trained
  records = log.read(str(workdir))
  steps = [record["step"] for record in records if "train/loss_nats" in record]
  assert steps == [5, 10, 15, 20]
  losses = [record["train/loss_nats"] for record in records if "train/loss_nats" in record]
  assert losses[-1] < losses[0]
  figures = {name for record in records for name in record}
  loops = config["model"]["num_loops"]
  for mode in ("clm", "mntp"):
    assert f"train/{mode}/accuracy" in figures
    assert {f"eval/{mode}/loop/{loop:02}/loss_nats" for loop in range(1, loops + 1)} <= figures
  assert {"eval/injection/rho_max", "eval/unigram/train_entropy_nats", "train/grad_norm"} <= figures
  assert "eval/minimal_pairs_generated/causal/score_percent" in figures
  assert (workdir / "evals" / "leaderboard_causal.json").exists()
  assert all(math.isfinite(value) for record in records for value in record.values())
  assert sorted(int(p.name) for p in (workdir / "checkpoints").iterdir()) == [10, 20]
  record = json.loads((workdir / "run.json").read_text())["starts"][0]
  assert record["overrides"] == {"train.total_steps": 20}
  assert record["versions"]["jax"] == jax.__version__
  assert (
    json.loads((workdir / "config.json").read_text())["model"]["injection"]["name"] == "diagonal"
  )
  assert "held-out" in (workdir / "report.html").read_text().lower()
  assert list((workdir / "plots").glob("*.png"))
  # Some evaluators are asked at the end alone.
  assert {r["step"] for r in records if f"eval/depth/{2 * loops:02}/clm_loss_nats" in r} == {20}
  assert {r["step"] for r in records if "eval/clm/loss_nats" in r} == {10, 20}
  shown = sorted(path.name for path in (workdir / "diagnostics").iterdir())
  assert shown == ["attention_maps.npz", "logit_lens.npz"]


def test_the_last_loop_is_the_reported_loss(trained):
  config, workdir = trained
  last = [record for record in log.read(str(workdir)) if "eval/clm/loss_nats" in record][-1]
  loop = config["model"]["num_loops"]
  assert last["eval/clm/loss_nats"] == last[f"eval/clm/loop/{loop:02}/loss_nats"]


def test_eval_repeats_the_figures_of_the_run(trained, capsys):
  config, workdir = trained
  last = [record for record in log.read(str(workdir)) if "eval/clm/loss_nats" in record][-1]
  (workdir / "diagnostics" / "logit_lens.npz").unlink()
  run("eval", config, workdir)
  printed = dict(line.split() for line in capsys.readouterr().out.splitlines() if "eval/" in line)
  assert (workdir / "diagnostics" / "logit_lens.npz").exists()
  assert float(printed["eval/clm/loss_nats"]) == pytest.approx(last["eval/clm/loss_nats"], abs=1e-5)


@pytest.mark.nightly
def test_a_trained_model_is_fine_tuned_on_a_set_of_ones_own(trained, tiny_config, tmp_path, capsys):
  """Which determiner a sentence has: the commoner one is right in about half of them."""
  lines = [
    {"words": text, "kind": "many" if "se " in text else "one"}
    for name, *pair in generated_pairs.pairs(per_paradigm=60)
    if name == "determiners/this_or_these"
    for text in pair
  ]
  custom = {"text_fields": ("words",), "label_field": "kind"}
  for part, some in (("train", lines[:88]), ("valid", lines[88:])):
    custom[part] = str(tmp_path / f"{part}.jsonl")
    (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in some))
  config = tiny_config()
  config["evals"] |= {"names": ("glue",)}
  config["evals"]["glue"] |= {"tasks": (), "custom": custom, "learning_rate": 2e-3, "epochs": 12}
  config["evals"]["glue"] |= {"batch_size": 8}
  run("eval", config, trained[1])
  printed = capsys.readouterr().out
  assert "glue/custom: epoch 12 of 12, loss " in printed
  figures = dict(line.split() for line in printed.splitlines() if line.startswith("eval/glue/"))
  left = json.loads((trained[1] / "evals" / "glue" / "causal" / "scores.json").read_text())
  assert left["tasks"]["custom"]["majority_accuracy_percent"] < 65
  assert float(figures["eval/glue/causal/task/custom/accuracy_percent"]) > 85


def generating(config, **changes):
  changed = json.loads(json.dumps(config))
  changed["generate"] |= changes
  return changed


def test_a_trained_model_continues_and_fills(trained, capsys):
  config, workdir = trained
  assert (workdir / "tokenizer.json").exists()
  run("generate", generating(config, prompts=["The"], max_new_tokens=4, num_loops=2), workdir)
  text, figures = capsys.readouterr().out.rsplit("[", 1)
  assert text.startswith("The")
  assert "4 tokens" in figures
  assert "2.00 of 2 loops per token; cache " in figures
  run("generate", generating(config, prompts=["The<mask> sees"], task="infill"), workdir)
  filled = capsys.readouterr().out.splitlines()
  assert "<mask>" not in filled[0]
  assert filled[1].startswith("[")


def test_a_run_in_python_gives_what_the_commands_give(trained, capsys):
  """Text, fills, and the score on the generated minimal pairs that the run has logged."""
  config, workdir = trained
  model = looped_lm.load(workdir)
  given = {"prompts": ["The", "A dog"], "max_new_tokens": 4, "seed": 3}
  run("generate", generating(config, **given), workdir)
  printed = capsys.readouterr().out
  found = model.generate(given["prompts"], max_new_tokens=4, seed=3)
  texts = [f"{prompt}{each.text}" for prompt, each in zip(given["prompts"], found, strict=True)]
  assert printed.startswith("\n\n".join(texts) + "\n\n[8 tokens")
  run("generate", generating(config, prompts=["The<mask> sees"], task="infill"), workdir)
  assert capsys.readouterr().out.splitlines()[0] == model.infill(["The<mask> sees"])[0].text
  pairs = [pair[1:] for pair in generated_pairs.pairs(per_paradigm=20)]
  nats = model.score([text for pair in pairs for text in pair]).nats_N.reshape(-1, 2)
  name = "eval/minimal_pairs_generated/causal/score_percent"
  logged = [record[name] for record in log.read(str(workdir)) if name in record][-1]
  assert 100 * (nats[:, 0] > nats[:, 1]).mean() == pytest.approx(logged, abs=1e-6)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({}, r"Nothing to go on with: give --prompt"),
    ({"prompts": ["a"], "task": "guess"}, r"generate.task='guess' is none of"),
    (
      {"prompts": ["a<mask>"], "task": "infill", "halting": "kl", "halting_threshold": 0.1},
      r"generate.halting='kl' has no meaning for generate.task='infill'; leave it at 'none'",
    ),
    (
      {"prompts": ["a"], "halting": "entropy", "halting_threshold": 1.0, "halting_min_loops": 9},
      r"generate.halting_min_loops=9 must be at most the 3 loops",
    ),
    ({"prompts": ["a"], "num_loops": -1}, r"generate.num_loops=-1 must be at least 1"),
    ({"prompts": ["a"], "halting": "kl", "halting_threshold": -1.0}, r"halting_threshold=-1.0"),
    ({"prompts": ["a"], "halting": "exit_gate", "halting_threshold": 0.5}, r"model.exit_gate=True"),
    ({"prompts": ["a"], "prompt_file": "nowhere.txt"}, r"prompt_file='nowhere.txt': no such file"),
  ],
)
def test_a_wrong_request_for_text_is_one_line(trained, changes, message):
  config, workdir = trained
  with pytest.raises(UserError, match=message):
    run("generate", generating(config, **changes), workdir)


def test_a_causal_model_fills_no_masks(tiny_config, tmp_path):
  config = tiny_config("gpt2")
  config = generating(config, prompts=["a<mask>"], task="infill")
  with pytest.raises(UserError, match=r"generate.task='infill' needs a model .*'clm' has none"):
    run("generate", config, tmp_path)


def test_a_model_without_relative_distances_has_none_to_clamp(tiny_config, tmp_path):
  config = tiny_config("gpt2")
  config["evals"]["clamp_distance"] = True
  with pytest.raises(UserError, match=r"needs a block with learned .*'pre_norm' has none"):
    run("describe", config, tmp_path)


def test_longer_rows_are_clamped_at_the_length_of_training(trained, monkeypatch):
  """The config in hand has longer rows than the run was trained on."""
  config = json.loads(json.dumps(trained[0]))
  config["data"]["seq_len"] *= 2
  asked = []
  monkeypatch.setattr(evaluation, "build", lambda config, **given: asked.append(given) or 1 / 0)
  for clamps, wanted in ((True, 32), (False, None)):
    config["evals"]["clamp_distance"] = clamps
    with pytest.raises(ZeroDivisionError):
      run("eval", config, trained[1])
    assert asked.pop() == {"trained_length": wanted}
    assert experiment.longest_distance(config, trained_length=wanted) == (31 if clamps else None)
  config["evals"]["clamp_distance"] = True
  assert experiment.longest_distance(config) == 63


def test_words_are_counted_and_budgets_hold(trained, tiny_config):
  config, workdir = trained
  seen = [r["train/words_seen"] for r in log.read(str(workdir)) if "train/words_seen" in r]
  assert seen == sorted(seen)
  by_words = tiny_config()
  by_words["train"] |= {"total_steps": 0, "total_words": int(seen[-1])}
  assert jobs.build(by_words).total_steps == 20


def test_a_workdir_of_another_config_names_the_fields_and_the_flag(trained):
  config, workdir = trained
  other = json.loads(json.dumps(config))
  other["optim"]["learning_rate"] = 0.5
  with pytest.raises(UserError, match=r"optim.learning_rate: 0.0141 -> 0.5.*--allow_config_change"):
    run("train", other, workdir)


def test_describe_and_prepare_print_without_training(tiny_config, capsys, tmp_path):
  config = tiny_config()
  config["data"]["prepared_dir"] = str(tmp_path)
  run("describe", config, None)
  assert "--mode=prepare" in capsys.readouterr().out
  run("prepare", config, None)
  assert "words" in capsys.readouterr().out
  run("describe", config, None)
  text = capsys.readouterr().out
  assert "--mode=prepare" not in text
  assert "total words" in text


@pytest.mark.nightly
def test_the_compiler_tells_the_memory_of_each_device(tiny_config, capsys):
  """Nothing is prepared for it, and what is held is the state's bytes, split as the mesh does."""
  held = {}
  for fsdp in (1, jax.device_count()):
    config = tiny_config()
    config["tokenizer"]["vocab_size"] = 640
    config["model"]["remat"] = "auto"
    if fsdp > 1:
      config["parallel"] |= {"strategy": "mesh", "fsdp": fsdp}
    run("describe", config, None, compiled=True)
    text = capsys.readouterr().out
    assert "remat='auto' takes 'attention'" in text
    figures = re.findall(r"(state and rows|temporaries|together) +([\d.]+) (kB|MB)", text)
    size = {name: float(value) * {"kB": 1e3, "MB": 1e6}[unit] for name, value, unit in figures}
    assert size["together"] >= 0.99 * (size["state and rows"] + size["temporaries"])
    held[fsdp] = size["state and rows"]
  params = flops.abstract_params(looped.build(config["model"], vocab_size=640))
  # Parameters, two moments and the average.
  assert held[1] == pytest.approx(16 * sum(x.size for x in jax.tree.leaves(params)), rel=0.02)
  assert held[fsdp] < 1.3 * held[1] / fsdp


def set_(path, value):
  return lambda config: _assign(config, path.split("."), value)


def _assign(tree, path, value):
  for key in path[:-1]:
    tree = tree[key]
  tree[path[-1]] = value


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (set_("train.batch_size", 6), "train.batch_size=6 rows must be a multiple of 4.*nearest is 8"),
    (set_("train.total_words", 5), "Exactly one of train's budgets"),
    (set_("train.ema_decay", 1.0), r"train.ema_decay=1.0 must lie in \[0, 1\)"),
    (set_("train.log_every_steps", 0), "log_every_steps=0 must be at least 1"),
    (set_("train.eval_every_words", -1), "train.eval_every_words=-1 must be at least 0"),
    (set_("train.skip_sigmas", -1.0), r"train.skip_sigmas=-1.0 must be a number of at least 0"),
    (set_("train.save_at_words", (0, 5)), r"save_at_words=\(0, 5\) must be whole .* rising order"),
    (set_("train.save_at_words", (7, 7)), r"save_at_words=\(7, 7\) must be whole .* rising order"),
    (set_("train.save_at_words", (1.5,)), r"save_at_words=\(1.5,\) must be whole numbers of words"),
    (set_("evals.names", ("held_uot",)), "Did you mean 'held_out'"),
    (set_("evals.final_names", ("held_out",)), "'held_out' 2 times"),
    (set_("evals.held_out", {"mods": ("clm",)}), "Did you mean evals.held_out.modes"),
    (set_("evals.names", ("blimp",)), "evals.blimp.path='evaluation_data/.* does not exist. Get"),
    (
      set_("evals.minimal_pairs_generated", {"per_pair": 3}),
      "evals.minimal_pairs_generated.per_pa",
    ),
    (set_("evals.backends", ("causl",)), r"evals.backends=\('causl',\) must be one or more of"),
    (set_("evals.loops", (0,)), r"evals.loops=\(0,\) must be numbers of at least 1"),
    (set_("evals.clamp_distance", 2), "evals.clamp_distance=2 must be True or False"),
    (set_("evals.weights", "avg"), "evals.weights='avg' is none of"),
    (set_("evals.batch_size", 3), "evals.batch_size=3 must be a multiple of 4 devices"),
    (set_("parallel.strategy", "magic"), "parallel.strategy='magic' is none of"),
    (set_("parallel.fsdp", 2), "parallel.fsdp=2 .* need parallel.strategy='mesh'"),
    (set_("train.watchdog_seconds", -1.0), "train.watchdog_seconds=-1.0 must be at least 0"),
    (set_("objective.mntp_fraction", 1.5), r"mntp_fraction=1.5 must lie in \[0, 1\]"),
    (set_("objective.name", "clmm"), "Did you mean 'clm'"),
    (set_("optim.name", "lam"), "Did you mean 'lamb'"),
    (set_("optim.floor_fraction", 2.0), "floor_fraction=2.0"),
    (set_("init.name", "magic"), "init.name='magic' is none of"),
    (set_("data.seq_len", 7), "data.seq_len=7"),
    (set_("data.paths", ()), "data.paths"),
    (set_("data.paths", ("nowhere.txt",)), "nowhere.txt"),
    (set_("tokenizer.vocab_size", 60_000), "vocab_size"),
  ],
)
def test_bad_values_get_one_line_and_leave_nothing(tiny_config, tmp_path, change, message):
  config, workdir = tiny_config(), tmp_path / "run"
  config["data"]["prepared_dir"] = str(tmp_path / "prepared")
  change(config)
  with pytest.raises(UserError, match=message) as error:
    run("train", config, workdir)
  assert "\n" not in str(error.value)
  assert not workdir.exists()
  prepared = tmp_path / "prepared"
  left = list(prepared.iterdir()) if prepared.exists() else []
  assert all(path.name.endswith("-lock") for path in left), left


def test_a_milestone_beyond_the_run_is_told_before_anything_compiles(
  tiny_config, tmp_path, monkeypatch
):
  config = tiny_config()
  config["train"]["save_at_words"] = (1500, 1_000_000)
  monkeypatch.setattr(jobs.Experiment, "create_state", lambda _: pytest.fail("compiled"))
  message = r"train.save_at_words has 1,000,000, and the run ends after 20 steps with 2,\d+ words"
  with pytest.raises(UserError, match=message):
    run("train", config, tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_ages_of_acquisition_need_milestones(tiny_config, tmp_path, monkeypatch):
  config = with_ages(tiny_config(), tmp_path)
  monkeypatch.setattr(jobs.Experiment, "create_state", lambda _: pytest.fail("compiled"))
  for words in ((), (500, 1000)):
    config["train"]["save_at_words"] = words
    message = rf"The config keeps {len(words)} milestones, and evals names what needs 3: set more"
    with pytest.raises(UserError, match=message):
      run("train", config, tmp_path / "run")
  (tmp_path / "run").mkdir()
  with pytest.raises(UserError, match=r"has no milestones: train with"):
    run("eval", config, tmp_path / "run")
  monkeypatch.setattr(milestones, "saved", lambda _: {"chck_500": "", "chck_1000": ""})
  with pytest.raises(UserError, match=r"The run has 2 milestones, and evals names what needs 3"):
    run("eval", config, tmp_path / "run")


@pytest.mark.nightly
def test_ages_of_acquisition_are_of_every_milestone(tiny_config, tmp_path):
  """At the end of a run, the milestone of the last step included, and by evaluation alike."""
  config = with_ages(tiny_config(), tmp_path)
  config["train"] |= {"total_steps": 12, "save_at_words": (300, 600, 900, 1220)}
  workdir = tmp_path / "run"
  run("train", config, workdir)
  folder = workdir / "evals" / "aoa" / "causal"
  first = json.loads((folder / "predictions.json").read_text())
  steps = [entry["step"] for entry in first["results"]]
  assert steps == ["chck_300"] * 2 + ["chck_600"] * 2 + ["chck_900"] * 2 + ["chck_1220"] * 2
  assert len({entry["surprisal"] for entry in first["results"]}) == 8
  (kept,) = (int(p.name) for p in (workdir / "milestones" / "chck_1220").iterdir())
  assert kept == 12
  assert json.loads((folder / "scores.json").read_text())["milestones"] == steps[::2]
  assert evaluation.logged_figures(str(workdir))["eval/aoa/causal/score_percent"] == 0.0
  (folder / "predictions.json").unlink()
  run("eval", config, workdir)
  assert json.loads((folder / "predictions.json").read_text()) == first


def with_ages(config, folder):
  """Two words to be asked for at the end of a run."""
  contexts = {word: [{"context": "There was a"}] for word in ("dog", "tree")}
  (folder / "cdi_childes.json").write_text(json.dumps(contexts))
  table = "word,16,17,18,19\ndog,0.1,0.4,0.7,0.8\ntree,0.2,0.4,0.6,0.9\n"
  (folder / "cdi_human.csv").write_text(table)
  config["evals"] |= {"names": (), "final_names": ("aoa",)}
  config["evals"]["aoa"]["path"] = str(folder / "cdi_childes.json")
  return config


@pytest.mark.slow
def test_a_step_is_replayed_bit_for_bit(tiny_config, tmp_path, capsys):
  """From a checkpoint before it; the log of one step per line is what it is compared with."""
  config = tiny_config()
  config["train"] |= {"total_steps": 4, "log_every_steps": 1, "save_every_steps": 2}
  config["train"] |= {"eval_every_steps": 0, "keep_latest": 2}
  config["evals"]["names"] = ()
  run("train", config, tmp_path)
  before = sorted(path.name for path in tmp_path.rglob("*"))
  capsys.readouterr()
  run("replay", config, tmp_path, replay_step=4)
  printed = capsys.readouterr().out
  assert "Starting from the checkpoint of step 2." in printed
  assert "Everything in the state is finite after step 4." in printed
  (logged,) = (r for r in log.read(str(tmp_path)) if r["step"] == 4 and "train/loss_nats" in r)
  lines = [line.split() for line in printed.splitlines() if line.startswith("train/")]
  replayed = {name: float(value) for name, value in lines}
  for name in ("train/loss_nats", "train/grad_norm", "train/clm/loss_nats"):
    assert replayed[name] == float(f"{logged[name]:.9g}")
  rows = jobs.build(config).pipeline.indices(3).tolist()
  assert [int(line.split()[1][:-1]) for line in printed.splitlines() if "  row " in line] == rows
  assert sorted(path.name for path in tmp_path.rglob("*")) == before
  with pytest.raises(UserError, match=r"--step=5 must lie in \[1, 4\]"):
    run("replay", config, tmp_path, replay_step=5)


@pytest.mark.nightly
def test_a_run_goes_on_under_another_strategy(trained, tiny_config, tmp_path):
  """Both ways, with evaluation on each: the files are the same."""
  other = {"strategy": "mesh", "fsdp": 2, "tensor": 2}
  for first, second in (({}, other), (other, {})):
    workdir = tmp_path / str(len(first))
    config = tiny_config()
    config["parallel"] |= first
    config["train"]["total_steps"] = 20
    with told_to_stop(10):
      run("train", config, workdir)
    config = tiny_config()
    config["parallel"] |= second
    run("train", config, workdir)
    ours, theirs = (
      {
        (r["step"], name): value
        for r in log.read(str(folder))
        for name, value in r.items()
        if name.endswith("/loss_nats")
      }
      for folder in (workdir, trained[1])
    )
    assert ours == pytest.approx(theirs, abs=1e-4)
    run("eval", config, workdir)


@contextlib.contextmanager
def told_to_stop(step):
  """SIGTERM in a step."""
  with pytest.MonkeyPatch.context() as patch:
    add = window.add

    def then_signal(*arguments):
      if arguments[2] == step:
        os.kill(os.getpid(), signal.SIGTERM)
      return add(*arguments)

    patch.setattr(window, "add", then_signal)
    yield


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(tiny_config, tmp_path):
  config = tiny_config()
  config["optim"] |= {"name": "adamw", "learning_rate": 1e30, "warmup_fraction": 0.0}
  config["train"] |= {"log_every_steps": 1, "save_every_steps": 1}
  with pytest.raises(
    UserError, match=r"Step \d+ is not finite: loss .*last good checkpoint is step .*--mode=replay"
  ):
    run("train", config, tmp_path)
