"""What users of transformers do with an exported folder: tokenise, fine-tune, save, generate.

Needs torch and transformers: `make test-hf`.
"""

import math

import jax
import numpy as np
import pytest

from looped_lm import tensor_files
from looped_lm.init import torch_weights

# Other people's warnings are not ours to mend.
pytestmark = [pytest.mark.hf, pytest.mark.filterwarnings("ignore")]

TEXTS = [
  "the cat sat on the mat 12.",
  " two  spaces",
  "né — ünï\n\nnew",
  "",
  "The <mask> sat<mask>",
]


@pytest.fixture(scope="module")
def torch(tmp_path_factory):
  patch = pytest.MonkeyPatch()
  patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("home")))
  patch.setenv("HF_HUB_OFFLINE", "1")
  import torch

  torch.set_num_threads(1)
  yield torch
  patch.undo()


@pytest.fixture(scope="module")
def model(exported, tmp_path_factory):
  tokenizer = exported.train_tokenizer()
  return exported.Exported("looped_layer_diagonal", tmp_path_factory.mktemp("x") / "x", tokenizer)


@pytest.fixture(scope="module")
def load(torch, model):
  import transformers

  def load(name, folder=model.folder, **options):
    auto = getattr(transformers, name)
    return auto.from_pretrained(str(folder), trust_remote_code=True, **options).eval()

  return load


@pytest.mark.parametrize("add_prefix_space", [True, False])
def test_the_tokenizer_gives_our_ids_offsets_and_text(
  exported, torch, tmp_path, model, add_prefix_space
):
  from transformers import AutoTokenizer

  ours, folder = model.tokenizer, model.folder
  if not add_prefix_space:
    ours = exported.train_tokenizer(add_prefix_space=False)
    folder = exported.Exported("looped_layer_diagonal", tmp_path / "y", ours).folder
  for again in (False, True):
    theirs = AutoTokenizer.from_pretrained(str(folder))
    for text in TEXTS:
      ids = ours.encode_with_specials(text).tolist()
      found = theirs(text, return_offsets_mapping=True)
      assert found["input_ids"] == [ours.bos_id, *ids], (text, again)
      assert set(found) == {"input_ids", "attention_mask", "offset_mapping"}
      assert found["offset_mapping"][0] == (0, 0)
      if "<mask>" not in text:
        assert theirs.decode(found["input_ids"], skip_special_tokens=True) == text
        assert found["offset_mapping"][-1][1] == len(text)
    assert theirs.is_fast
    names = ("bos", "cls", "eos", "sep", "pad", "mask", "unk")
    ids = [getattr(theirs, f"{name}_token_id") for name in names]
    assert ids == [1, 1, 2, 2, 3, 4, 0]
    assert theirs("a b", "the")["input_ids"].count(ours.bos_id) == 2
    theirs.save_pretrained(str(tmp_path / "again"))
    folder = tmp_path / "again"


def test_no_later_token_moves_a_causal_logit_and_any_moves_a_masked_one(torch, model, load):
  ids = torch.randint(16, 290, (1, 12), generator=torch.Generator().manual_seed(0))
  other = ids.clone()
  other[0, 7] = (other[0, 7] - 16 + 5) % 200 + 16
  for name, first in (("AutoModelForCausalLM", 7), ("AutoModelForMaskedLM", 0)):
    net = load(name)
    with torch.no_grad():
      moved = (net(ids).logits - net(other).logits).abs().amax(-1)[0] > 0
    assert moved.nonzero()[0, 0] == first


def test_the_loss_is_the_mean_of_next_tokens(torch, load):
  ids = torch.randint(16, 290, (2, 9), generator=torch.Generator().manual_seed(1))
  labels = ids.clone()
  labels[:, :4] = -100
  for name in ("AutoModelForCausalLM", "AutoModelForMaskedLM"):
    with torch.no_grad():
      out = load(name)(ids, labels=labels)
    log_p = out.logits.log_softmax(-1)
    expected = -np.mean([log_p[r, t - 1, ids[r, t]].item() for r in range(2) for t in range(4, 9)])
    assert out.loss.item() == pytest.approx(expected, rel=1e-5)


def test_ties_survive_saving_and_the_table_can_grow(torch, load, tmp_path):
  net = load("AutoModelForCausalLM")
  for _ in range(2):
    assert net.head.decoder.weight is net.get_input_embeddings().weight
    net.save_pretrained(str(tmp_path / "again"))
    saved = tensor_files.read(tmp_path / "again" / "model.safetensors")
    assert "head.decoder.weight" not in saved
    net = load("AutoModelForCausalLM", tmp_path / "again")
  net.resize_token_embeddings(300)
  assert net(torch.tensor([[1, 295]])).logits.shape == (1, 2, 300)
  assert net.head.decoder.weight is net.get_input_embeddings().weight


def test_what_transformers_saved_is_imported_again(model, load, tmp_path):
  load("AutoModelForMaskedLM").save_pretrained(str(tmp_path / "again"))
  init = torch_weights.Init(path=str(tmp_path / "again"))
  params = init.load(model.model, settings=model.settings, tokenizer=model.tokenizer)
  for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(model.params), strict=True):
    np.testing.assert_array_equal(ours, theirs)


