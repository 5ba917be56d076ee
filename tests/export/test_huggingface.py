"""The folder that the export writes, as far as it can be told without PyTorch."""

import functools
import json
import pathlib

import jax
import numpy as np
import pytest
import tokenizers

from looped_lm import jobs, plugins, tensor_files
from looped_lm.configuration import sibling
from looped_lm.data.tokenizer import Tokenizer
from looped_lm.errors import UserError
from looped_lm.export import huggingface
from looped_lm.init import names_exported, torch_weights
from looped_lm.models import looped, tensor_names
from looped_lm.models.architecture import architecture
from looped_lm.train import milestones
from looped_lm.types import State

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.py"))


@pytest.fixture(scope="module")
def tokenizer(exported):
  return exported.train_tokenizer()


@pytest.fixture(scope="module")
def model(exported, tokenizer, tmp_path_factory):
  return exported.Exported("looped_layer_diagonal", tmp_path_factory.mktemp("hf") / "x", tokenizer)


def test_the_folder_holds_everything_and_the_code_is_ours(model):
  assert {path.name for path in model.folder.iterdir()} == {
    *("README.md", "config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("configuration_looped_lm.py", "layers_looped_lm.py", "loops_looped_lm.py"),
    "modeling_looped_lm.py",
  }
  assert not model.folder.with_name("x.new").exists()
  config = json.loads((model.folder / "config.json").read_text())
  assert config["block"]["norm_eps"] == model.settings["block"]["norm_eps"]
  assert config["num_loops"] == model.settings["num_loops"]
  assert config["injection"] == {"name": "diagonal", "state_init": "zero"}
  assert config["tie_word_embeddings"] is True
  assert config["max_position_embeddings"] >= 512


def test_weights_are_there_once_and_in_torch_layout(model):
  tensors = tensor_files.read(model.folder / "model.safetensors")
  D, F = 32, 64
  assert tensors["model.core.0.mlp.up.weight"].shape == (2 * F, D)
  np.testing.assert_array_equal(
    tensors["model.core.0.mlp.up.weight"],
    np.asarray(model.params["core"]["layers_0"]["mlp"]["up"]["kernel"]).T,
  )
  assert "head.decoder.weight" not in tensors
  assert sum(t.size for t in tensors.values()) == sum(x.size for x in jax.tree.leaves(model.params))


def test_the_card_says_what_the_model_is_and_what_it_read(exported, model):
  card = (model.folder / "README.md").read_text()
  for part in ("license: mit", "1,234 (each exposure counted)", "eval/clm/loss_nats | 4.5000"):
    assert part in card
  assert '"learning_rate": 0.0141' in card, "the run's configuration"
  unknown = exported.facts({}, license="", words_seen=None, figures={})
  settings = json.loads((model.folder / "config.json").read_text())
  card = huggingface.model_card.text(unknown, settings, {})
  assert "license: unknown" in card
  assert "| words read | unknown |" in card


@pytest.mark.parametrize("name", NAMES)
def test_names_are_a_table_that_reads_in_both_directions(name):
  config = sibling(str(CONFIGS / "x.py"), name, "tiny")
  model = looped.build(config.to_dict()["model"], vocab_size=600)
  like = jax.eval_shape(model.init, jax.random.key(0))
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda x: rng.standard_normal(x.shape, np.float32), like)
  tensors = tensor_names.to_tensors(params)
  assert all(not n.startswith("head.") or "head" in params for n in tensors)
  assert {entry.name: entry.shape for entry in tensor_names.table(like)} == {
    name: tensor.shape for name, tensor in tensors.items()
  }
  again = tensor_names.to_params(tensors, like)
  assert jax.tree.structure(again) == jax.tree.structure(params)
  for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True):
    np.testing.assert_array_equal(ours, theirs)


def test_import_undoes_export_and_export_undoes_import(exported, model, tokenizer, tmp_path):
  init = torch_weights.Init(path=str(model.folder))
  params = init.load(model.model, settings=model.settings, tokenizer=tokenizer)
  assert jax.tree.structure(params) == jax.tree.structure(model.params)
  for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(model.params), strict=True):
    np.testing.assert_array_equal(ours, theirs)
  again = huggingface.export(
    str(tmp_path / "again"),
    params,
    model=model.settings,
    tokenizer=tokenizer,
    causal=False,
    seq_len=32,
    facts=exported.facts(model.config),
  )
  for name in ("model.safetensors", "config.json", "tokenizer.json", "README.md"):
    assert (again / name).read_bytes() == (model.folder / name).read_bytes(), name


