"""A run as a folder for other programs, or as one for each of its milestones."""

import dataclasses
from typing import Any

from etils import epath

from looped_lm.errors import UserError
from looped_lm.export import huggingface, model_card
from looped_lm.jobs.evaluation import logged_figures
from looped_lm.jobs.experiment import Config, Experiment, build, stored_weights
from looped_lm.train import checkpoint, milestones, run_record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
  """How to export.

  Attributes:
    output: The folder to write; "" is `export` in the workdir, `export_milestones` for those.
    step: Which checkpoint; 0 is the latest.
    license: Of the weights, for the model card, as Hugging Face writes it.
    milestones: Exports each milestone instead, to a folder of its name in `output`.
  """

  output: str = ""
  step: int = 0
  license: str = ""
  milestones: bool = False


def export_run(config: Config, *, workdir: str, export: Export, **_: Any) -> None:
  """Writes a checkpoint as a Hugging Face folder, or every milestone."""
  run = epath.Path(workdir)
  if export.milestones:
    targets = _milestone_targets(export, workdir)
  else:
    folder = export.output or str(run / "export")
    targets = [(folder, workdir, epath.Path(folder).name if export.output else run.name)]
  for target in targets:
    huggingface.check_folder(target[0])
  run_record.check_same(workdir, config, allow_change=True)
  experiment = build(config)
  for folder, source, name in targets:
    _write(experiment, folder, source=source, name=name, workdir=workdir, export=export)


def _milestone_targets(export: Export, workdir: str) -> list[tuple[str, str, str]]:
  """Lists what to write: the folder, where its weights are, and the model's name."""
  run = epath.Path(workdir)
  if export.step:
    raise UserError(f"--milestones exports them all; leave --step={export.step} out.")
  output = epath.Path(export.output or run / "export_milestones")
  if (output / "config.json").exists():
    raise UserError(f"{output} is itself an export, or a run; give another --output.")
  return [
    (str(output / name), source, f"{run.name}-{name}")
    for name, source in milestones.saved(workdir).items()
  ]


def _write(
  experiment: Experiment, output: str, *, source: str, name: str, workdir: str, export: Export
) -> None:
  """Writes a checkpoint of the folder `source`."""
  config, pipeline = experiment.config, experiment.pipeline
  number = checkpoint.saved_step(source, step=export.step or None)
  params = checkpoint.restore_params(
    source, experiment.abstract_state().params, which=stored_weights(config), step=number
  )
  folder = huggingface.export(
    output,
    params,
    model=config["model"],
    tokenizer=experiment.prepared.tokenizer,
    causal=experiment.objective.modes == ("clm",),
    seq_len=config["data"]["seq_len"],
    facts=model_card.Facts(
      name=name,
      license=export.license,
      weights=config["evals"]["weights"],
      step=number,
      words_seen=pipeline.words_seen(number),
      tokens_seen=pipeline.tokens_seen(number),
      epochs_seen=pipeline.epochs_seen(number),
      figures=logged_figures(workdir, step=number),
      config=config,
    ),
  )
  print(f"Exported step {number} ({config['evals']['weights']} weights) to {folder}")
