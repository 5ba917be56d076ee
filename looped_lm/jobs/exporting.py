"""A run as a folder for other programs."""

import dataclasses
from typing import Any

from etils import epath

from looped_lm.export import huggingface, model_card
from looped_lm.jobs.evaluation import logged_figures
from looped_lm.jobs.experiment import Config, build, stored_weights
from looped_lm.train import checkpoint, run_record


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


def export_run(config: Config, *, workdir: str, export: Export, **_: Any) -> None:
  """Writes a checkpoint as a Hugging Face folder."""
  output = export.output or str(epath.Path(workdir) / "export")
  huggingface.check_folder(output)
  run_record.check_same(workdir, config, allow_change=True)
  experiment = build(config)
  which = stored_weights(config)
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
      figures=logged_figures(workdir, step=number),
      config=config,
    ),
  )
  print(f"Exported step {number} ({config['evals']['weights']} weights) to {folder}")
