"""The jobs of the command line: from a config to a built experiment, and what is done with it."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from etils import epath
import jax
import optax

from looped_lm import plugins
from looped_lm.data import data_report
from looped_lm.data.pipeline import Pipeline
from looped_lm.data.prepare import Prepared, find_prepared, prepare, user_cache
from looped_lm.data.tokenizer import Tokenizer
from looped_lm.errors import UserError
from looped_lm.evals import compare, leaderboard, suite
from looped_lm.export import huggingface, model_card
from looped_lm.generate import terminal
from looped_lm.generate.continuation import Generator
from looped_lm.generate.infill import Infiller
from looped_lm.generate.sampling import Sampling
from looped_lm.models import looped
from looped_lm.nn.cache import Policy
from looped_lm.nn.decode import Decoding
from looped_lm.nn.halting import Halting
from looped_lm.optim import schedules
from looped_lm.scaling.describe import describe
from looped_lm.train import (
  checkpoint,
  interrupt,
  loop,
  metrics,
  parallel,
  replay,
  report,
  run_record,
  step,
  views,
  watchdog,
)
from looped_lm.train.parallel import hosts
from looped_lm.types import Model, Params, State, Subject, Vocabulary

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
# What no training depends on: a workdir goes on whatever they say. Most say where and how a run is
# computed, not what.
_FREE = (
  "generate",
  "parallel.strategy",
  "parallel.fsdp",
  "parallel.tensor",
  "parallel.lost_process_seconds",
  "train.watchdog_seconds",
)
_TOKENIZER = "tokenizer.json"
_BUDGETS = {"total_words": "words", "total_tokens": "tokens", "total_epochs": "epochs"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
  """How to export.

  Attributes:
    output: The folder to write; "" is `export` in the workdir.
    step: Which checkpoint; 0 is the latest.
    license: Of the weights, for the model card, as Hugging Face writes it.
  """

  output: str = ""
  step: int = 0
  license: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """Everything a config describes, built; nothing compiled.

  Attributes:
    config: The resolved config.
    model: The model.
    objective: What is predicted.
    prepared: Tokenizer and rows.
    pipeline: Batches of the training rows.
    strategy: How steps run on devices.
    total_steps: Steps of the whole run.
  """

  config: Config
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
    return _optimizer(self.config).build(self.schedule)

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
    return step.make_train_step(
      model=self.model,
      objective=self.objective,
      tx=self.tx,
      schedule=self.schedule,
      total_steps=self.total_steps,
      micro_batches=self.config["train"]["micro_batches"],
      ema_decay=self.config["train"]["ema_decay"],
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
      vocabulary=_vocabulary(self.prepared),
      tokenizer=self.prepared.tokenizer,
      held_out=self.prepared.validation,
      unigram_V=self.prepared.unigram_V,
      strategy=self.strategy,
      batch_size=evals["batch_size"],
      num_batches=evals["num_batches"],
      backends=tuple(evals["backends"]),
      loops=tuple(evals["loops"]),
      folder=None if workdir is None else str(epath.Path(workdir) / "evals"),
    )
    return suite.Suite(evals, subject)


def run(
  mode: str,
  config: Config,
  *,
  workdir: str | None,
  overrides: Mapping[str, Any],
  allow_config_change: bool,
  export: Export | None = None,
  replay_step: int = 0,
) -> int:
  """Runs a job.

  Args:
    mode: A key of `MODES`.
    config: The resolved config.
    workdir: Where the run lives.
    overrides: What the command line changed of the config.
    allow_config_change: Whether a workdir of another config may be continued.
    export: How to export, for that mode.
    replay_step: The step that mode "replay" takes again.

  Returns:
    The exit code: 0, or another where the user stopped a run that can go on.

  Raises:
    UserError: Something the user gave cannot work.
  """
  parallel.cache_programs(user_cache() / "compiled")
  check(config)
  if mode in ("train", "eval", "export", "generate", "replay") and not workdir:
    raise UserError(f"--workdir is missing; --mode={mode} needs a folder for the run.")
  code = MODES[mode](
    config,
    workdir=workdir,
    overrides=overrides,
    allow_config_change=allow_config_change,
    export=export or Export(),
    replay_step=replay_step,
  )
  return code or 0


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
  for name in ("eval_every_steps", "save_every_steps", "watchdog_seconds"):
    if train[name] < 0:
      raise UserError(f"train.{name}={train[name]} must be at least 0; 0 switches it off.")
  if evals["weights"] not in ("raw", "ema"):
    raise UserError(f"evals.weights={evals['weights']!r} is none of ['raw', 'ema'].")
  if evals["weights"] == "ema" and train["ema_decay"] == 0:
    raise UserError("evals.weights='ema' needs an average: set train.ema_decay above 0.")
  suite.check(evals)
  suite.check_sets(evals)
  strategy = parallel.make(config["parallel"])
  strategy.check_batch(train["batch_size"], micro_batches=train["micro_batches"])
  strategy.check_eval_batch(evals["batch_size"])
  size = max(config["tokenizer"]["vocab_size"], 17)
  looped.build(config["model"], vocab_size=size)
  _objective(config, Vocabulary(size=size, num_special=16, bos_id=1, pad_id=3, mask_id=4))
  _init(config)
  _optimizer(config)
  _schedule(config, total_steps=1000)


def build(config: Config) -> Experiment:
  """Prepares the data (or finds it prepared) and builds everything on it."""
  prepared = _prepare(config)
  vocabulary = _vocabulary(prepared)
  pipeline = Pipeline(
    prepared.train,
    batch_size=config["train"]["batch_size"],
    seed=config["seed"],
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  return Experiment(
    config=config,
    model=looped.build(config["model"], vocab_size=vocabulary.size),
    objective=_objective(config, vocabulary),
    prepared=prepared,
    pipeline=pipeline,
    strategy=parallel.make(config["parallel"]),
    total_steps=_total_steps(config, pipeline),
  )


def _train(
  config: Config,
  *,
  workdir: str,
  overrides: Mapping[str, Any],
  allow_config_change: bool,
  **_: Any,
) -> int:
  changes = run_record.check_same(workdir, config, allow_change=allow_config_change, free=_FREE)
  experiment = build(config)
  train, strategy = config["train"], experiment.strategy
  evaluators = experiment.evaluators(workdir)
  say = _say()
  with checkpoint.Checkpoints(
    str(epath.Path(workdir) / "checkpoints"),
    keep_latest=train["keep_latest"],
    best_metric=config["evals"]["best_metric"] or None,
    config=config,
  ) as checkpoints:
    resumed: Mapping[str, Any] = {}
    if checkpoints.latest_step() is None:
      state = experiment.create_state()
    else:
      state, resumed = checkpoints.restore(strategy.like_saved(experiment.abstract_state()))
      assert resumed["next_step"] == int(state.step)
      state = strategy.from_saved(state)
      say(f"Resuming {workdir} at step {int(state.step)}.")
    first = int(state.step)
    say(describe(experiment.model, config, experiment.prepared))
    if hosts.is_first():
      run_record.write(workdir, config, overrides=overrides, changes=changes, step=first)
      experiment.prepared.tokenizer.save(str(epath.Path(workdir) / _TOKENIZER))
    with (
      metrics.Metrics(
        workdir,
        total_steps=experiment.total_steps,
        resumed_step=first,
        writes=hosts.is_first(),
      ) as log,
      interrupt.Interrupts(agreed=hosts.agreement(), progress=say) as interrupts,
      watchdog.Watchdog(train["watchdog_seconds"], where=hosts.name()) as dog,
    ):
      state = loop.train(
        state,
        train_step=experiment.train_step(),
        strategy=strategy,
        pipeline=experiment.pipeline,
        evaluate=lambda state: evaluators.figures(
          _weights(state, config), final=int(state.step) == experiment.total_steps
        ),
        checkpoints=checkpoints,
        metrics=log,
        interrupts=interrupts,
        watchdog=dog,
        resumed=resumed,
        total_steps=experiment.total_steps,
        log_every_steps=train["log_every_steps"],
        eval_every_steps=train["eval_every_steps"],
        save_every_steps=train["save_every_steps"],
      )
  if interrupts.stops:
    say(f"Stopped after step {int(state.step)}, which is saved; the same command goes on from it.")
    return interrupts.exit_code
  params = strategy.one_copy(_weights(state, config))
  if hosts.is_first():
    views.write(workdir, evaluators.views(params))
    _print_figures(_evaluated(workdir), workdir)
    facts = {"Parameters": f"{sum(x.size for x in jax.tree.leaves(state.params)):,}"}
    print(f"Report: {report.write_report(workdir, facts=facts)}")
  return 0


def _eval(config: Config, *, workdir: str, **_: Any) -> None:
  run_record.check_same(workdir, config, allow_change=True)
  experiment = build(config)
  which = "ema" if config["evals"]["weights"] == "ema" else "params"
  abstract = experiment.strategy.like_saved(experiment.abstract_state())
  params = checkpoint.restore_params(workdir, abstract.params, which=which)
  evaluators, params = experiment.evaluators(workdir), experiment.strategy.from_saved(params)
  figures = dict(evaluators.figures(params, final=True))
  params = experiment.strategy.one_copy(params)
  if hosts.is_first():
    _print_figures(figures, workdir)
    views.write(workdir, evaluators.views(params))
    if metrics.exists(workdir):  # Checkpoints may have come without their log.
      facts = {"Parameters": f"{sum(x.size for x in jax.tree.leaves(params)):,}"}
      print(f"Report: {report.write_report(workdir, facts=facts)}")


def _replay(config: Config, *, workdir: str, replay_step: int, **_: Any) -> None:
  run_record.check_same(workdir, config, allow_change=True)
  experiment = build(config)
  if not 1 <= replay_step <= experiment.total_steps:
    raise UserError(
      f"--step={replay_step} must lie in [1, {experiment.total_steps}], the steps of the run: the "
      "one that --mode=replay takes again."
    )
  replay.replay(
    replay_step,
    workdir=workdir,
    strategy=experiment.strategy,
    abstract_state=experiment.abstract_state(),
    create_state=experiment.create_state,
    train_step=experiment.train_step(),
    pipeline=experiment.pipeline,
    tokenizer=experiment.prepared.tokenizer,
    progress=_say(),
  )


def _generate(config: Config, *, workdir: str, **_: Any) -> None:
  run_record.check_same(workdir, config, allow_change=True)
  settings = _generation(config)
  prompts = terminal.prompts(settings)
  tokenizer = _workdir_tokenizer(config, workdir)
  model = looped.build(config["model"], vocab_size=tokenizer.vocab_size)
  which = "ema" if config["evals"]["weights"] == "ema" else "params"
  params = checkpoint.restore_params(
    workdir, jax.eval_shape(model.init, jax.random.key(0)), which=which
  )
  common = {
    "model": model,
    "params": params,
    "tokenizer": tokenizer,
    "sampling": _picked(Sampling, settings),
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
  if settings["task"] == "infill" and "mntp" not in _modes(objective):
    raise UserError(
      f"generate.task='infill' needs a model that was trained with masked rows, and "
      f"objective.name={objective!r} has none: use one trained with 'hybrid' or 'mntp', or "
      "generate.task='continue'."
    )
  _picked(Sampling, settings)
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


def _workdir_tokenizer(config: Config, workdir: str) -> Tokenizer:
  """The tokenizer that a run keeps beside its checkpoints."""
  path = epath.Path(workdir) / _TOKENIZER
  return Tokenizer.load(str(path)) if path.exists() else _prepare(config).tokenizer


def _export(config: Config, *, workdir: str, export: Export, **_: Any) -> None:
  output = export.output or str(epath.Path(workdir) / "export")
  huggingface.check_folder(output)
  run_record.check_same(workdir, config, allow_change=True)
  experiment = build(config)
  which = "ema" if config["evals"]["weights"] == "ema" else "params"
  number = checkpoint.saved_step(workdir, step=export.step or None)
  params = checkpoint.restore_params(
    workdir, experiment.abstract_state().params, which=which, step=number
  )
  pipeline = experiment.pipeline
  folder = huggingface.export(
    output,
    params,
    model=config["model"],
    tokenizer=experiment.prepared.tokenizer,
    causal=experiment.objective.modes == ("clm",),
    seq_len=config["data"]["seq_len"],
    facts=model_card.Facts(
      name=epath.Path(output).name if export.output else epath.Path(workdir).name,
      license=export.license,
      weights=config["evals"]["weights"],
      step=number,
      words_seen=pipeline.words_seen(number),
      tokens_seen=pipeline.tokens_seen(number),
      epochs_seen=pipeline.epochs_seen(number),
      figures=_evaluated(workdir, step=number),
      config=config,
    ),
  )
  print(f"Exported step {number} ({config['evals']['weights']} weights) to {folder}")


def _prepare_only(config: Config, **_: Any) -> None:
  prepared = _prepare(config)
  _say()(data_report.text(prepared.report))


def _describe(config: Config, **_: Any) -> None:
  prepared = find_prepared(config["data"], config["tokenizer"], seed=config["seed"])
  size = prepared.tokenizer.vocab_size if prepared else config["tokenizer"]["vocab_size"]
  _say()(describe(looped.build(config["model"], vocab_size=size), config, prepared))


MODES: dict[str, Callable[..., int | None]] = {
  "train": _train,
  "eval": _eval,
  "generate": _generate,
  "export": _export,
  "prepare": _prepare_only,
  "describe": _describe,
  "replay": _replay,
}


def _say() -> Callable[[str], None]:
  """Gives print in the process that speaks for all, and nothing in the others."""
  return print if hosts.is_first() else lambda _: None


def _print_figures(figures: Mapping[str, float], workdir: str) -> None:
  """Prints figures and the table of scores, which is left in the run's folder too."""
  for name, value in figures.items():
    print(f"{name:48} {value:10.5f}")
  if table := leaderboard.table(figures):
    print(table)
  leaderboard.leave(workdir, figures)


