"""GlobalPIQA's parallel part, English: 4 solutions."""

from collections.abc import Iterable
import dataclasses

from looped_lm.evals import global_piqa
from looped_lm.evals.choices import ChoiceTask, Item


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator(ChoiceTask):
  """Mean accuracy of log-probabilities per token; chance is 25."""

  name = "global_piqa_parallel"
  version = "global-piqa-parallel-2026.1"
  length_normalized = True

  def read(self) -> Iterable[Item]:
    """Reads the folder `global_piqa_parallel` of the official files."""
    return global_piqa.items(self.path, task=self.name, num_solutions=4)