def test_a_folder_tells_the_settings_of_its_network(exported, tokenizer):
  """For every model that can be exported: the same architecture, and the same parameters."""
  for name in exported.MODELS:
    settings = exported.config_of(name)["model"]
    told = huggingface.hf_config(settings, tokenizer=tokenizer, causal=False, seq_len=24)
    told = json.loads(json.dumps(told))
    assert told["trained_length"] == 24
    again = names_exported.settings(told)
    size = tokenizer.vocab_size
    ours, theirs = (architecture(each, vocab_size=size) for each in (settings, again))
    assert json.dumps(ours) == json.dumps(theirs), name
    shapes = [
      jax.eval_shape(looped.build(each, vocab_size=size).init, jax.random.key(0))
      for each in (settings, again)
    ]
    assert shapes[0] == shapes[1], name


def test_import_refuses_another_architecture_and_another_vocabulary(
  exported, model, tokenizer, tmp_path
):
  init = torch_weights.Init(path=str(model.folder))
  other = model.settings | {"block": model.settings["block"] | {"dwa_scope": "stack"}}
  with pytest.raises(UserError, match=r"model.block.dwa_scope is 'stack' here and 'layer' there"):
    init.load(model.model, settings=other, tokenizer=tokenizer)
  foreign = exported.train_tokenizer(add_prefix_space=False)
  with pytest.raises(UserError, match=r"another vocabulary .*--config.tokenizer.path="):
    init.load(model.model, settings=model.settings, tokenizer=foreign)
  wider = model.settings | {"core_layers": 2}
  model2 = looped.build(wider, vocab_size=tokenizer.vocab_size)
  init = torch_weights.Init(path=str(model.folder), allow_other_settings=True)
  with pytest.raises(UserError, match=r"missing \['model.core.1.mix_attention.alpha', "):
    init.load(model2, settings=wider, tokenizer=tokenizer)


def test_the_tokenizer_begins_texts_and_pairs_with_bos(model, tokenizer):
  core = tokenizers.Tokenizer.from_file(str(model.folder / "tokenizer.json"))
  ids = list(tokenizer.encode("the cat"))
  assert core.encode("the cat").ids == [tokenizer.bos_id, *ids]
  assert core.encode("the cat", "the cat").ids == [tokenizer.bos_id, *ids] * 2
  assert Tokenizer.load(str(model.folder)).vocabulary() == tokenizer.vocabulary()


def test_what_the_pytorch_code_does_not_know_is_refused(model, tokenizer):
  settings = model.settings | {"attention": {"name": "sideways"}}
  with pytest.raises(UserError, match=r"model.attention.name='sideways' cannot be exported"):
    huggingface.hf_config(settings, tokenizer=tokenizer, causal=False, seq_len=32)


def test_every_block_and_injection_is_known_to_the_pytorch_code(exported):
  configs = [exported.config_of(name)["model"] for name in exported.MODELS]
  for folder, group in (("blocks", "block"), ("injection", "injection")):
    assert {config[group]["name"] for config in configs} == set(plugins.names(folder))


def test_a_folder_that_is_no_export_is_left_alone(model, tmp_path):
  (tmp_path / "note.txt").write_text("mine")
  with pytest.raises(UserError, match="holds something that is no export"):
    huggingface.check_folder(str(tmp_path))
  with pytest.raises(UserError, match="is a file"):
    huggingface.check_folder(str(tmp_path / "note.txt"))
  with pytest.raises(UserError, match="not on this machine"):
    huggingface.check_folder("gs://bucket/x")
  assert huggingface.check_folder(str(model.folder)) == model.folder
  assert huggingface.check_folder(str(tmp_path / "new")) == tmp_path / "new"