def compare_runs(workdir: str, against: str) -> None:
  """Prints on which tasks one run is better than another.

  Raises:
    UserError: A run is not given, or was not scored as the other.
  """
  if not workdir or not against:
    raise UserError("--mode=compare needs two runs: --workdir=DIR --against=DIR.")
  print(compare.table(compare.compare(workdir, against)))


def _evaluated(workdir: str, *, step: int | None = None) -> dict[str, float]:
  """The last figures of every evaluation in a run's log, or those of one step."""
  return {
    name: value
    for record in metrics.read(workdir)
    for name, value in record.items()
    if name.startswith("eval/") and step in (None, record["step"])
  }


def _weights(state: State, config: Config) -> Params:
  return state.ema if config["evals"]["weights"] == "ema" else state.params


def _prepare(config: Config) -> Prepared:
  return prepare(
    config["data"],
    config["tokenizer"],
    seed=config["seed"],
    process_index=jax.process_index(),
  )


def _vocabulary(prepared: Prepared) -> Vocabulary:
  tokenizer = prepared.tokenizer
  return Vocabulary(
    size=tokenizer.vocab_size,
    num_special=tokenizer.num_special,
    bos_id=tokenizer.bos_id,
    pad_id=tokenizer.pad_id,
    mask_id=tokenizer.mask_id,
  )


