"""Generated text on the terminal."""

from collections.abc import Mapping, Sequence
import sys
from typing import Any

from etils import epath

from looped_lm.errors import UserError
from looped_lm.generate.continuation import Continued, Cost, Generator
from looped_lm.generate.infill import Infiller

_MiB = 2**20


def prompts(settings: Mapping[str, Any]) -> list[str]:
  """The texts to go on with: those given, then the lines of the file.

  Args:
    settings: The config's `generate` group.

  Raises:
    UserError: There is none, or no such file.
  """
  texts = list(settings["prompts"])
  if settings["prompt_file"]:
    path = epath.Path(settings["prompt_file"])
    if not path.exists():
      raise UserError(f"generate.prompt_file={settings['prompt_file']!r}: no such file.")
    texts += path.read_text().splitlines()
  if not texts:
    raise UserError(
      "Nothing to go on with: give --prompt='Once upon a time' (again for each further text), or "
      "--config.generate.prompt_file with a text per line."
    )
  return texts


def go_on(generator: Generator, texts: Sequence[str], *, batch_size: int) -> None:
  """Prints each text with its continuation, a lone one as it grows, and what they cost."""
  for first in range(0, len(texts), batch_size):
    batch = texts[first : first + batch_size]
    streams = len(batch) == 1
    if streams:
      _write(batch[0])
    found, cost = generator.run(
      batch, first_index=first, on_text=(lambda row, new: _write(new)) if streams else None
    )
    if streams:
      _write("\n")
    else:
      for text, continued in zip(batch, found, strict=True):
        print(f"{text}{continued.text}\n")
    print(f"[{_summary(generator, found, cost)}]")


def fill(infiller: Infiller, texts: Sequence[str]) -> None:
  """Prints each text with its masks filled, and the probability of each fill."""
  for filled in infiller.run(texts):
    print(filled.text)
    pairs = zip(filled.fills, filled.probabilities, strict=True)
    print("[" + ", ".join(f"{word!r} {probability:.3f}" for word, probability in pairs) + "]")


def _summary(generator: Generator, found: Sequence[Continued], cost: Cost) -> str:
  loops = [number for continued in found for number in continued.loops]
  speed = cost.tokens_per_second
  parts = [
    f"{cost.new_tokens} tokens in {cost.first_seconds + cost.seconds:.1f} s",
    "too few tokens to time" if speed is None else f"{speed:.1f} tokens/s once compiled",
    f"{sum(loops) / max(len(loops), 1):.2f} of {generator.decoding.num_loops} loops per token",
    f"cache {cost.cache_bytes / _MiB:.2f} MiB ({generator.decoding.policy.name})",
    "ended by " + ", ".join(sorted({continued.finished for continued in found})),
  ]
  return "; ".join(parts)


def _write(text: str) -> None:
  sys.stdout.write(text)
  sys.stdout.flush()
