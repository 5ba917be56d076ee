"""When a token needs no further loop: tests of its state or of its prediction, at inference.

Each token decides for itself. A token that has halted keeps its state, and its keys and values in
later loops are those its last state gives, so that reading tokens one by one or all at once is the
same.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from looped_lm.errors import UserError

# What each test looks at: the prediction after every loop, the state, or the model's own gate.
CRITERIA = {
  "none": "",
  "kl": "prediction",
  "entropy": "prediction",
  "argmax_stable": "prediction",
  "state_change": "state",
  "exit_gate": "gate",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halting:
  """When a token halts after loop r, r at least `min_loops`.

  Attributes:
    name: "none" never halts. "kl": KL(p_{r-1} ‖ p_r) < threshold, in nats, p_0 uniform (Huginn;
      5e-4). "entropy": H(p_r) < threshold, in nats. "argmax_stable": the likeliest token has been
      the same for `patience` loops. "state_change": ‖h_r - h_{r-1}‖ / ‖h_r‖ < threshold (0.03).
      "exit_gate": the learned gate's probability of having left reaches threshold (Ouro).
    threshold: Of the test; above 0, for "exit_gate" at most 1; unused by "argmax_stable".
    patience: Of "argmax_stable", at least 2.
    min_loops: At least 1.
  """

  name: str = "none"
  threshold: float = 0.0
  patience: int = 2
  min_loops: int = 1

  def __post_init__(self):
    where = "generate.halting"
    if self.name not in CRITERIA:
      raise UserError(f"{where}={self.name!r} is none of {list(CRITERIA)}.")
    if self.name not in ("none", "argmax_stable") and self.threshold <= 0:
      raise UserError(
        f"{where}_threshold={self.threshold} must be above 0 for halting={self.name!r}."
      )
    if self.name == "exit_gate" and self.threshold > 1:
      raise UserError(
        f"{where}_threshold={self.threshold} is a probability for halting='exit_gate': at most 1."
      )
    if self.name == "argmax_stable" and self.patience < 2:
      raise UserError(f"{where}_patience={self.patience} must be at least 2.")
    if self.min_loops < 1:
      raise UserError(f"{where}_min_loops={self.min_loops} must be at least 1.")

  @property
  def is_on(self) -> bool:
    """Whether tokens may halt."""
    return self.name != "none"

  @property
  def looks_at(self) -> str:
    """What of a loop `test` needs: "prediction", "state", "gate" or nothing."""
    return CRITERIA[self.name]

  def begin(self, batch: int, length: int, vocab_size: int) -> Any:
    """What the test remembers from loop to loop."""
    if self.name == "kl":
      return jnp.full((batch, length, vocab_size), -jnp.log(float(vocab_size)))
    if self.name == "argmax_stable":
      return jnp.full((batch, length), -1, jnp.int32), jnp.zeros((batch, length), jnp.int32)
    if self.name == "exit_gate":
      return jnp.ones((batch, length))
    return ()

  def test(
    self,
    memory: Any,
    *,
    old_BTD: Float[Array, "B T ..."],
    new_BTD: Float[Array, "B T ..."],
    logits_BTV: Float[Array, "B T V"] | None,
    gate_BT: Float[Array, "B T"] | None,
  ) -> tuple[Bool[Array, "B T"], Any]:
    """Which tokens may halt, and what to remember.

    Args:
      memory: From `begin` or the loop before.
      old_BTD: The state before the loop; more axes where it has lanes.
      new_BTD: The state after it.
      logits_BTV: Read out of it, for tests of predictions.
      gate_BT: Probability of leaving after this loop, for the exit gate.
    """
    if self.name == "state_change":
      axes = tuple(range(2, new_BTD.ndim))
      size_BT = jnp.sqrt(jnp.square(new_BTD).sum(axes))
      change_BT = jnp.sqrt(jnp.square(new_BTD - old_BTD).sum(axes))
      return change_BT < self.threshold * size_BT, ()
    if self.name == "exit_gate":
      assert gate_BT is not None
      stays_BT = memory * (1.0 - gate_BT)
      return 1.0 - stays_BT >= self.threshold, stays_BT
    assert logits_BTV is not None
    log_p_BTV = jax.nn.log_softmax(logits_BTV.astype(jnp.float32))
    if self.name == "kl":
      nats_BT = (jnp.exp(memory) * (memory - log_p_BTV)).sum(-1)
      return nats_BT < self.threshold, log_p_BTV
    if self.name == "entropy":
      return -(jnp.exp(log_p_BTV) * log_p_BTV).sum(-1) < self.threshold, ()
    best_BT, count_BT = memory
    now_BT: Int[Array, "B T"] = log_p_BTV.argmax(-1).astype(jnp.int32)
    count_BT = jnp.where(now_BT == best_BT, count_BT + 1, 1)
    return count_BT >= self.patience, (now_BT, count_BT)
