"""LAMB as GPT-BERT has it: decay and trust ratio on the decayed group only."""

import dataclasses

import optax

from looped_lm.optim import masks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
  """Clip, Adam with bias correction, decoupled decay, trust ratio ‖w‖ / ‖u‖ per tensor, rate.

  The rest (biases, norm scales, A_log, dt_bias) is plain Adam at the full rate. The ratio is 1
  where either norm is 0 and is not bounded. `optax.lamb` is not the same: it applies the ratio to
  every tensor. Source: You et al. 2020; GPT-BERT's reference implementation.

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
    decayed = optax.chain(
      optax.add_decayed_weights(self.weight_decay), optax.scale_by_trust_ratio()
    )
    return optax.chain(
      optax.clip_by_global_norm(self.clip_norm),
      optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps),
      optax.masked(decayed, masks.decayed),
      optax.scale_by_learning_rate(schedule),
    )
