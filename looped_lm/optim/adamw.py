"""AdamW on the same decayed group as LAMB."""

import dataclasses

import optax

from looped_lm.optim import masks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
  """Clip, Adam with bias correction, decoupled decay, rate. Source: Loshchilov and Hutter 2019.

  Attributes:
    weight_decay: Of the decayed group.
    b1: Decay of the first moment.
    b2: Decay of the second moment.
    eps: Added outside the root.
    clip_norm: Largest global gradient norm.
  """

  weight_decay: float
  b1: float
  b2: float
  eps: float
  clip_norm: float

  def build(self, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The chain of optax parts."""
    return optax.chain(
      optax.clip_by_global_norm(self.clip_norm),
      optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps),
      optax.add_decayed_weights(self.weight_decay, mask=masks.decayed),
      optax.scale_by_learning_rate(schedule),
    )
