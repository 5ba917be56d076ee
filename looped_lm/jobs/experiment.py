"""What a config describes, checked and built."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import functools
import io
import math
from typing import Any, Literal

from etils import epath
import jax
import jax.numpy as jnp
import optax

from looped_lm import plugins
from looped_lm.data.pipeline import Pipeline
from looped_lm.data.prepare import Prepared, prepare
from looped_lm.data.tokenizer import Tokenizer
from looped_lm.errors import UserError
from looped_lm.evals import suite
from looped_lm.models import looped
from looped_lm.optim import schedules, spikes
from looped_lm.scaling import flops, remat
from looped_lm.train import checkpoint, milestones, parallel, step
from looped_lm.train.parallel import hosts
from looped_lm.types import Batch, Model, Params, State, Subject, Vocabulary

Config = Mapping[str, Any]
_GROUPS = (
  "seed",
  "data",
  "tokenizer",
  "model",
  "init",
  "objective",
  "optim",
  "train",
  "evals",
  "parallel",
  "generate",
)
# Kept beside a run's checkpoints.
TOKENIZER_FILE = "tokenizer.json"
_BUDGETS = {"total_words": "words", "total_tokens": "tokens", "total_epochs": "epochs"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """Everything a config describes, built; nothing compiled.

  Attributes:
    config: The resolved config.
    choice: What was chosen where it says "auto", and why; "" where nothing was.
    model: The model.
    objective: What is predicted.
    prepared: Tokenizer and rows.
    pipeline: Batches of the training rows.
    strategy: How steps run on devices.
    total_steps: Steps of the whole run.
  """

  config: Config
  choice: str
  model: Model
  objective: Any
  prepared: Prepared
  pipeline: Pipeline
  strategy: parallel.Strategy
  total_steps: int

  @functools.cached_property
  def schedule(self) -> optax.Schedule:
    """The learning rate of each step."""
    return _schedule(self.config, total_steps=self.total_steps)

  @functools.cached_property
  def tx(self) -> optax.GradientTransformation:
    """The optimiser."""
    return _transformation(self.config, self.schedule)

  def abstract_state(self) -> State:
    """The state's shapes, without computing it."""
    return jax.eval_shape(functools.partial(self._make_state, self.model.init))

  def initial_state(self) -> State:
    """The state before the first step, on the host's first device."""
    make, loaded = self._start()
    return jax.jit(make)(loaded)

  def create_state(self) -> State:
    """The same where the strategy wants it."""
    make, loaded = self._start()
    return self.strategy.create(make, loaded)

  def train_step(self) -> Callable[..., Any]:
    """The pure step."""
    return _train_step(
      self.config, self.model, self.objective, self.tx, self.schedule, self.total_steps
    )

  def _start(self) -> tuple[Callable[[Any], State], Any]:
    """Gives loaded -> state, and what the initialiser loaded."""
    init = _init(self.config)
    loaded = init.load(self.model, settings=self.config["model"], tokenizer=self.prepared.tokenizer)

    def make(loaded: Params) -> State:
      return self._make_state(lambda key: init.params(self.model, key, loaded))

    return make, loaded

  def _make_state(self, init: Callable[[jax.Array], Params]) -> State:
    return step.initial_state(
      init,
      self.tx,
      seed=self.config["seed"],
      ema=self.config["train"]["ema_decay"] > 0,
    )

  def evaluators(self, workdir: str | None = None) -> suite.Suite:
    """The config's evaluators; in the folder of a run they leave predictions, under `evals`."""
    evals = self.config["evals"]
    subject = Subject(
      model=self.model,
      vocabulary=vocabulary_of(self.prepared.tokenizer),
      tokenizer=self.prepared.tokenizer,
      held_out=self.prepared.validation,
      unigram_V=self.prepared.unigram_V,
      strategy=self.strategy,
      batch_size=evals["batch_size"],
      num_batches=evals["num_batches"],
      backends=tuple(evals["backends"]),
      loops=tuple(evals["loops"]),
      folder=None if workdir is None else str(epath.Path(workdir) / "evals"),
      milestones=functools.partial(self._milestones, workdir) if workdir is not None else tuple,
    )
    return suite.Suite(evals, subject)

  def _milestones(self, workdir: str) -> Iterator[tuple[str, int, Params]]:
    abstract = self.strategy.like_saved(self.abstract_state()).params
    which = stored_weights(self.config)
    for name, folder in milestones.saved(workdir).items():
      params = checkpoint.restore_params(folder, abstract, which=which)
      yield name, milestones.words_of(name), self.strategy.from_saved(params)