@pytest.mark.slow
def test_a_run_is_exported_and_another_starts_from_it(tiny_config, tmp_path, capsys):
  config = tiny_config()
  config["train"] |= {"total_steps": 2, "save_every_steps": 1, "eval_every_steps": 0}
  config["evals"] |= {"names": (), "best_metric": "", "weights": "ema"}
  flags = {"overrides": {}, "allow_config_change": False}
  workdir = str(tmp_path / "run")
  jobs.run("train", config, workdir=workdir, **flags)
  jobs.run("export", config, workdir=workdir, **flags, export=jobs.Export(license="cc0-1.0"))
  assert "Exported step 2 (ema weights) to" in capsys.readouterr().out
  folder = tmp_path / "run" / "export"
  card = (folder / "README.md").read_text()
  assert "license: cc0-1.0" in card
  assert "| steps | 2 |" in card
  assert "# run\n" in card
  state = jobs.build(config).initial_state()
  tensors = tensor_files.read(folder / "model.safetensors")
  table = np.asarray(state.params["embed"]["embedding"])
  assert 0 < np.abs(tensors["model.embed.tokens.weight"] - table).max() < 0.1

  config["init"] = {"name": "torch_weights", "path": str(folder), "allow_other_settings": False}
  experiment = jobs.build(config)
  state = experiment.initial_state()
  for name, tensor in tensor_names.to_tensors(state.params).items():
    np.testing.assert_array_equal(tensor, tensors[name])
  experiment.abstract_state()
  other = jobs.Export(output=str(tmp_path / "first"), step=1)
  jobs.run("export", config, workdir=workdir, **flags, export=other)
  assert "# first\n" in (tmp_path / "first" / "README.md").read_text()
  with pytest.raises(UserError, match=r"has no checkpoint of step 7; it has \[1, 2\]"):
    jobs.run("export", config, workdir=workdir, **flags, export=jobs.Export(step=7))


def filled(number, leaf):
  return np.full(leaf.shape, number, leaf.dtype)


def test_every_milestone_becomes_a_complete_folder_with_its_own_words(
  tiny_config, tmp_path, capsys
):
  config = tiny_config()
  config["train"]["save_at_words"] = (300, 1500)
  flags = {"overrides": {}, "allow_config_change": False}
  workdir, output = str(tmp_path / "run"), tmp_path / "run" / "export_milestones"
  export = jobs.Export(milestones=True, license="mit")
  with pytest.raises(UserError, match=r"has no milestones: train with train.save_at_words"):
    jobs.run("export", config, workdir=workdir, **flags, export=export)
  step = jobs.Export(milestones=True, step=3)
  with pytest.raises(UserError, match=r"--milestones exports them all; leave --step=3 out"):
    jobs.run("export", config, workdir=workdir, **flags, export=step)

  experiment = jobs.build(config)
  pipeline = experiment.pipeline
  kept = milestones.Milestones(
    workdir, (300, 1500), pipeline=pipeline, total_steps=20, config=config
  )
  reached = {step: due for step in range(1, 21) if (due := kept.due(step))}
  abstract = experiment.abstract_state()
  for number, (step, due) in enumerate(reached.items()):
    weights = jax.tree.map(functools.partial(filled, number), abstract.params)
    kept.save(State(step=step, params=weights, ema=weights, opt_state={}, key=None), due)  # pyright: ignore
  lines = [{"step": step, "eval/clm/loss_nats": 7.0 - step / 10} for step in reached]
  (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
  capsys.readouterr()
  jobs.run("export", config, workdir=workdir, **flags, export=export)
  assert len(capsys.readouterr().out.splitlines()) == 2
  assert sorted(path.name for path in output.iterdir()) == ["chck_1500", "chck_300"]
  for number, (step, (words,)) in enumerate(reached.items()):
    folder = output / f"chck_{words}"
    assert (folder / "modeling_looped_lm.py").exists()
    assert (folder / "tokenizer.json").exists()
    card = (folder / "README.md").read_text()
    assert f"# run-chck_{words}\n" in card
    assert f"| words read | {pipeline.words_seen(step):,} (each exposure counted) |" in card
    assert words <= pipeline.words_seen(step)
    assert f"| steps | {step} |" in card
    assert f"| measured at step {step} |" in card
    assert f"| eval/clm/loss_nats | {7.0 - step / 10:.4f} |" in card
    tensors = tensor_files.read(folder / "model.safetensors")
    assert all((tensor == number).all() for tensor in tensors.values())

  # Nothing is written where one of the folders is taken, nor into another export.
  other = tmp_path / "other"
  (other / "chck_1500").mkdir(parents=True)
  (other / "chck_1500" / "note.txt").write_text("mine")
  taken = jobs.Export(milestones=True, output=str(other))
  with pytest.raises(UserError, match="chck_1500 holds something that is no export"):
    jobs.run("export", config, workdir=workdir, **flags, export=taken)
  assert [path.name for path in other.iterdir()] == ["chck_1500"]
  inside = jobs.Export(milestones=True, output=str(output / "chck_300"))
  with pytest.raises(UserError, match="is itself an export, or a run; give another --output"):
    jobs.run("export", config, workdir=workdir, **flags, export=inside)
