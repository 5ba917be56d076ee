"""Loss and accuracy on held-out text: in both modes, and after every loop."""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import math

from looped_lm.evals import held_out_text
from looped_lm.types import Batch, Model, Params, Ratio, Subject, Task


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Reads every loop out: z_r goes through coda and head, r = 1 .. R.

  Yields `eval/<mode>/loss_nats` and `/accuracy` (the last loop's), `eval/<mode>/loop/<r>/loss_nats`
  and `eval/loop/<r>/state_rms` over the causal rows. The masks are the same at every call.

  Attributes:
    subject: The model and the held-out rows.
    modes: Any of "clm" and "mntp".
    mask_rate: Fraction of tokens masked in mntp.
  """

  subject: Subject
  modes: tuple[str, ...] = ("clm", "mntp")
  mask_rate: float = 0.15

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Evaluates parameters that lie where the strategy put them."""
    means = held_out_text.means(
      self.subject, self._sums, params, num_batches=self.subject.num_batches
    )
    for mode in self.modes:
      loss_R = means[f"{mode}/loss_nats"]
      yield f"eval/{mode}/loss_nats", float(loss_R[-1])
      yield f"eval/{mode}/accuracy", float(means[f"{mode}/accuracy"][-1])
      for loop, value in enumerate(loss_R, start=1):
        yield f"eval/{mode}/loop/{loop:02}/loss_nats", float(value)
    for loop, square in enumerate(means["state_square"], start=1):
      yield f"eval/loop/{loop:02}/state_rms", math.sqrt(square)

  @functools.cached_property
  def _sums(self) -> Callable[[Params, Batch], dict[str, Ratio]]:
    return held_out_text.compile_sums(
      self.subject, _figures, modes=self.modes, mask_rate=self.mask_rate
    )


def _figures(model: Model, params: Params, batch: Batch, task: Task) -> dict[str, Ratio]:
  del batch
  states_RBTD = model.encode(params, task.inputs, keep_states=True).states_RBTD
  assert states_RBTD is not None
  return held_out_text.read_out(model, params, task, states_RBTD)