def check(config: Config) -> None:
  """Checks all of a config that can be checked without data; nothing compiles or is written.

  Raises:
    UserError: A value that cannot work.
  """
  for group in _GROUPS:
    if group not in config:
      raise UserError(f"The config has no {group!r}; it needs {list(_GROUPS)}.")
  train, evals = config["train"], config["evals"]
  budgets = {name: train[name] for name in ("total_steps", *_BUDGETS)}
  if sum(value > 0 for value in budgets.values()) != 1 or min(budgets.values()) < 0:
    raise UserError(f"Exactly one of train's budgets must be above 0; they are {budgets}.")
  if not 0.0 <= train["ema_decay"] < 1.0:
    raise UserError(f"train.ema_decay={train['ema_decay']} must lie in [0, 1); 0 switches it off.")
  if train["log_every_steps"] < 1:
    raise UserError(f"train.log_every_steps={train['log_every_steps']} must be at least 1.")
  skip_sigmas = train.get("skip_sigmas", 0.0)
  if not 0.0 <= skip_sigmas < math.inf:
    raise UserError(
      f"train.skip_sigmas={skip_sigmas} must be a number of at least 0; 0 skips no step."
    )
  for name in ("eval_every_steps", "eval_every_words", "save_every_steps", "watchdog_seconds"):
    if train[name] < 0:
      raise UserError(f"train.{name}={train[name]} must be at least 0; 0 switches it off.")
  milestones.check(train["save_at_words"])
  if evals["weights"] not in ("raw", "ema"):
    raise UserError(f"evals.weights={evals['weights']!r} is none of ['raw', 'ema'].")
  if evals["weights"] == "ema" and train["ema_decay"] == 0:
    raise UserError("evals.weights='ema' needs an average: set train.ema_decay above 0.")
  if evals.get("clamp_distance", False) not in (True, False):
    raise UserError(f"evals.clamp_distance={evals['clamp_distance']!r} must be True or False.")
  suite.check(evals)
  suite.check_sets(evals)
  strategy = parallel.make(config["parallel"])
  strategy.check_batch(train["batch_size"], micro_batches=train["micro_batches"])
  strategy.check_eval_batch(evals["batch_size"])
  size = max(config["tokenizer"]["vocab_size"], 17)
  looped.build(config["model"], vocab_size=size, longest_distance=longest_distance(config))
  strategy.check_model(config["model"])
  _objective(config, _any_vocabulary(size))
  _init(config)
  _optimizer(config)
  _schedule(config, total_steps=1000)


