"""A trained model from the folder of a run, or from an exported one."""

from collections.abc import Mapping
import pathlib
from typing import Any, Literal

from etils import epath
import jax
import jax.numpy as jnp

from looped_lm.data.tokenizer import Tokenizer
from looped_lm.errors import UserError
from looped_lm.init import names_exported, torch_weights
from looped_lm.jobs import generation
from looped_lm.jobs.experiment import TOKENIZER_FILE
from looped_lm.jobs.loaded import LoadedModel
from looped_lm.models import looped
from looped_lm.train import checkpoint

# Of an exported folder, which does not say how a run evaluated.
_BATCH_SIZE = 64


def load(
  path: str | pathlib.Path,
  *,
  weights: Literal["raw", "ema"] | None = None,
  step: int | Literal["best"] | None = None,
  clamp_distance: bool | None = None,
) -> LoadedModel:
  """Loads a trained model. It needs neither the training text nor the config file.

  Args:
    path: The folder of a run (its --workdir), or one that --mode=export wrote.
    weights: Of a run: the raw ones or their average; None takes those that the run evaluates.
    step: Of a run: which checkpoint, "best" for the one with the best score; None takes the latest.
    clamp_distance: Whether relative distances beyond the longest trained one read as that one; None
      does as the run evaluates.

  Raises:
    UserError: The folder is neither, or an argument cannot work.
  """
  if weights not in (None, "raw", "ema"):
    raise UserError(f"weights={weights!r} is none of ['raw', 'ema'].")
  if step not in (None, "best") and (isinstance(step, bool) or not isinstance(step, int)):
    raise UserError(f"step={step!r} must be the number of a checkpoint, 'best', or None.")
  place = epath.Path(path).expanduser()
  if (place / "checkpoints").is_dir():
    return _of_run(place, weights=weights, step=step, clamp_distance=clamp_distance)
  if "://" not in str(path) and torch_weights.is_exported(str(place)):
    for name, value in (("weights", weights), ("step", step)):
      if value is not None:
        raise UserError(
          f"{name}={value!r} has no meaning for {place}: an exported folder holds the weights it "
          "was exported with. Leave it out."
        )
    return _of_export(pathlib.Path(place), clamp_distance=clamp_distance)
  why = "holds neither checkpoints nor an exported model" if place.exists() else "does not exist"
  raise UserError(f"{path} {why}; give the --workdir of a run, or a folder of --mode=export.")


def _of_run(
  place: epath.Path,
  *,
  weights: str | None,
  step: int | Literal["best"] | None,
  clamp_distance: bool | None,
) -> LoadedModel:
  workdir = str(place)
  number = checkpoint.saved_step(workdir, step=step)
  config = _with_tuples(checkpoint.saved_config(workdir, step=number))
  if not (place / TOKENIZER_FILE).exists():
    raise UserError(
      f"{workdir} has no {TOKENIZER_FILE}; copy the one that the run was trained with there."
    )
  tokenizer = Tokenizer.load(str(place / TOKENIZER_FILE))
  evals, seq_len = config["evals"], config["data"]["seq_len"]
  clamps = evals.get("clamp_distance", False) if clamp_distance is None else clamp_distance
  model = looped.build(
    config["model"],
    vocab_size=tokenizer.vocab_size,
    longest_distance=seq_len - 1 if clamps else None,
  )
  params = checkpoint.restore_params(
    workdir,
    jax.eval_shape(model.init, jax.random.key(0)),
    which="ema" if (weights or evals["weights"]) == "ema" else "params",
    step=number,
  )
  return LoadedModel(
    model=model,
    params=params,
    tokenizer=tokenizer,
    config=config,
    generation=generation.NEUTRAL | config["generate"],
    objective=config["objective"]["name"],
    seq_len=seq_len,
    batch_size=evals["batch_size"],
  )


def _of_export(folder: pathlib.Path, *, clamp_distance: bool | None) -> LoadedModel:
  told = torch_weights.read_config(folder)
  settings = names_exported.settings(told)
  tokenizer = Tokenizer.load(str(folder))
  seq_len = told.get("trained_length") or 0
  if clamp_distance and not seq_len:
    raise UserError(
      f"clamp_distance=True: {folder} does not say how long the rows were that it was trained on; "
      "export the run again."
    )
  model = looped.build(
    settings,
    vocab_size=tokenizer.vocab_size,
    longest_distance=seq_len - 1 if clamp_distance else None,
  )
  init = torch_weights.Init(path=str(folder))
  params = init.load(model, settings=settings, tokenizer=tokenizer)
  return LoadedModel(
    model=model,
    params=jax.tree.map(jnp.asarray, params),
    tokenizer=tokenizer,
    config={"model": settings},
    generation=generation.NEUTRAL,
    # What else the objective was makes no difference here.
    objective="clm" if told["causal"] else "hybrid",
    seq_len=seq_len or told["max_position_embeddings"],
    batch_size=_BATCH_SIZE,
  )


def _with_tuples(tree: Any) -> Any:
  """A config as configs are: JSON knows no tuples."""
  if isinstance(tree, Mapping):
    return {key: _with_tuples(value) for key, value in tree.items()}
  return tuple(map(_with_tuples, tree)) if isinstance(tree, list) else tree
