"""The model card of an exported folder: its README.md."""

from collections.abc import Mapping
import dataclasses
from importlib import metadata
import json
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
  """What is known of a run besides its model.

  Attributes:
    name: Of the model.
    license: Of the weights, as Hugging Face writes it, e.g. "apache-2.0"; "" if it was not chosen.
    weights: "raw" or "ema".
    step: Optimiser steps taken.
    words_seen: Words read until then, each exposure counted; None if unknown.
    tokens_seen: Tokens, likewise.
    epochs_seen: Passes over the text.
    figures: Results by name, e.g. of the last evaluation.
    config: The whole configuration of the run.
  """

  name: str
  license: str
  weights: str
  step: int
  words_seen: int | None
  tokens_seen: int | None
  epochs_seen: float | None
  figures: Mapping[str, float]
  config: Mapping[str, Any]


def text(facts: Facts, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> str:
  """The card.

  Args:
    facts: Of the run.
    settings: The config.json.
    tensors: The weights, for their number.
  """
  layers = [settings[f"{part}_layers"] for part in ("prelude", "core", "coda")]
  parameters = sum(array.size for array in tensors.values())
  rows = [
    ("parameters", f"{parameters:,}"),
    ("layers", f"{layers[0]} + {layers[1]} × {settings['num_loops']} loops + {layers[2]}"),
    ("block, injection", f"{settings['block']['name']}, {settings['injection']['name']}"),
    ("width, vocabulary", f"{settings['hidden_size']}, {settings['vocab_size']:,}"),
    ("weights", "moving average" if facts.weights == "ema" else "raw"),
    ("steps", f"{facts.step:,}"),
    ("words read", _number(facts.words_seen, "each exposure counted")),
    ("tokens read", _number(facts.tokens_seen, "")),
    ("epochs", "unknown" if facts.epochs_seen is None else f"{facts.epochs_seen:.2f}"),
    ("licence of the weights", facts.license or "not chosen yet"),
    ("licence of the code in this folder", "apache-2.0"),
    ("made with", f"looped_lm {_version()}"),
  ]
  return "\n".join(
    [
      _front_matter(facts, settings),
      f"# {facts.name}\n",
      "A looped language model: its core layers are applied several times with the same weights.\n",
      _table(("", ""), rows),
      _use(facts.name, settings),
      _scores(facts),
      "## Configuration\n",
      "The configuration of the training run.\n",
      "```json",
      json.dumps(facts.config, indent=2, sort_keys=True, ensure_ascii=False),
      "```\n",
    ]
  )


def _front_matter(facts: Facts, settings: Mapping[str, Any]) -> str:
  task = "text-generation" if settings["causal"] else "fill-mask"
  lines = [
    "---",
    f"license: {facts.license or 'unknown'}",
    "library_name: transformers",
    f"pipeline_tag: {task}",
    "tags:",
    "- looped-transformer",
    "- custom_code",
    "---\n",
  ]
  return "\n".join(lines)


def _use(name: str, settings: Mapping[str, Any]) -> str:
  loops = settings["num_loops"]
  trained = "left to right" if settings["causal"] else "left to right and by masked next tokens"
  return f"""
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "{name}"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
inputs = tokenizer("The king said", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))
```

- `num_loops={2 * loops}`, in `from_pretrained` or in a call, loops deeper than {loops}.
- The model was trained {trained}. `AutoModelForMaskedLM` reads both ways; in both classes the
  logits at a position are those of the *next* token, so what stands behind a `<mask>` is read one
  position to its left.
- Every text starts with `{{bos}}`; the tokenizer adds it.
- There is no cache: `generate` reads the whole text for every token.
""".replace("{bos}", "<s>")


def _scores(facts: Facts) -> str:
  if not facts.figures:
    return ""
  rows = [(name, f"{value:.4f}") for name, value in facts.figures.items()]
  return "## Results\n\n" + _table((f"measured at step {facts.step:,}", ""), rows) + "\n"


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
  lines = [f"| {left} | {right} |" for left, right in [head, ("---", "---"), *rows]]
  return "\n".join(lines)


def _number(value: int | None, note: str) -> str:
  if value is None:
    return "unknown"
  return f"{value:,} ({note})" if note else f"{value:,}"


def _version() -> str:
  try:
    return metadata.version("looped-lm")
  except metadata.PackageNotFoundError:  # A checkout that was not installed.
    return "(version unknown)"
