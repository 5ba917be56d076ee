"""The scores of a run as one table, with the averages of the BabyLM leaderboard of 2026."""

from collections.abc import Iterable, Mapping
import json
import re
from typing import Any

from etils import epath

from looped_lm.evals import labelled, results

VERSION = "leaderboard-2026.1"

# What each number of the leaderboard is the mean of: (task, figure).
NLP = {
  "BLiMP": (("blimp", "score_percent"),),
  "BLiMP supplement": (("blimp_supplement", "score_percent"),),
  "EWoK": (("ewok", "score_percent"),),
  "Entity tracking": (("entity_tracking", "score_percent"),),
  "COMPS": (("comps", "score_percent"),),
  "GLUE": (("glue", "score_percent"),),
  "GlobalPIQA": (
    ("global_piqa_parallel", "score_percent"),
    ("global_piqa_nonparallel", "score_percent"),
  ),
}
HUMAN_LIKE = {
  "Reading": (("reading", "eye_tracking_percent"), ("reading", "self_paced_percent")),
  "Age of acquisition": (("aoa", "score_percent"),),
}
_FIGURE = re.compile(r"eval/([^/]+)/([^/]+)/([a-z_]+_percent)$")


def summary(figures: Mapping[str, float]) -> dict[str, dict[str, Any]]:
  """The leaderboard's numbers for each backend that was scored.

  Args:
    figures: As evaluators yield them.

  Returns:
    backend -> {"scores", "nlp", "human_like", "overall", "missing", "glue_without", "other"}. A
    missing number counts 0, as it does there; "other" are scores that are no part of it. GLUE is
    the mean of the tasks that were scored; "glue_without" names the others. The averages are None
    where no number of theirs was scored.
  """
  known: dict[str, dict[tuple[str, str], float]] = {}
  for name, value in figures.items():
    if (match := _FIGURE.match(name)) and not match[3].startswith("ties"):
      known.setdefault(match[2], {})[match[1], match[3]] = value
  return {backend: _numbers(scores) for backend, scores in known.items()}


def scored(figures: Iterable[str]) -> list[tuple[str, str]]:
  """The tasks and backends that names of figures are of, each once, in order."""
  matches = (_FIGURE.match(name) for name in figures)
  return list(dict.fromkeys((match[1], match[2]) for match in matches if match))


def table(figures: Mapping[str, float]) -> str:
  """The same as text; "" where nothing was scored."""
  lines = []
  for backend, numbers in summary(figures).items():
    lines += ["", f"Scores in percent, backend {backend}", "-" * 56]
    lines += [f"{name:44} {value:10.2f}" for name, value in numbers["other"].items()]
    lines += [f"{name:44} {value:10.2f}" for name, value in numbers["scores"].items()]
    if numbers["scores"]:
      for title, key in (("NLP", "nlp"), ("Human-like", "human_like"), ("Overall", "overall")):
        if numbers[key] is not None:
          lines.append(f"{title + ' average':44} {numbers[key]:10.2f}")
      if numbers["missing"]:
        lines.append(f"Not scored, counted as 0: {', '.join(numbers['missing'])}.")
      if numbers["glue_without"]:
        lines.append(f"GLUE is a mean without {', '.join(numbers['glue_without'])}.")
  return "\n".join(lines)


def leave(workdir: str, figures: Mapping[str, float]) -> None:
  """Writes `<workdir>/evals/leaderboard_<backend>.json`: the table, and each metric's version."""
  root = epath.Path(workdir) / "evals"
  for backend, numbers in summary(figures).items():
    versions = {
      file.parent.parent.name: json.loads(file.read_text())["metric_version"]
      for file in sorted(root.glob(f"*/{backend}/scores.json"))
    }
    content = {"version": VERSION, "backend": backend, **numbers, "metric_versions": versions}
    results.write(root / f"leaderboard_{backend}.json", content, indent=1)


def _numbers(known: Mapping[tuple[str, str], float]) -> dict[str, Any]:
  scores, missing, used = {}, [], set()
  for name, parts in (NLP | HUMAN_LIKE).items():
    used.update(parts)
    if not any(part in known for part in parts):
      missing.append(name)
      continue
    absent = [part for part in parts if part not in known]
    missing += [_title(*part) for part in absent]
    scores[name] = sum(known.get(part, 0.0) for part in parts) / len(parts)
  has_glue = ("glue", "score_percent") in known
  without = [task for task in labelled.TASKS if ("glue", f"{task}_percent") not in known]
  other = {_title(*part): value for part, value in known.items() if part not in used}
  return {
    "scores": scores,
    "nlp": _mean(scores, NLP),
    "human_like": _mean(scores, HUMAN_LIKE),
    "overall": _mean(scores, NLP | HUMAN_LIKE),
    "missing": missing,
    "glue_without": without if has_glue else [],
    "other": other,
  }


def _title(task: str, figure: str) -> str:
  return task if figure == "score_percent" else f"{task} {figure.removesuffix('_percent')}"


def _mean(scores: Mapping[str, float], names: Mapping[str, Any]) -> float | None:
  if not scores.keys() & names.keys():
    return None
  return sum(scores.get(name, 0.0) for name in names) / len(names)
