"""The file one uploads to the BabyLM leaderboard: all predictions of one model in one way.

Its form is that of the pipeline's `all_full_preds_and_fast_scores_<backend>.json` of July 2026.
Only whole sets of the model at hand go in: what was scored of another checkpoint, or on the first
items of a set alone, is null, as the pipeline has what is missing, and is named.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import json
from typing import Any

from etils import epath

from looped_lm.evals import leaderboard, results

_MARKS = "scored.json"
# Task -> (its name in the file, predictions of the whole set).
_TASKS = {
  "blimp": ("blimp", 59_875),
  "blimp_supplement": ("blimp_supplement", 5_218),
  "ewok": ("ewok", 7_618),
  "entity_tracking": ("entity_tracking_filtered", 6_780),
  "comps": ("comps", 91_028),
  "global_piqa_parallel": ("global_piqa_parallel", 103),
  "global_piqa_nonparallel": ("global_piqa_nonparallel", 100),
  "reading": ("reading", 1_726),
}
_GLUE = {
  "boolq": 1_635,
  "mnli": 4_908,
  "mrpc": 204,
  "multirc": 2_424,
  "qqp": 20_215,
  "rte": 139,
  "wsc": 52,
}
# Surprisals of one checkpoint, and the checkpoints.
_AOA = 8_005
_CHECKPOINTS = {f"chck_{million}M" for million in (*range(1, 10), *range(10, 110, 10))}
# What the pipeline measures of every checkpoint on small sets; not done here.
_FAST = (
  "blimp",
  "blimp_supplement",
  "ewok",
  "entity_tracking_filtered",
  "global_piqa_parallel",
  "global_piqa_nonparallel",
  "reading",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
  """A file that was written.

  Attributes:
    path: Where.
    left_out: What it holds no predictions of -> why.
  """

  path: str
  left_out: Mapping[str, str]


def leave(workdir: str, figures: Iterable[str], *, model: Mapping[str, Any]) -> list[Submission]:
  """Writes `<workdir>/evals/submission_<backend>.json` for each backend that was scored now.

  Args:
    workdir: The run's folder.
    figures: Names of what was measured now.
    model: What was scored, as JSON: step, weights, loops. Predictions of another are left out.

  Returns:
    The files; none where no task of the leaderboard has been scored whole.
  """
  root = epath.Path(workdir) / "evals"
  marks = json.loads((root / _MARKS).read_text()) if (root / _MARKS).exists() else {}
  backends = {}
  for task, backend in leaderboard.scored(figures):
    backends[backend] = True
    marks[f"{task}/{backend}"] = dict(model)
  if backends:
    results.write(root / _MARKS, marks, indent=1)
  written = []
  for backend in backends:
    content, left_out = _collated(root, backend, marks=marks, model=model)
    if any(content[name] for name in content if name != "fast_eval_results"):
      path = root / f"submission_{backend}.json"
      results.write(path, content)
      written.append(Submission(path=str(path), left_out=left_out))
  return written


def _collated(
  root: epath.Path, backend: str, *, marks: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
  left_out: dict[str, str] = {}

  def read(task: str, file: str = "predictions.json") -> Any:
    """The task's file where it is of this model; else says why not."""
    mark, path = marks.get(f"{task}/{backend}"), root / task / backend / file
    if mark is None or not path.exists():
      left_out[task] = "not scored"
    elif mark != dict(model):
      left_out[task] = f"scored of another model ({_told(mark)})"
    else:
      return json.loads(path.read_text())
    return None

  def whole(task: str, told: Any, found: int, wanted: int) -> Any:
    if found == wanted:
      return told
    left_out[task] = f"{found:,} predictions, and the whole set has {wanted:,}"
    return None

  content: dict[str, Any] = {}
  for task, (name, wanted) in _TASKS.items():
    told = read(task)
    content[name] = told and whole(task, told, _count(told), wanted)
  content["glue"] = {}
  if (glue := read("glue")) is not None:
    for task, wanted in _GLUE.items():
      told = glue.get(task)
      if told is None:
        left_out[f"glue/{task}"] = "not scored"
      elif whole(f"glue/{task}", told, len(told["predictions"]), wanted):
        content["glue"][task] = told
  surprisals, scores = read("aoa"), read("aoa", "scores.json")
  if surprisals is not None:
    found = len(surprisals["results"])
    surprisals = whole("aoa", surprisals, found, _AOA * len(_CHECKPOINTS))
  if surprisals is not None and {r["step"] for r in surprisals["results"]} != _CHECKPOINTS:
    left_out["aoa"], surprisals = "the checkpoints are not those of the strict-small track", None
  content["aoa_surprisals"] = surprisals
  content["aoa"] = {"aoa": scores["score_percent"] / 100.0} if surprisals and scores else None
  content["fast_eval_results"] = {name: [None] * len(_CHECKPOINTS) for name in _FAST}
  return content, left_out


def _count(told: Mapping[str, Any]) -> int:
  return sum(len(group["predictions"]) for group in told.values())


def _told(mark: Mapping[str, Any]) -> str:
  return ", ".join(f"{name} {value}" for name, value in mark.items())
