"""Muon for the matrices of the layers, AdamW for everything else: Parcae's optimiser.

Source: Muon (Jordan, 2024) with Polar Express iterations (Amsel et al., arXiv 2505.16932), a mean
square per neuron (NorMuon) and cautious decay, as Parcae's reference implementation has them.
`optax.contrib.muon` has neither of the last two, and its momentum cannot ramp; the rest is optax.

Differs from Parcae: weight decay follows the learning rate and has no schedule of its own, and the
orthogonalisation is done in the gradient's dtype.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import optax

from looped_lm.types import Params

# Polar Express for five iterations and a margin of 2 % in the norm.
_POLAR_EXPRESS = (
  (8.156554524902461, -22.48329292557795, 15.878769915207462),
  (4.042929935166739, -2.808917465908714, 0.5000178451051316),
  (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
  (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
  (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
_MARGIN = 1.02
_STACKS = ("prelude", "core", "coda")
# Matrices that read the stream, by the last part of their path.
_MATRICES = ("kernel", "gate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
  """Clip, then Muon or AdamW by a parameter's place, each at its rate.

  Attributes:
    weight_decay: Of Muon's matrices, where update and weight have one sign; AdamW's has none.
    b1: Decay of Adam's first moment.
    b2: Decay of Adam's second moment.
    eps: Added outside the root.
    clip_norm: Largest global gradient norm.
    muon_rate_factor: Muon's rate over AdamW's.
    muon_momentum_start: Muon's momentum at the first step,
    muon_momentum: and from step `muon_momentum_steps` on; linear in between.
    muon_momentum_steps: Length of that ramp.
    muon_b2: Decay of the second moment per neuron.
  """

  weight_decay: float
  b1: float
  b2: float
  eps: float
  clip_norm: float
  muon_rate_factor: float = 1.0
  muon_momentum_start: float = 0.85
  muon_momentum: float = 0.95
  muon_momentum_steps: int = 300
  muon_b2: float = 0.95

  def build(self, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The chain of optax parts."""
    momentum = optax.linear_schedule(
      self.muon_momentum_start, self.muon_momentum, self.muon_momentum_steps
    )
    muon = optax.chain(
      scale_by_normuon(momentum, b2=self.muon_b2),
      _cautious_decay(self.weight_decay),
      _scale_by_shape(),
      optax.scale_by_learning_rate(lambda count: self.muon_rate_factor * schedule(count)),
    )
    adam = optax.chain(
      optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps),
      optax.scale_by_learning_rate(schedule),
    )
    return optax.chain(
      optax.clip_by_global_norm(self.clip_norm),
      optax.partition({"muon": muon, "adamw": adam}, route),
    )


def route(params: Params) -> Params:
  """Labels the layers' matrices "muon"; tables, norms, injection and read-out "adamw"."""

  def label(path, leaf) -> str:
    matrix = leaf.ndim == 2 and path[0].key in _STACKS and path[-1].key in _MATRICES
    return "muon" if matrix else "adamw"

  return jax.tree_util.tree_map_with_path(label, params)


def orthogonalize(x_IO: Float[Array, "I O"]) -> Float[Array, "I O"]:
  """The nearest matrix with singular values of about 1, by five odd polynomials."""
  wide = x_IO.shape[0] <= x_IO.shape[1]
  x = x_IO if wide else x_IO.T
  x = x / (_MARGIN * jnp.linalg.norm(x) + 1e-6)
  for a, b, c in _POLAR_EXPRESS:
    square = x @ x.T
    x = a * x + (b * square + c * (square @ square)) @ x
  return x if wide else x.T


class NorMuonState(NamedTuple):
  """Steps, momentum, and the mean square of each neuron's update."""

  count: jax.Array
  mu: Params
  nu: Params


def scale_by_normuon(momentum: optax.Schedule, *, b2: float) -> optax.GradientTransformation:
  """Nesterov momentum, orthogonalised, each neuron brought to the size of the others.

  A neuron is a row or column along the longer side, an output where both are equal; the whole keeps
  its norm.

  Args:
    momentum: By step.
    b2: Decay of the neurons' mean squares.
  """

  def init(params: Params) -> NorMuonState:
    nu = jax.tree.map(lambda p: jnp.zeros_like(p.mean(_inner(p), keepdims=True)), params)
    return NorMuonState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), nu)

  def update(updates, state, params=None):
    del params
    grads = updates
    m = jnp.asarray(momentum(state.count))

    def blend(old, new, keep):
      return keep.astype(new.dtype) * old + (1 - keep).astype(new.dtype) * new

    mu = jax.tree.map(lambda mu, g: blend(mu, g, m), state.mu, grads)
    updates = jax.tree.map(lambda mu, g: orthogonalize(blend(mu, g, m)), mu, grads)
    size = jax.tree.map(lambda u: jnp.square(u).mean(_inner(u), keepdims=True), updates)
    nu = jax.tree.map(lambda old, new: b2 * old + (1 - b2) * new, state.nu, size)

    def equalize(u, nu):
      scaled = u * jax.lax.rsqrt(jnp.maximum(nu, 1e-10))
      return scaled * jnp.linalg.norm(u) / jnp.maximum(jnp.linalg.norm(scaled), 1e-10)

    updates = jax.tree.map(equalize, updates, nu)
    return updates, NorMuonState(state.count + 1, mu, nu)

  return optax.GradientTransformation(init, update)


def _inner(x_IO: jax.Array) -> int:
  """The axis within a neuron: the shorter one, the inputs where both are equal."""
  return 0 if x_IO.shape[1] >= x_IO.shape[0] else 1


def _cautious_decay(weight_decay: float) -> optax.GradientTransformation:
  """Adds weight_decay · w where that moves w the way the update does."""

  def add(update, weight):
    return update + weight_decay * weight * (update * weight >= 0)

  return optax.stateless(lambda updates, params: jax.tree.map(add, updates, params))


def _scale_by_shape() -> optax.GradientTransformation:
  """Times sqrt(max(1, outputs / inputs)); kernels are [inputs, outputs]."""

  def scale(x_IO):
    return x_IO * max(1.0, x_IO.shape[1] / x_IO.shape[0]) ** 0.5

  return optax.stateless(lambda updates, params: jax.tree.map(scale, updates))
