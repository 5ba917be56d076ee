"""Figures of the injection, e.g. the spectral radius of its linear part."""

from collections.abc import Iterator
import dataclasses

from looped_lm.types import Params, Subject


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Yields `eval/injection/<figure>`; nothing for an injection without parameters.

  Attributes:
    subject: The model.
  """

  subject: Subject

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Evaluates the injection's parameters."""
    for name, value in self.subject.model.diagnose(params).items():
      yield f"eval/injection/{name}", float(value)
