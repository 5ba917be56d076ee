"""Text from a run: continuations and filled masks."""

from collections.abc import Mapping
from typing import Any

import jax

from looped_lm.data.tokenizer import Tokenizer
from looped_lm.errors import UserError
from looped_lm.generate import terminal
from looped_lm.generate.continuation import Generator
from looped_lm.generate.infill import Infiller
from looped_lm.generate.placing import Lay, together
from looped_lm.generate.sampling import Sampling
from looped_lm.jobs.evaluation import trained_length
from looped_lm.jobs.experiment import (
  Config,
  longest_distance,
  modes_of,
  picked,
  spoken_once,
  stored_weights,
  workdir_tokenizer,
)
from looped_lm.models import looped
from looped_lm.nn.cache import Policy
from looped_lm.nn.decode import Decoding
from looped_lm.nn.halting import Halting
from looped_lm.train import checkpoint, parallel, run_record
from looped_lm.types import Model, Params

# What infilling has not, and what it is where it is off.
CONTINUES_ONLY = {
  "cache": "full",
  "halting": "none",
  "repetition_penalty": 1.0,
  "stop": (),
}
# A `generate` group that changes no probability, where no config says another.
NEUTRAL: Mapping[str, Any] = {
  "batch_size": 8,
  "max_new_tokens": 64,
  "temperature": 1.0,
  "top_k": 0,
  "top_p": 1.0,
  "min_p": 0.0,
  "repetition_penalty": 1.0,
  "stop": (),
  "seed": 0,
  "cache": "full",
  "cache_budget": 0,
  "halting": "none",
  "halting_threshold": 0.0,
  "halting_patience": 2,
  "halting_min_loops": 1,
}


def generate(config: Config, *, workdir: str, **_: Any) -> None:
  """Continues the config's prompts, or fills their masks."""
  run_record.check_same(workdir, config, allow_change=True)
  settings = config["generate"]
  check(settings, model=config["model"], objective=config["objective"]["name"])
  prompts = terminal.prompts(settings)
  tokenizer = workdir_tokenizer(config, workdir)
  model = looped.build(
    config["model"],
    vocab_size=tokenizer.vocab_size,
    longest_distance=longest_distance(config, trained_length=trained_length(config, workdir)),
  )
  strategy = parallel.make(config["parallel"])
  # Each device reads its part alone.
  abstract = strategy.like_saved(jax.eval_shape(model.init, jax.random.key(0)))
  params = checkpoint.restore_params(workdir, abstract, which=stored_weights(config))
  with spoken_once():
    if settings["task"] == "infill":
      terminal.fill(infiller(settings, model, params, tokenizer, lay=strategy.laid), prompts)
    else:
      continued = generator(settings, model, params, tokenizer, lay=strategy.laid)
      terminal.go_on(continued, prompts, batch_size=settings["batch_size"])


def generator(
  settings: Mapping[str, Any],
  model: Model,
  params: Params,
  tokenizer: Tokenizer,
  *,
  lay: Lay = together,
) -> Generator:
  """What continues texts as a `generate` group says, with parameters that lie as `lay` fits."""
  return Generator(
    model=model,
    params=params,
    tokenizer=tokenizer,
    sampling=picked(Sampling, settings),
    decoding=_decoding(settings, settings["num_loops"] or model.num_loops),
    max_new_tokens=settings["max_new_tokens"],
    stop=tuple(settings["stop"]),
    seed=settings["seed"],
    lay=lay,
  )


def infiller(
  settings: Mapping[str, Any],
  model: Model,
  params: Params,
  tokenizer: Tokenizer,
  *,
  lay: Lay = together,
) -> Infiller:
  """What fills masks as a `generate` group says, with parameters that lie as `lay` fits."""
  return Infiller(
    model=model,
    params=params,
    tokenizer=tokenizer,
    sampling=picked(Sampling, settings),
    num_loops=settings["num_loops"] or model.num_loops,
    seed=settings["seed"],
    lay=lay,
  )


def check(settings: Mapping[str, Any], *, model: Mapping[str, Any], objective: str) -> None:
  """Checks a `generate` group as far as it can be without weights.

  Args:
    settings: The group.
    model: The `model` group.
    objective: What the model was trained by.

  Raises:
    UserError: A value that cannot work.
  """
  if settings["task"] not in ("continue", "infill"):
    raise UserError(f"generate.task={settings['task']!r} is none of ['continue', 'infill'].")
  if settings["batch_size"] < 1:
    raise UserError(f"generate.batch_size={settings['batch_size']} must be at least 1.")
  if settings["num_loops"] < 0:
    raise UserError(
      f"generate.num_loops={settings['num_loops']} must be at least 1; 0 takes model.num_loops."
    )
  if settings["task"] == "infill" and "mntp" not in modes_of(objective):
    raise UserError(
      f"generate.task='infill' needs a model that was trained with masked rows, and "
      f"objective.name={objective!r} has none: use one trained with 'hybrid' or 'mntp', or "
      "generate.task='continue'."
    )
  if settings["task"] == "infill":
    for name, off in CONTINUES_ONLY.items():
      given = tuple(settings[name]) if name == "stop" else settings[name]
      if given != off:
        raise UserError(
          f"generate.{name}={given!r} has no meaning for generate.task='infill'; leave it "
          f"at {off!r}."
        )
  picked(Sampling, settings)
  decoding = _decoding(settings, settings["num_loops"] or model["num_loops"])
  if decoding.halting.looks_at == "gate" and not model.get("exit_gate"):
    raise UserError(
      "generate.halting='exit_gate' needs a model with a learned gate: model.exit_gate=True, "
      "trained with objective.exit_entropy_weight."
    )


def _decoding(settings: Mapping[str, Any], num_loops: int) -> Decoding:
  halting = {
    name.removeprefix("halting_"): value
    for name, value in settings.items()
    if name.startswith("halting_")
  }
  return Decoding(
    num_loops=num_loops,
    policy=Policy(name=settings["cache"], budget=settings["cache_budget"]),
    halting=Halting(name=settings["halting"], **halting),
  )