def build(config: Config, *, trained_length: int | None = None) -> Experiment:
  """Prepares the data (or finds it prepared) and builds everything on it.

  Args:
    config: The resolved config.
    trained_length: As in `longest_distance`.
  """
  prepared = prepared_data(config)
  vocabulary = vocabulary_of(prepared.tokenizer)
  pipeline = Pipeline(
    prepared.train,
    batch_size=config["train"]["batch_size"],
    seed=config["seed"],
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  config, choice = rematerialised(config, vocab_size=vocabulary.size)
  return Experiment(
    config=config,
    choice=choice,
    model=looped.build(
      config["model"],
      vocab_size=vocabulary.size,
      longest_distance=longest_distance(config, trained_length=trained_length),
    ),
    objective=_objective(config, vocabulary),
    prepared=prepared,
    pipeline=pipeline,
    strategy=parallel.make(config["parallel"]),
    total_steps=_total_steps(config, pipeline),
  )


def lowered_step(config: Config, *, vocab_size: int) -> Any:
  """The training step lowered for its shapes alone: no data is read, nothing is allocated.

  Args:
    config: The resolved config.
    vocab_size: Entries of the tokenizer that it would be trained with.
  """
  model = looped.build(config["model"], vocab_size=vocab_size)
  total_steps = 1000  # What rates it makes is no part of the program's size.
  schedule = _schedule(config, total_steps=total_steps)
  tx = _transformation(config, schedule)
  objective = _objective(config, _any_vocabulary(vocab_size))
  make = functools.partial(
    step.initial_state, model.init, tx, seed=0, ema=config["train"]["ema_decay"] > 0
  )
  rows, length = config["train"]["batch_size"], config["data"]["seq_len"]

  def make_batch() -> Batch:
    tokens_BT = jnp.zeros((rows, length), jnp.int32)
    return Batch(tokens_BT=tokens_BT, segments_BT=tokens_BT, row_B=tokens_BT[:, 0])

  train_step = _train_step(config, model, objective, tx, schedule, total_steps)
  strategy = parallel.make(config["parallel"])
  return strategy.lower_step(train_step, jax.eval_shape(make), jax.eval_shape(make_batch))


def rematerialised(config: Config, *, vocab_size: int) -> tuple[Config, str]:
  """The config with the rematerialisation chosen, where it says "auto", and why this one."""
  model, train = config["model"], config["train"]
  if model["remat"] != remat.AUTO:
    return config, ""
  params = flops.abstract_params(looped.build(model, vocab_size=vocab_size))
  settings, micro_batches = config["parallel"], train["micro_batches"]
  fsdp, tensor = settings["fsdp"], settings["tensor"]  # Both 1 under pmap.
  weight_bytes = sum(4 * x.size for x in jax.tree.leaves(params))
  # As docs/scaling.md counts it. State: parameters, two moments, and the average where there is
  # one; besides, gradients, gathered parameters, and gradients summed over micro-batches.
  held_bytes = (
    (3 + (train["ema_decay"] > 0) + (micro_batches > 1)) * weight_bytes // (fsdp * tensor)
  )
  held_bytes += (1 + (fsdp > 1)) * weight_bytes // tensor
  device = jax.local_devices()[0]
  name, line = remat.choose(
    model,
    params,
    rows=max(1, train["batch_size"] * tensor // (jax.device_count() * micro_batches)),
    seq_len=config["data"]["seq_len"],
    chunk_tokens=config["objective"].get("chunk_tokens", 0),
    held_bytes=held_bytes,
    device_bytes=hosts.smallest(remat.device_bytes(device)),
    platform=device.platform,
  )
  return {**config, "model": {**model, "remat": name}}, line


def longest_distance(config: Config, *, trained_length: int | None = None) -> int | None:
  """The relative distance that farther ones read as, None where the config wants no such thing.

  In training it changes nothing: no row has farther ones.

  Args:
    config: The config.
    trained_length: Tokens of the rows that the model was trained on, where they need not be the
      config's own.
  """
  if not config["evals"].get("clamp_distance", False):
    return None
  return (trained_length or config["data"]["seq_len"]) - 1


def say(text: str) -> None:
  """Prints in the process that speaks for all; the others are silent."""
  if hosts.is_first():
    print(text)


def spoken_once() -> contextlib.AbstractContextManager[Any]:
  """What is printed inside is printed by the process that speaks for all, as by `say`."""
  if hosts.is_first():
    return contextlib.nullcontext()
  return contextlib.redirect_stdout(io.StringIO())


def weights(state: State, config: Config) -> Params:
  """The parameters that the config evaluates."""
  return state.ema if config["evals"]["weights"] == "ema" else state.params


def stored_weights(config: Config) -> Literal["params", "ema"]:
  """Which of a checkpoint's parameters the config evaluates and exports."""
  return "ema" if config["evals"]["weights"] == "ema" else "params"


def prepared_data(config: Config) -> Prepared:
  """The config's data, prepared now or earlier."""
  return prepare(
    config["data"],
    config["tokenizer"],
    seed=config["seed"],
    process_index=jax.process_index(),
  )


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
  """What objectives must know of the tokenizer."""
  return Vocabulary(
    size=tokenizer.vocab_size,
    num_special=tokenizer.num_special,
    bos_id=tokenizer.bos_id,
    pad_id=tokenizer.pad_id,
    mask_id=tokenizer.mask_id,
  )


def modes_of(objective: str) -> tuple[str, ...]:
  """The modes of an objective by name, e.g. ("clm", "mntp")."""
  return plugins.load("objectives", objective).Objective.modes


def picked(cls: Any, settings: Mapping[str, Any]) -> Any:
  """A dataclass from those of the settings that it has."""
  fields = {field.name for field in dataclasses.fields(cls)}
  return cls(**{name: value for name, value in settings.items() if name in fields})


def _objective(config: Config, vocabulary: Vocabulary) -> Any:
  cls = plugins.load("objectives", config["objective"]["name"]).Objective
  return picked(cls, {**config["objective"], "vocabulary": vocabulary})


def _init(config: Config) -> Any:
  return picked(plugins.load("init", config["init"]["name"]).Init, config["init"])


def _optimizer(config: Config) -> Any:
  return picked(plugins.load("optim", config["optim"]["name"]).Optimizer, config["optim"])


def _transformation(config: Config, schedule: optax.Schedule) -> optax.GradientTransformation:
  tx = _optimizer(config).build(schedule)
  sigmas = config["train"].get("skip_sigmas", 0.0)
  return spikes.skip(tx, sigmas=sigmas) if sigmas else tx


def _train_step(
  config: Config,
  model: Model,
  objective: Any,
  tx: optax.GradientTransformation,
  schedule: optax.Schedule,
  total_steps: int,
) -> Callable[..., Any]:
  return step.make_train_step(
    model=model,
    objective=objective,
    tx=tx,
    schedule=schedule,
    total_steps=total_steps,
    micro_batches=config["train"]["micro_batches"],
    ema_decay=config["train"]["ema_decay"],
  )


def _any_vocabulary(size: int) -> Vocabulary:
  """One of that size, where nothing is read with it."""
  return Vocabulary(size=size, num_special=16, bos_id=1, pad_id=3, mask_id=4)


def _schedule(config: Config, *, total_steps: int) -> optax.Schedule:
  return schedules.make(config["optim"], total_steps=total_steps)


def _total_steps(config: Config, pipeline: Pipeline) -> int:
  """The run's length in steps, from whichever budget is given."""
  train = config["train"]
  if train["total_steps"] > 0:
    return train["total_steps"]
  budgets = {unit: train[name] for name, unit in _BUDGETS.items() if train[name] > 0}
  return pipeline.steps_for(**budgets)


def workdir_tokenizer(config: Config, workdir: str) -> Tokenizer:
  """The tokenizer that a run keeps beside its checkpoints."""
  path = epath.Path(workdir) / TOKENIZER_FILE
  return Tokenizer.load(str(path)) if path.exists() else prepared_data(config).tokenizer
