"""What more and fewer loops would do, and how the state moves: the model run to twice its depth.

One run of 2 R loops serves every depth: the state after loop r does not depend on how many loops
follow, so it is what a run of r loops ends with. docs/diagnostics.md says how to read the figures.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
import numpy as np

from looped_lm.evals import held_out_text
from looped_lm.nn import watch
from looped_lm.nn.precision import widen
from looped_lm.types import Batch, Model, Params, Ratio, Subject, Task


def depths(num_loops: int) -> list[int]:
  """Gives 1, 2, 4, ... below twice the model's loops, those loops, and twice as many."""
  powers = {2**k for k in range((2 * num_loops).bit_length())}
  return sorted(powers | {num_loops, 2 * num_loops})


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Loss by depth, and how the state changes from loop to loop.

  Yields `eval/depth/<RR>/<mode>_loss_nats`, `<mode>_accuracy` and `state_rms` of a run of RR loops;
  `eval/loop/<rr>/token_correlation` and, from the second loop on, `step_size` and `cosine`, for
  every loop up to twice the model's; and `eval/loop/<rr>/<figure>` for what the model's own parts
  offer, e.g. `gate_openness`. All but loss and accuracy are of the first mode's rows. Those by loop
  are of text alone, without `<s>`, whose state is the same wherever it sees itself alone.

  Attributes:
    subject: The model and the held-out rows.
    modes: Any of "clm" and "mntp".
    mask_rate: Fraction of tokens masked in mntp.
    num_batches: Most batches to read; 0 reads as many as all evaluators do.
  """

  subject: Subject
  modes: tuple[str, ...] = ("clm", "mntp")
  mask_rate: float = 0.15
  num_batches: int = 0

  def run(self, params: Params) -> Iterator[tuple[str, float]]:
    """Evaluates parameters that lie where the strategy put them."""
    means = held_out_text.means(
      self.subject,
      self._sums,
      params,
      num_batches=self.num_batches or self.subject.num_batches,
    )
    for place, depth in enumerate(depths(self.subject.model.num_loops)):
      for mode in self.modes:
        for what in ("loss_nats", "accuracy"):
          yield f"eval/depth/{depth:02}/{mode}_{what}", float(means[f"{mode}/{what}"][place])
      yield f"eval/depth/{depth:02}/state_rms", math.sqrt(means["state_square"][place])
    for name, values in means.items():
      if name.startswith("loop/"):
        # Figures of a loop and the one before it begin at the second.
        first = 2 * self.subject.model.num_loops - len(values) + 1
        for loop, value in enumerate(values, start=first):
          yield f"eval/loop/{loop:02}/{name.removeprefix('loop/')}", float(value)

  @functools.cached_property
  def _sums(self) -> Callable[[Params, Batch], dict[str, Ratio]]:
    return held_out_text.compile_sums(
      self.subject,
      functools.partial(_figures, self.subject.vocabulary.bos_id),
      modes=self.modes,
      mask_rate=self.mask_rate,
    )


def _figures(
  bos_id: int, model: Model, params: Params, batch: Batch, task: Task
) -> dict[str, Ratio]:
  read = np.array(depths(model.num_loops)) - 1
  text_BT = (batch.segments_BT > 0) & (batch.tokens_BT != bos_id)
  output = model.encode(
    params,
    task.inputs,
    num_loops=2 * model.num_loops,
    keep_states=True,
    watch=(watch.FIGURES,),
  )
  assert output.states_RBTD is not None
  assert output.watched is not None
  offered = {
    path.rpartition("/")[2]: _over_tokens(_flat(figure_RBT).mean(axis=-1), text_BT)
    for path, figure_RBT in output.watched[watch.FIGURES].items()
  }
  by_loop = movement(output.states_RBTD, text_BT) | offered
  by_depth = held_out_text.read_out(model, params, task, output.states_RBTD[read])
  return by_depth | {f"loop/{name}": ratio for name, ratio in by_loop.items()}


def movement(
  states_RBTD: Float[Array, "R B T D"], text_BT: Bool[Array, "B T"]
) -> dict[str, tuple[Float[Array, " R"], Float[Array, ""]]]:
  """How the state moves over the loops, as sums and weights.

  Args:
    states_RBTD: After every loop; lanes count as further channels.
    text_BT: The tokens that count.

  Returns:
    step_size: ‖h_r − h_{r−1}‖ / ‖h_r‖ of a token, r = 2 .. R.
    cosine: Between h_r and h_{r−1} of a token, r = 2 .. R.
    token_correlation: Cosine between the states of two tokens of a row, r = 1 .. R.
  """
  states_RBTD = _flat(widen(states_RBTD))
  norm_RBT = jnp.linalg.norm(states_RBTD, axis=-1)
  change_RBT = jnp.linalg.norm(states_RBTD[1:] - states_RBTD[:-1], axis=-1)
  unit_RBTD = states_RBTD / norm_RBT[..., None]
  cosine_RBT = (unit_RBTD[1:] * unit_RBTD[:-1]).sum(axis=-1)
  # Over pairs i ≠ j of n unit vectors, Σ uᵢ·uⱼ = ‖Σ uᵢ‖² − n.
  total_RBD = jnp.where(text_BT[None, :, :, None], unit_RBTD, 0.0).sum(axis=2)
  text_B = text_BT.sum(axis=1).astype(unit_RBTD.dtype)
  pairs_RB = jnp.square(total_RBD).sum(axis=-1) - text_B
  return {
    "step_size": _over_tokens(change_RBT / norm_RBT[1:], text_BT),
    "cosine": _over_tokens(cosine_RBT, text_BT),
    "token_correlation": (pairs_RB.sum(axis=1), (text_B * (text_B - 1.0)).sum()),
  }


def _over_tokens(figure_RBT: jax.Array, text_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Sums and their number; what stands where no text is may be anything, NaN too."""
  return jnp.where(text_BT, figure_RBT, 0.0).sum(axis=(1, 2)), text_BT.sum()


def _flat(x_RBTD: jax.Array) -> Float[Array, "R B T C"]:
  """All that a token has, as one axis."""
  return x_RBTD.reshape(*x_RBTD.shape[:3], -1)
