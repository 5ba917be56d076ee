"""How many loops each row takes: fixed, or drawn afresh every step.

A sampler states the probabilities of 1 .. max_loops, and everything follows from them: a draw looks
one uniform number up in their running sum, and the accounting reads its means off them. A row's
number comes from (seed, step, global row), so that no draw depends on the device layout, on
micro-batches or on a resume; it needs no particular kind of JAX key.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key
import numpy as np

from looped_lm.errors import UserError

# Where this draw stands among a step's keys, apart from rows, sites of dropout and masks.
_SITE = 2**31 - 2
_PER = ("sequence", "batch")
# Nodes of the integral over the log-normal rate; 64 are exact to float32 up to log_std 1.
_NODES = 64
# Points of the run over which a curriculum's means are taken.
_CURRICULUM_POINTS = 100
# How far a curriculum has come, given how far it is.
CURRICULA = {
  "none": lambda progress: jnp.ones_like(progress),
  "linear": lambda progress: progress,
  "one_minus_sqrt": lambda progress: 1.0 - jnp.sqrt(1.0 - progress),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executed:
  """Mean loops of a training step, over the depths drawn and over the run.

  Attributes:
    mean: Loops of a row.
    prefix: Loops run without gradient by each row of a batch, those in which it waits included.
    grad: Loops run with gradient by each row of a batch, those in which it waits included.
  """

  mean: float
  prefix: float
  grad: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fixed:
  """All rows take R loops.

  Attributes:
    num_loops: R.
    grad_loops: K, the last loops that carry gradient; 0 means all.
  """

  num_loops: int
  grad_loops: int = 0

  def __post_init__(self):
    _check_grad_loops(self.grad_loops, self.num_loops, "model.num_loops")

  @property
  def max_loops(self) -> int:
    """The most loops a row may take in training."""
    return self.num_loops

  @property
  def trained_loops(self) -> int:
    """The most loops that carry gradient."""
    return self.grad_loops or self.num_loops

  @property
  def may_skip(self) -> bool:
    """Whether all rows of a batch may take fewer loops than carry gradient."""
    return False

  def draw(
    self, row_B: Int[Array, " B"], *, key: Key[Array, ""], progress: Float[Array, ""] | float
  ) -> int:
    """R, a plain number: nothing is drawn."""
    del row_B, key, progress
    return self.num_loops

  def executed(self, rows: int) -> Executed:
    """The loops a training step runs."""
    del rows
    grad = self.trained_loops
    return Executed(mean=self.num_loops, prefix=self.num_loops - grad, grad=grad)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
  """What all samplers share: a draw by inverse distribution function, a cap and a curriculum.

  A curriculum moves the sampler's `goal` (the mean of a Poisson, the upper end of a uniform) from
  `start_loops` to its final value over the first `curriculum_fraction` of the run.

  Attributes:
    max_loops: The cap; what would be longer takes just as many.
    per: "sequence" draws for every row, "batch" once per step for all rows.
    grad_loops: K, the last loops of a row that carry gradient; 0 means all.
    curriculum: A key of `CURRICULA`.
    start_loops: The goal at the first step of a curriculum, at least 1.
    curriculum_fraction: Part of the run that the curriculum takes, in (0, 1].
  """

  max_loops: int
  per: str = "sequence"
  grad_loops: int = 0
  curriculum: str = "none"
  start_loops: float = 1.0
  curriculum_fraction: float = 1.0

  def __post_init__(self):
    if self.max_loops < 1:
      raise UserError(
        f"model.depth.max_loops={self.max_loops} must be at least 1: it caps the draw."
      )
    if self.per not in _PER:
      raise UserError(f"model.depth.per={self.per!r} is none of {list(_PER)}.")
    if self.curriculum not in CURRICULA:
      raise UserError(f"model.depth.curriculum={self.curriculum!r} is none of {list(CURRICULA)}.")
    if not 1.0 <= self.start_loops <= self.max_loops:
      raise UserError(
        f"model.depth.start_loops={self.start_loops} must lie in "
        f"[1, model.depth.max_loops={self.max_loops}]."
      )
    if not 0.0 < self.curriculum_fraction <= 1.0:
      raise UserError(
        f"model.depth.curriculum_fraction={self.curriculum_fraction} must lie in (0, 1]."
      )
    _check_grad_loops(self.grad_loops, self.max_loops, "model.depth.max_loops")

  @property
  def trained_loops(self) -> int:
    """The most loops that carry gradient."""
    return self.grad_loops or self.max_loops

  @property
  def may_skip(self) -> bool:
    """Whether all rows of a batch are likely to take fewer loops than carry gradient."""
    return self.per == "batch"

  @property
  def goal(self) -> float:
    """What the curriculum ends at."""
    raise NotImplementedError

  def probabilities(self, goal: Float[Array, ""]) -> Float[Array, " R"]:
    """Probabilities of 1 .. max_loops; they sum to 1."""
    raise NotImplementedError

  def current(self, progress: Float[Array, ""] | float) -> Float[Array, ""]:
    """The goal at a point of the run, progress in [0, 1]."""
    part = jnp.clip(jnp.asarray(progress, jnp.float32) / self.curriculum_fraction, 0.0, 1.0)
    return self.start_loops + (self.goal - self.start_loops) * CURRICULA[self.curriculum](part)

  def draw(
    self, row_B: Int[Array, " B"], *, key: Key[Array, ""], progress: Float[Array, ""] | float
  ) -> Int[Array, " B"]:
    """Draws the loops of each row.

    Args:
      row_B: Each row's index in the step's global batch.
      key: The step's key.
      progress: Steps taken over the steps of the run.
    """
    below_R = jnp.cumsum(self.probabilities(self.current(progress)))[:-1]
    key = jax.random.fold_in(key, _SITE)

    def loops(key: Key[Array, ""]) -> Int[Array, ""]:
      return 1 + (jax.random.uniform(key) >= below_R).sum(dtype=jnp.int32)

    if self.per == "batch":
      return jnp.broadcast_to(loops(key), row_B.shape)
    return jax.vmap(loops)(jax.vmap(jax.random.fold_in, (None, 0))(key, row_B))

  def executed(self, rows: int) -> Executed:
    """The loops a training step runs: a batch takes as many as its longest row.

    Args:
      rows: Rows that go through a device at once; 1 counts every row alone, without waiting.
    """
    if self.curriculum == "none":
      points_P = np.ones(1)
    else:
      points_P = (np.arange(_CURRICULUM_POINTS) + 0.5) / _CURRICULUM_POINTS
    p_PR = np.asarray(jax.vmap(lambda point: self.probabilities(self.current(point)))(points_P))
    p_PR = p_PR.astype(np.float64) / p_PR.sum(axis=1, keepdims=True, dtype=np.float64)
    loops_R = np.arange(1, self.max_loops + 1)
    longest_PR = p_PR
    if self.per == "sequence":
      longest_PR = np.diff(np.cumsum(p_PR, axis=1) ** rows, axis=1, prepend=0.0)
    longest_R = longest_PR.mean(axis=0)
    grad_R = np.full(self.max_loops, self.trained_loops)
    if self.may_skip or rows == 1:
      grad_R = np.minimum(loops_R, self.trained_loops)
    return Executed(
      mean=float(p_PR.mean(axis=0) @ loops_R),
      prefix=float(longest_R @ np.maximum(loops_R - self.trained_loops, 0)),
      grad=float(longest_R @ grad_R),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(Sampler):
  """max(1, Poisson(mean_loops)), capped. Source: Parcae, arXiv 2604.12946.

  Attributes:
    mean_loops: μ, at least 1; the mean drawn is μ + exp(-μ), less what the cap takes.
  """

  mean_loops: float

  def __post_init__(self):
    super().__post_init__()
    _check_mean(self.mean_loops, self.max_loops)

  @property
  def goal(self) -> float:
    """μ."""
    return float(self.mean_loops)

  def probabilities(self, goal: Float[Array, ""]) -> Float[Array, " R"]:
    """Those of Poisson(goal), 0 counted as 1 and the tail as the cap."""
    p_R = _poisson(goal, self.max_loops)
    return _with_tail(p_R[1:].at[0].add(p_R[0]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogNormalPoisson(Sampler):
  """1 + Poisson(exp τ), τ ~ N(ln μ - s²/2, s²), capped. Source: Huginn, arXiv 2502.05171.

  Attributes:
    mean_loops: μ, at least 1; the mean drawn is μ + 1, less what the cap takes.
    log_std: s, above 0; Huginn's is 0.5.
  """

  mean_loops: float
  log_std: float

  def __post_init__(self):
    super().__post_init__()
    _check_mean(self.mean_loops, self.max_loops)
    if not 0.0 < self.log_std <= 1.0:
      raise UserError(f"model.depth.log_std={self.log_std} must lie in (0, 1].")

  @property
  def goal(self) -> float:
    """μ."""
    return float(self.mean_loops)

  def probabilities(self, goal: Float[Array, ""]) -> Float[Array, " R"]:
    """Poisson's, averaged over the rates by Gauss-Hermite quadrature, the tail at the cap."""
    node_Q, weight_Q = np.polynomial.hermite_e.hermegauss(_NODES)
    tau_Q = jnp.log(goal) - self.log_std**2 / 2 + self.log_std * jnp.asarray(node_Q, jnp.float32)
    p_QR = jax.vmap(lambda tau: _poisson(jnp.exp(tau), self.max_loops))(tau_Q)
    p_R = jnp.einsum("Q,QR->R", jnp.asarray(weight_Q / weight_Q.sum(), jnp.float32), p_QR)
    return _with_tail(p_R[:-1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uniform(Sampler):
  """Uniform on min_loops .. max_loops. Source: GRT, arXiv 2608.15062, per batch.

  Attributes:
    min_loops: At least 1.
  """

  min_loops: int = 1

  def __post_init__(self):
    super().__post_init__()
    if not 1 <= self.min_loops <= self.max_loops:
      raise UserError(
        f"model.depth.min_loops={self.min_loops} must lie in "
        f"[1, model.depth.max_loops={self.max_loops}]."
      )
    if self.curriculum != "none" and self.start_loops < self.min_loops:
      raise UserError(
        f"model.depth.start_loops={self.start_loops} must be at least "
        f"model.depth.min_loops={self.min_loops}."
      )

  @property
  def goal(self) -> float:
    """The upper end."""
    return float(self.max_loops)

  def probabilities(self, goal: Float[Array, ""]) -> Float[Array, " R"]:
    """Equal ones up to the goal; the part of a loop that a fraction stands for counts in part."""
    t_R = jnp.arange(1, self.max_loops + 1, dtype=jnp.float32)
    p_R = jnp.where(t_R >= self.min_loops, jnp.clip(goal - t_R + 1.0, 0.0, 1.0), 0.0)
    return p_R / p_R.sum()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogUniform(Uniform):
  """⌊exp(u)⌋, u uniform on ln min_loops .. ln(max_loops + 1): every doubling is as likely."""

  def probabilities(self, goal: Float[Array, ""]) -> Float[Array, " R"]:
    """In proportion to ln((t + 1) / t), up to the goal."""
    t_R = jnp.arange(1, self.max_loops + 1, dtype=jnp.float32)
    p_R = jnp.log(jnp.maximum(jnp.minimum(t_R + 1.0, goal + 1.0) / t_R, 1.0))
    p_R = jnp.where(t_R >= self.min_loops, p_R, 0.0)
    return p_R / p_R.sum()


SAMPLERS = {
  "fixed": Fixed,
  "poisson": Poisson,
  "lognormal_poisson": LogNormalPoisson,
  "uniform": Uniform,
  "log_uniform": LogUniform,
}
Depth = Fixed | Sampler


def make(settings: Mapping[str, Any], *, num_loops: int) -> Depth:
  """Builds what the config's `model.depth` says.

  The group may hold the settings of all samplers, so that changing the name alone changes the
  sampler; each takes its own.

  Args:
    settings: The group.
    num_loops: R of a fixed depth.

  Raises:
    UserError: There is no such sampler, or a setting is unknown, missing or out of range.
  """
  name = settings.get("name")
  if name not in SAMPLERS:
    close = difflib.get_close_matches(str(name), SAMPLERS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UserError(f"model.depth.name={name!r} is none of {list(SAMPLERS)}.{hint}")
  known = {field.name for cls in SAMPLERS.values() for field in dataclasses.fields(cls)}
  known -= {"num_loops"}
  for key in settings:
    if key not in known and key != "name":
      close = difflib.get_close_matches(key, known, n=1)
      hint = f" Did you mean model.depth.{close[0]}?" if close else ""
      raise UserError(f"model.depth.{key} is not a setting; model.depth has {sorted(known)}.{hint}")
  cls = SAMPLERS[name]
  fields = dataclasses.fields(cls)
  given = {"num_loops": num_loops, **settings}
  missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in given]
  if missing:
    raise UserError(f"model.depth.name={name!r} needs model.depth.{missing[0]}; set it.")
  return cls(**{f.name: given[f.name] for f in fields if f.name in given})


def _check_grad_loops(grad_loops: int, most: int, where: str) -> None:
  if not 0 <= grad_loops <= most:
    raise UserError(
      f"model.depth.grad_loops={grad_loops} must lie in [1, {where}={most}]; 0 means all loops."
    )


def _check_mean(mean_loops: float, max_loops: int) -> None:
  if not 1.0 <= mean_loops <= max_loops:
    raise UserError(
      f"model.depth.mean_loops={mean_loops} must lie in [1, model.depth.max_loops={max_loops}]."
    )


def _poisson(rate: Float[Array, ""], most: int) -> Float[Array, " N"]:
  """Poisson probabilities of 0 .. most."""
  n_N = np.arange(most + 1)
  log_factorial_N = jnp.asarray([math.lgamma(n + 1.0) for n in n_N], jnp.float32)
  return jnp.exp(n_N * jnp.log(rate) - rate - log_factorial_N)


def _with_tail(p_R: Float[Array, " R"]) -> Float[Array, " R"]:
  """Puts at the cap, the last entry, what the others leave."""
  return p_R.at[-1].set(jnp.maximum(1.0 - p_R[:-1].sum(), 0.0))
