"""The command line: flags to a config, and the config to a job.

python -m looped_lm.main --config=configs/NAME.py[:arguments] --workdir=DIR \
  [--mode=train|prepare|eval|export|generate|describe|replay] [--config.group.field=value …] \
  [--prompt=TEXT …] [--seeds=1,2,3]
python -m looped_lm.main --mode=compare --workdir=DIR --against=DIR
"""

from collections.abc import Sequence
import os
import sys

from absl import app, flags
from ml_collections import config_flags

# XLA:CPU calls it an error, of a screen's length, that a program out of the cache was made with
# preferences among its features, on machines with AVX-512. Real errors are raised. It is read
# when jax is imported, which puts a 1 there itself, for the processes that it starts too.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
  os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from looped_lm import jobs
from looped_lm.errors import UserError
from looped_lm.train.parallel import hosts

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "The experiment: a file of configs/, with arguments behind a colon."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Where the run lives: checkpoints, log, report.")
_MODE = flags.DEFINE_enum("mode", "train", sorted([*jobs.MODES, "compare"]), "What to do.")
_AGAINST = flags.DEFINE_string("against", "", "The run that --mode=compare compares with.")
_FORMAT = flags.DEFINE_enum("format", "huggingface", ["huggingface"], "Of --mode=export.")
_OUTPUT = flags.DEFINE_string("output", "", "Folder of --mode=export; by default WORKDIR/export.")
_MILESTONES = flags.DEFINE_bool(
  "milestones", False, "Whether --mode=export writes train.save_at_words, each as a folder."
)
_STEP = flags.DEFINE_integer(
  "step",
  0,
  "Checkpoint of --mode=export, 0 is the latest; the step that --mode=replay takes again.",
)
_LICENSE = flags.DEFINE_string("license", "", "Of exported weights, e.g. apache-2.0, for the card.")
_ALLOW_CONFIG_CHANGE = flags.DEFINE_bool(
  "allow_config_change", False, "Go on in a workdir that was started with another config."
)
_DISTRIBUTED = flags.DEFINE_enum(
  "distributed", "auto", hosts.MODES, "Whether this is one of several processes of a run."
)
_COORDINATOR = flags.DEFINE_string(
  "coordinator", None, "HOST:PORT of process 0; see --distributed."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Processes; see --distributed.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which process; see --distributed.")
_COMPILED = flags.DEFINE_bool(
  "compiled", False, "Whether --mode=describe compiles the step, for the memory of each device."
)
_PROMPT = flags.DEFINE_multi_string(
  "prompt", None, "A text for --mode=generate, once for each; the same as config.generate.prompts."
)
_SEEDS = flags.DEFINE_string(
  "seeds", None, "Of --mode=train: trains once for each, as in 1,2,3, in WORKDIR/seed_1 and so on."
)


def run(arguments: Sequence[str]) -> int:
  """Parses the command line and runs the job.

  Args:
    arguments: As `sys.argv`.

  Returns:
    The exit code.

  Raises:
    UserError: A flag, a config field or a value that cannot work.
  """
  try:
    rest = flags.FLAGS(list(arguments))
    config = _CONFIG.value and _CONFIG.value.to_dict()
  except (flags.Error, AttributeError, KeyError, OSError, TypeError) as error:
    raise UserError(" ".join(str(error.args[-1]).replace("\\n", " ").split())) from error
  if len(rest) > 1:
    raise UserError(f"Unknown arguments {rest[1:]}; flags start with two dashes.")
  if _SEEDS.value is not None and _MODE.value != "train":
    raise UserError(f"--seeds is for --mode=train, not --mode={_MODE.value}.")
  if _MODE.value == "compare":
    jobs.compare_runs(_WORKDIR.value or "", _AGAINST.value)
    return 0
  if config is None:
    raise UserError("--config is missing; give a file such as configs/quickstart.py.")
  if _MILESTONES.value and _MODE.value != "export":
    raise UserError(f"--milestones is for --mode=export, not --mode={_MODE.value}.")
  if _COMPILED.value and _MODE.value != "describe":
    raise UserError(f"--compiled is for --mode=describe, not --mode={_MODE.value}.")
  if _PROMPT.value:
    if _MODE.value != "generate":
      raise UserError(f"--prompt is for --mode=generate, not --mode={_MODE.value}.")
    config["generate"]["prompts"] = tuple(_PROMPT.value)
  overrides = config_flags.get_override_values(flags.FLAGS["config"])
  seeds = () if _SEEDS.value is None else jobs.read_seeds(_SEEDS.value)
  if seeds and "seed" in overrides:
    raise UserError(
      f"--config.seed={overrides['seed']} has no meaning with --seeds={_SEEDS.value}, which sets "
      "the seed of each run; leave --config.seed out."
    )
  hosts.join(
    _DISTRIBUTED.value,
    coordinator=_COORDINATOR.value,
    num_processes=_NUM_PROCESSES.value,
    process_id=_PROCESS_ID.value,
    lost_process_seconds=config.get("parallel", {}).get("lost_process_seconds", 100),
  )
  with hosts.together():
    return jobs.run(
      _MODE.value,
      config,
      workdir=_WORKDIR.value,
      overrides=overrides,
      allow_config_change=_ALLOW_CONFIG_CHANGE.value,
      export=jobs.Export(
        output=_OUTPUT.value,
        step=_STEP.value,
        license=_LICENSE.value,
        milestones=_MILESTONES.value,
      ),
      replay_step=_STEP.value,
      compiled=_COMPILED.value,
      seeds=seeds,
    )


def main() -> None:
  """Runs the program; a user's mistake is one line and exit code 1."""
  try:
    if {"--help", "-help", "--helpshort", "--helpfull"} & set(sys.argv):
      app.run(lambda _: None)
    sys.exit(run(sys.argv))
  except UserError as error:
    print(f"looped_lm: {error}", file=sys.stderr)
    sys.exit(1)
  except KeyboardInterrupt:
    print("looped_lm: stopped; the same command goes on from the last checkpoint.", file=sys.stderr)
    sys.exit(130)


if __name__ == "__main__":
  main()