def test_files_of_torch_save_are_read_without_torch(torch, tmp_path):
  table = torch.arange(12.0).reshape(3, 4)
  tensors = {
    "a": table,
    "turned": table.T,
    "part": table[1:, 2:],
    "half": table.bfloat16(),
    "ids": torch.arange(5),
    "parameter": torch.nn.Parameter(table * 2),
  }
  torch.save(tensors, tmp_path / "x.bin")
  found = tensor_files.read(tmp_path / "x.bin")
  assert found.keys() == tensors.keys()
  for name, tensor in tensors.items():
    np.testing.assert_array_equal(
      found[name].astype(np.float32), tensor.detach().float().numpy(), name
    )
  module = torch.nn.Linear(2, 3)
  torch.save(module.state_dict(), tmp_path / "y.bin")
  assert tensor_files.read(tmp_path / "y.bin")["weight"].shape == (3, 2)
  torch.save(module, tmp_path / "z.bin")
  with pytest.raises(ValueError, match=r"calls torch.nn.modules.linear.Linear; .* is refused"):
    tensor_files.read(tmp_path / "z.bin")


def test_long_rows_work_and_padding_on_either_side_moves_nothing(torch, load):
  net = load("AutoModelForCausalLM")
  ids = torch.randint(16, 290, (1, 600), generator=torch.Generator().manual_seed(2))
  pad = torch.full((1, 5), 3)
  ones, zeros = torch.ones_like(ids), torch.zeros_like(pad)
  with torch.no_grad():
    alone = net(ids).logits
    left = net(torch.cat([pad, ids], 1), torch.cat([zeros, ones], 1)).logits
    right = net(torch.cat([ids, pad], 1), torch.cat([ones, zeros], 1)).logits
    blocks = net(ids, torch.ones(1, 600, 600)).logits
  assert left.isfinite().all(), "padding sees nothing and must not become NaN"
  for other in (left[:, 5:], right[:, :600], blocks):
    torch.testing.assert_close(other, alone, atol=1e-4, rtol=0)


def test_a_classifier_learns_and_reads_the_right_token(torch, load):
  torch.manual_seed(0)
  net = load("AutoModelForSequenceClassification", num_labels=3)
  ids = torch.randint(16, 290, (6, 10))
  mask = torch.ones_like(ids)
  mask[:3, 6:] = 0
  labels = torch.arange(6) % 3
  optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
  losses = []
  for _ in range(30):
    out = net(ids, mask, labels=labels)
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(out.loss.item())
  assert out.logits.shape == (6, 3)
  assert losses[0] == pytest.approx(math.log(3), abs=0.5)
  assert losses[-1] < 0.5 * losses[0]
  causal = load("AutoModelForSequenceClassification", causal=True)
  assert net._place(ids, mask).tolist() == [0] * 6
  assert net._place(ids, mask.flip(-1)).tolist() == [4] * 3 + [0] * 3
  assert causal._place(ids, mask).tolist() == [5] * 3 + [9] * 3
  assert causal._place(ids, None).tolist() == [9] * 6


def test_hidden_states_are_of_every_loop_and_half_precision_is_close(torch, model, load):
  net = load("AutoModel")
  ids = torch.randint(16, 290, (1, 8), generator=torch.Generator().manual_seed(3))
  with torch.no_grad():
    out = net(ids, output_hidden_states=True)
    assert len(out.hidden_states) == model.loops + 2
    shorter = net(ids, num_loops=model.loops - 1).last_hidden_state
    half = load("AutoModel", torch_dtype=torch.bfloat16)(ids).last_hidden_state
  torch.testing.assert_close(out.hidden_states[-3], shorter)
  assert half.dtype == torch.float32, "the residual stream stays wide"
  scale = out.last_hidden_state.abs().max()
  assert 0 < (half - out.last_hidden_state).abs().max() < 0.1 * scale
  assert isinstance(net(ids, return_dict=False), tuple)


def test_the_exit_gate_comes_along(exported, torch, load, model, tmp_path):
  gated = exported.Exported("corners", tmp_path / "gated", model.tokenizer)
  assert gated.settings["exit_gate"]
  state = np.random.default_rng(0).standard_normal((2, 3, 32), np.float32)
  with torch.no_grad():
    theirs = load("AutoModel", gated.folder).exit_probability(torch.tensor(state)).numpy()
  ours = gated.model.exit_probability(gated.params, state)
  np.testing.assert_allclose(theirs, ours, atol=1e-6)
  assert theirs.std() > 0.01
  with pytest.raises(ValueError, match="no exit gate"):
    load("AutoModel").exit_probability(torch.tensor(state))


def test_impossible_calls_say_why(exported, torch, load, model, tmp_path):
  with pytest.raises(ValueError, match="num_loops=0 must be at least 1"):
    load("AutoModel")(torch.tensor([[1]]), num_loops=0)
  with pytest.raises(ValueError, match="num_loops=0 must be at least 1"):
    load("AutoModel", num_loops=0)
  folder = exported.Exported("grt", tmp_path / "grt", model.tokenizer, causal=True).folder
  with pytest.raises(ValueError, match="40 tokens are longer than the 32 learned positions"):
    load("AutoModel", folder)(torch.ones(1, 40, dtype=torch.long))


def test_a_fresh_model_starts_from_the_config_alone(torch, load):
  from transformers import AutoModelForCausalLM

  trained = load("AutoModelForCausalLM")
  torch.manual_seed(0)
  fresh = AutoModelForCausalLM.from_config(trained.config, trust_remote_code=True)
  logits = fresh(torch.tensor([[1, 20, 30]])).logits
  assert logits.isfinite().all()
  assert logits.std() > 0
  assert torch.equal(fresh.model.core[0].mix_mlp.alpha, torch.tensor([0.0, 0.0, 1.0]))
  assert fresh.head.decoder.weight is fresh.get_input_embeddings().weight
