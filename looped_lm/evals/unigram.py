"""The floor that any language model must beat: guessing by frequency alone."""

from collections.abc import Iterator
import dataclasses

import numpy as np

from looped_lm.types import Params, Subject


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Entropy of the training tokens' distribution, and the held-out tokens' loss under it.

  Both in nats per token; the distribution that scores held-out text is smoothed by one count per
  id, so that an unseen token costs something finite.

  Attributes:
    subject: The counts and the held-out rows.
  """

  subject: Subject

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Evaluates; the parameters play no part."""
    del params
    count_V = np.asarray(self.subject.unigram_V, np.float64)
    p_V = count_V[count_V > 0] / count_V.sum()
    yield "eval/unigram/train_entropy_nats", float(-(p_V * np.log(p_V)).sum())
    smoothed_V = (count_V + 1.0) / (count_V + 1.0).sum()
    held_out_V = np.zeros_like(count_V)
    rows = self.subject.held_out
    for first in range(0, rows.num_rows, 1024):
      tokens_BT, segments_BT = rows.gather(np.arange(first, min(first + 1024, rows.num_rows)))
      real_BT = (segments_BT > 0) & (tokens_BT != self.subject.vocabulary.bos_id)
      held_out_V += np.bincount(tokens_BT[real_BT], minlength=len(count_V))
    cross = -(held_out_V * np.log(smoothed_V)).sum() / held_out_V.sum()
    yield "eval/unigram/held_out_cross_entropy_nats", float(cross)
