"""Text from a run: continuations and filled masks."""

from collections.abc import Mapping
from typing import Any

import jax

from looped_lm.errors import UserError
from looped_lm.generate import terminal
from looped_lm.generate.continuation import Generator
from looped_lm.generate.infill import Infiller
from looped_lm.generate.sampling import Sampling
from looped_lm.jobs.experiment import (
  Config,
  modes_of,
  picked,
  stored_weights,
  workdir_tokenizer,
)
from looped_lm.models import looped
from looped_lm.nn.cache import Policy
from looped_lm.nn.decode import Decoding
from looped_lm.nn.halting import Halting
from looped_lm.train import checkpoint, run_record

# What infilling has not, and what it is where it is off.
_CONTINUES_ONLY = {
  "cache": "full",
  "halting": "none",
  "repetition_penalty": 1.0,
  "stop": (),
}


def generate(config: Config, *, workdir: str, **_: Any) -> None:
  """Continues the config's prompts, or fills their masks."""
  run_record.check_same(workdir, config, allow_change=True)
  settings = _generation(config)
  prompts = terminal.prompts(settings)
  tokenizer = workdir_tokenizer(config, workdir)
  model = looped.build(config["model"], vocab_size=tokenizer.vocab_size)
  which = stored_weights(config)
  params = checkpoint.restore_params(
    workdir, jax.eval_shape(model.init, jax.random.key(0)), which=which
  )
  common = {
    "model": model,
    "params": params,
    "tokenizer": tokenizer,
    "sampling": picked(Sampling, settings),
    "seed": settings["seed"],
  }
  num_loops = settings["num_loops"] or model.num_loops
  if settings["task"] == "infill":
    terminal.fill(Infiller(**common, num_loops=num_loops), prompts)
    return
  generator = Generator(
    **common,
    decoding=_decoding(settings, num_loops),
    max_new_tokens=settings["max_new_tokens"],
    stop=tuple(settings["stop"]),
  )
  terminal.go_on(generator, prompts, batch_size=settings["batch_size"])


def _generation(config: Config) -> Mapping[str, Any]:
  """The config's `generate` group, checked as far as it can be without weights."""
  settings, objective = config["generate"], config["objective"]["name"]
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
    for name, off in _CONTINUES_ONLY.items():
      given = tuple(settings[name]) if name == "stop" else settings[name]
      if given != off:
        raise UserError(
          f"generate.{name}={given!r} has no meaning for generate.task='infill'; leave it "
          f"at {off!r}."
        )
  picked(Sampling, settings)
  decoding = _decoding(settings, settings["num_loops"] or config["model"]["num_loops"])
  if decoding.halting.looks_at == "gate" and not config["model"].get("exit_gate"):
    raise UserError(
      "generate.halting='exit_gate' needs a model with a learned gate: model.exit_gate=True, "
      "trained with objective.exit_entropy_weight."
    )
  return settings


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
