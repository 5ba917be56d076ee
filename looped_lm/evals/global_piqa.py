"""GlobalPIQA, English: how does one do it? The parts that its two evaluators share."""

from collections.abc import Iterator

from looped_lm.errors import UserError
from looped_lm.evals import records
from looped_lm.evals.choices import Item
from looped_lm.evals.scoring import Passage


def items(path: str, *, task: str, num_solutions: int) -> Iterator[Item]:
  """Reads a prompt, its solutions and the number of the right one from every line."""
  folder = records.found(
    path,
    setting=f"evals.{task}.path",
    origin=f"with the BabyLM pipeline's global_piqa/dl.py (full_eval/{task})",
  )
  for record in records.json_lines(folder):
    prompt, label = record.text("prompt"), record.integer("label")
    solutions = [record.text(f"solution{number}") for number in range(num_solutions)]
    if not 0 <= label < num_solutions:
      raise UserError(f"{record.where}: 'label' is {label}; it must lie in [0, {num_solutions}).")
    yield Item(
      group=record.label("example_id"),
      options=tuple(
        Passage(text=f"{prompt} {solution}", start=len(prompt), where=record.where)
        for solution in solutions
      ),
      answers=tuple(f" {solution}" for solution in solutions),
      label=label,
    )
