"""An exported folder, read by transformers in a fresh process, gives our logits.

Needs torch and transformers: `make test-hf`.
"""

import numpy as np
import pytest

pytestmark = pytest.mark.hf
NAMES = (
  *("looped_layer_diagonal", "looped_stack_diagonal", "looped_layer_add", "looped_stack_add"),
  *("dense", "parcae", "grt", "recursive_gpt", "huginn", "universal", "corners"),
  *("none", "add_norm", "diagonal_zoh", "linear", "gated", "hyper_connections"),
)
TOLERANCE = 1e-4
# Two loops more than built for let its float32 rounding add up to 1.7e-4 on some CPUs; deeper, it
# is held to the model in float64 alone.
ROUNDS_MORE_WHEN_DEEPER = ("looped_stack_diagonal",)
ROWS, LENGTH = 2, 20
LENGTHS = np.array([20, 13])


def padded(ids, lengths, pad, *, left):
  """The rows with padding on one side, and their masks."""
  rows, masks = [], []
  for row, length in zip(ids, lengths, strict=True):
    text, rest = list(map(int, row[:length])), LENGTH - int(length)
    rows.append([pad] * rest + text if left else text + [pad] * rest)
    masks.append([0] * rest + [1] * int(length) if left else [1] * int(length) + [0] * rest)
  return {"input_ids": rows, "attention_mask": masks}


@pytest.fixture(scope="module")
def everything(exported, tmp_path_factory):
  """All models exported and read: name -> (the model, ids, what torch gave by call)."""
  folder = tmp_path_factory.mktemp("parity")
  tokenizer = exported.train_tokenizer()
  rng = np.random.default_rng(1)
  assert set(NAMES) == set(exported.MODELS)
  models, jobs, calls = {}, [], {}
  for name in NAMES:
    model = exported.Exported(name, folder / name, tokenizer)
    ids = rng.integers(16, tokenizer.vocab_size, (ROWS, LENGTH))
    right, left = (padded(ids, LENGTHS, tokenizer.pad_id, left=side) for side in (False, True))
    deeper = model.loops + 2
    where = str(model.folder)
    jobs += [
      {"folder": where, "class": "AutoModelForMaskedLM", "calls": [right, left]},
      {
        "folder": where,
        "class": "AutoModelForCausalLM",
        "resave": f"{where}-again",
        "kwargs": {"num_loops": deeper},
        "calls": [right, left, *({**side, "num_loops": model.loops} for side in (right, left))],
      },
      {
        "folder": where,
        "class": "AutoModelForCausalLM",
        "calls": [right, {"max_new_tokens": 4, **left}, {"max_new_tokens": 4, **right}],
      },
      {"folder": where, "class": "AutoModel", "calls": [right, {**right, "causal": True}]},
      {
        "folder": where,
        "class": "AutoModelForCausalLM",
        "resave": f"{where}-deeper",
        "kwargs": {"num_loops": deeper},
        "double": True,
        "calls": [right, left],
      },
    ]
    models[name] = (model, ids)
    calls[name] = ("masked", "deeper", "causal", "bare", "double")
  found = exported.read_with_torch(jobs, folder)
  result, number = {}, 0
  for name, (model, ids) in models.items():
    own = {}
    for kind in calls[name]:
      own |= {
        f"{kind}/{key.split('/')[1]}": value
        for key, value in found.items()
        if key.startswith(f"{number}/")
      }
      number += 1
    result[name] = (model, ids, own)
  return result


def compare(name, theirs, ours, *, left=False, tolerance=TOLERANCE):
  for row, length in enumerate(LENGTHS):
    text = theirs[row, LENGTH - length :] if left else theirs[row, :length]
    error = np.abs(text - ours[row, :length]).max()
    assert error <= tolerance, f"{name}, row {row}: {error:.1e}"


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_ours_in_both_modes_with_both_paddings_and_saved_again(everything, name):
  model, ids, theirs = everything[name]
  ours, deeper = model.logits(
    np.concatenate([ids, ids]),
    lengths=[*LENGTHS, *LENGTHS],
    causal=[True] * ROWS + [False] * ROWS,
    deeper=model.loops + 2,
  )
  assert np.abs(ours).max() > 0.1
  assert np.abs(deeper - ours).max() > 1e-2, "the loops must make a difference"
  compare("bidirectional, right", theirs["masked/0"], ours[ROWS:])
  compare("bidirectional, left", theirs["masked/1"], ours[ROWS:], left=True)
  compare("causal, right", theirs["causal/0"], ours[:ROWS])
  if name not in ROUNDS_MORE_WHEN_DEEPER:
    compare("deeper, right, saved again", theirs["deeper/0"], deeper[:ROWS])
    compare("deeper, left, saved again", theirs["deeper/1"], deeper[:ROWS], left=True)
  compare("as deep as before, right, saved again", theirs["deeper/2"], ours[:ROWS])
  compare("as deep as before, left, saved again", theirs["deeper/3"], ours[:ROWS], left=True)
  hidden = theirs["bare/0"]
  assert hidden.shape == (ROWS, LENGTH, model.settings["embed_dim"])
  assert np.abs(hidden - theirs["bare/1"])[0].max() > 1e-3, "bidirectional unless told otherwise"


@pytest.mark.parametrize("name", NAMES)
def test_float64_leaves_no_difference_to_rounding(everything, x64, name):
  """Loops let the rounding of float32 add up; what is left here is mathematics."""
  model, ids, theirs = everything[name]
  _, deeper = model.logits(ids, lengths=LENGTHS, causal=[True] * ROWS, deeper=model.loops + 2)
  assert deeper.dtype == theirs["double/0"].dtype == np.float64
  # Angles of positions are float32 even then; GPT-BERT's buckets have none.
  exact = model.settings["block"]["name"] == "gpt_bert"
  tolerance = 1e-11 if exact else 1e-5
  compare("deeper, right, saved again", theirs["double/0"], deeper, tolerance=tolerance)
  compare("deeper, left, saved again", theirs["double/1"], deeper, left=True, tolerance=tolerance)


@pytest.mark.parametrize("name", ["looped_layer_diagonal", "parcae", "grt"])
def test_greedy_generation_is_the_argmax_of_our_logits(everything, name):
  model, ids, theirs = everything[name]
  for row, length in enumerate(LENGTHS):
    text = list(ids[row, :length])
    for _ in range(4):
      fed = np.zeros((1, LENGTH + 4), int)
      fed[0, : len(text)] = text
      logits, _ = model.logits(fed, lengths=[len(text)], causal=[True], deeper=model.loops + 2)
      text.append(int(logits[0, len(text) - 1].argmax()))
      if text[-1] == model.tokenizer.eos_id:
        break
    new = text[length:]
    assert theirs["causal/1"][row, LENGTH : LENGTH + len(new)].tolist() == new
  # A row padded on its right goes on behind the padding, as generate does it; the first row has
  # none.
  assert theirs["causal/2"][0].tolist() == theirs["causal/1"][0].tolist()