def _modes(objective: str) -> tuple[str, ...]:
  return plugins.load("objectives", objective).Objective.modes


def _picked(cls: Any, settings: Mapping[str, Any]) -> Any:
  """A dataclass from those of the settings that it has."""
  fields = {field.name for field in dataclasses.fields(cls)}
  return cls(**{name: value for name, value in settings.items() if name in fields})


def _objective(config: Config, vocabulary: Vocabulary) -> Any:
  cls = plugins.load("objectives", config["objective"]["name"]).Objective
  return _picked(cls, {**config["objective"], "vocabulary": vocabulary})


def _init(config: Config) -> Any:
  return _picked(plugins.load("init", config["init"]["name"]).Init, config["init"])


def _optimizer(config: Config) -> Any:
  return _picked(plugins.load("optim", config["optim"]["name"]).Optimizer, config["optim"])


def _schedule(config: Config, *, total_steps: int) -> optax.Schedule:
  return schedules.make(config["optim"], total_steps=total_steps)


def _total_steps(config: Config, pipeline: Pipeline) -> int:
  """The run's length in steps, from whichever budget is given."""
  train = config["train"]
  if train["total_steps"] > 0:
    return train["total_steps"]
  budgets = {unit: train[name] for name, unit in _BUDGETS.items() if train[name] > 0}
  return pipeline.steps_for(**budgets)
