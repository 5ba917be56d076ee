"""A run's evaluators: when each is asked, and what those that show something show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm import jobs
from looped_lm.evals import snippets
from looped_lm.types import Subject


@pytest.fixture(scope="module")
def built(tiny_config):
  """The tiny quickstart with initial parameters, and all that its evaluators say."""
  config = tiny_config("quickstart")
  config["evals"] |= {
    "num_batches": 1,
    "final_names": ("loop_diagnostics", "logit_lens", "attention_maps"),
    "loop_diagnostics": {},
    "logit_lens": {"top": 3},
  }
  experiment = jobs.build(config)
  params = experiment.strategy.replicate(jax.jit(experiment.model.init)(jax.random.key(0)))
  evaluators = experiment.evaluators()
  figures = {final: dict(evaluators.figures(params, final=final)) for final in (False, True)}
  params = experiment.strategy.one_copy(params)
  return experiment, params, figures, evaluators.views(params)


def test_some_are_asked_at_the_end_alone(built):
  figures = built[2]
  added = {name.split("/")[1] for name in figures[True].keys() - figures[False].keys()}
  assert added == {"depth", "loop"}
  assert figures[False].keys() < figures[True].keys()


def test_a_run_of_the_model_s_own_depth_has_its_loss(built):
  figures = built[2][True]
  for mode in ("clm", "mntp"):
    for loop in (1, 2, 3):
      assert figures[f"eval/depth/{loop:02}/{mode}_loss_nats"] == pytest.approx(
        figures[f"eval/{mode}/loop/{loop:02}/loss_nats"], rel=1e-5
      )
    assert figures[f"eval/depth/03/{mode}_accuracy"] == figures[f"eval/{mode}/accuracy"]
  assert figures["eval/depth/02/state_rms"] == pytest.approx(figures["eval/loop/02/state_rms"])
  measured = [name for name in figures if name.endswith("/step_size")]
  assert measured == [f"eval/loop/{loop:02}/step_size" for loop in (2, 3, 4, 5, 6)]
  assert "eval/loop/01/token_correlation" in figures


def test_the_lens_reads_what_the_model_would_say(built):
  experiment, params, _, views = built
  lens, tokenizer = views["logit_lens"], experiment.prepared.tokenizer
  assert lens["top_RBTK"].shape == (3, 2, 12, 3)
  assert lens["token_BT"][0, 0] == "<s>"
  np.testing.assert_array_equal(lens["token_BT"][:, 1:], lens["target_BT"][:, :-1])
  # Read from the ids that the text spells: the last loop is the model's own prediction.
  ids = {tokenizer.spell(id): id for id in range(tokenizer.vocab_size)}
  tokens_BT = jnp.array([[ids[token] for token in row] for row in lens["token_BT"]], jnp.int32)
  inputs = snippets.causal(tokens_BT, jnp.array([12, 12]))
  model = experiment.model
  p_BTV = jax.jit(
    lambda p: jax.nn.softmax(model.readout(p, model.encode(p, inputs).hidden_BTD, inputs.row_B))
  )(params)
  np.testing.assert_allclose(lens["probability_RBTK"][-1, ..., 0], p_BTV.max(-1), rtol=1e-4)
  best = np.vectorize(tokenizer.spell)(np.asarray(p_BTV.argmax(-1)))
  np.testing.assert_array_equal(lens["top_RBTK"][-1, ..., 0], best)
  of_target = p_BTV[0, 3, ids[lens["target_BT"][0, 3]]]
  assert lens["target_probability_RBT"][-1, 0, 3] == pytest.approx(float(of_target), rel=1e-4)


def test_attention_maps_are_rows_of_one_over_what_is_seen(built):
  maps = built[3]["attention_maps"]
  assert sorted(maps) == ["core_layer_0_RTS", "token_T"]
  assert maps["core_layer_0_RTS"].shape == (3, 16, 16)
  np.testing.assert_allclose(maps["core_layer_0_RTS"].sum(-1), 1.0, rtol=1e-5)
  assert (np.triu(maps["core_layer_0_RTS"], 1) == 0).all()


class Rows:
  """Two rows: pieces of 3 and 2 tokens, then one of 4 (`<s>` counted); 9 is padding."""

  num_rows = 2

  def gather(self, indices):
    tokens = np.array([[1, 21, 22, 1, 31, 9], [1, 41, 42, 43, 9, 9]], np.int32)
    segments = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]], np.int32)
    return tokens[indices], segments[indices]


@pytest.mark.parametrize(
  ("count", "length_tokens", "tokens", "targets"),
  [
    # Long enough for the last position to have a target.
    (1, 3, [[1, 41, 42]], [[41, 42, 43]]),
    # Too few are: the longest first, padded.
    (2, 4, [[1, 41, 42, 43], [1, 21, 22, 9]], [[41, 42, 43, 9], [21, 22, 9, 9]]),
    (9, 2, [[1, 41], [1, 21], [1, 31]], [[41, 42], [21, 22], [31, 9]]),
  ],
)
def test_snippets_are_pieces_cut_short(built, count, length_tokens, tokens, targets):
  class Vocabulary:
    pad_id = 9

  fields = dict.fromkeys(Subject.__dataclass_fields__)
  subject = Subject(**fields | {"held_out": Rows(), "vocabulary": Vocabulary()})
  found = snippets.Snippets.choose(subject, count=count, length_tokens=length_tokens)
  np.testing.assert_array_equal(found.tokens_BT, tokens)
  np.testing.assert_array_equal(found.targets_BT, targets)
  np.testing.assert_array_equal(found.length_B, (np.array(tokens) != 9).sum(axis=1))
