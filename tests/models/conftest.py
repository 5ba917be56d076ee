"""Tiny models of every kind, their parameters away from the values that hide a fault."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_lm.models import looped

FORMS = {
  "exit_gate": ("looped_gpt_bert", {"exit_gate": True}),
  "gpt_bert": ("looped_gpt_bert", {}),
  "gpt_bert_bfloat16": ("looped_gpt_bert", {"compute_dtype": "bfloat16"}),
  "gpt_bert_ends": ("looped_gpt_bert", {"prelude_layers": 1, "coda_layers": 1}),
  "gpt_bert_stack": ("gpt_bert", {"core_layers": 2}),
  "parcae": ("parcae", {}),
  "grt": ("grt", {}),
  "sandwich": ("huginn", {}),
  "recursive": ("recursive_gpt", {}),
  "universal": ("universal_transformer", {}),
  **{
    name: ("looped_gpt_bert_injections", {}, name)
    for name in ("none", "add", "add_norm", "diagonal_zoh", "linear", "gated", "hyper_connections")
  },
}
FAST = ("gpt_bert",)
EVERY_FORM = [
  name if name in FAST else pytest.param(name, marks=pytest.mark.nightly)
  for name in FORMS
  if name != "gpt_bert_bfloat16"  # Nothing is exact there; tests ask for it by name.
]


@pytest.fixture(params=EVERY_FORM)
def form(request):
  """The name of each model in turn, for `build`."""
  return request.param


@pytest.fixture(scope="session")
def build(tiny_config):
  """(form) -> model and parameters, over a vocabulary of 60."""

  @functools.cache
  def made(form, x64):
    name, changes, *argument = FORMS[form]
    settings = tiny_config(name, ",".join([*argument, "tiny"]))["model"] | changes
    model = looped.build(settings, vocab_size=60)
    params = jax.jit(model.init)(jax.random.key(0))

    def stir(path, x):
      noise = np.random.default_rng(len(jax.tree_util.keystr(path))).normal(size=x.shape)
      return x + 0.05 * jnp.asarray(noise, x.dtype)

    return model, jax.tree_util.tree_map_with_path(stir, params)

  # What is made under x64 is wider, so it is no other test's.
  return lambda form: made(form, jax.config.jax_enable_x64)
