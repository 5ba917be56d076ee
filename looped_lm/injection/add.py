"""Additive injection: Looped GPT-BERT's z_{t+1} = F(x + z_t).

Source: Looped GPT-BERT, arXiv 2609.09691. The state grows about linearly with the loops, because F
contains the identity path; the norm at a loop's exit keeps it bounded, and comparisons at many
loops need it (or a block that normalises its output).
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Float

from looped_lm.errors import UserError
from looped_lm.nn.norms import NORMS, Norm
from looped_lm.nn.states import RecurrentState

_EXITS = ("none", *NORMS)


class Injection(RecurrentState):
  """z_0 = 0; z_{t+1} = N(F(e + z_t)), N the identity unless asked for.

  Attributes:
    exit_norm: N at the end of every loop: "none", "rms" or "layer", with a learned scale.
    norm_eps: Of that norm.
  """

  exit_norm: str = "none"
  norm_eps: float = 1e-5

  def setup(self):
    if self.exit_norm != "none":
      self.norm_exit = Norm(self.exit_norm, self.norm_eps)

  def prepare(self, e_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    return e_BTD

  def enter(self, h_BTD, anchor, *, loop_B, keys_B) -> Float[Array, "B T D"]:
    return anchor + h_BTD

  def update(self, h_BTD, anchor, out_BTD, *, loop_B, keys_B) -> Float[Array, "B T D"]:
    return out_BTD if self.exit_norm == "none" else self.norm_exit(out_BTD)


def check(settings: Mapping[str, Any]) -> None:
  """Raises a UserError for a norm that does not exist."""
  exit_norm = settings.get("exit_norm", "none")
  if exit_norm not in _EXITS:
    raise UserError(f"model.injection.exit_norm={exit_norm!r} is none of {list(_EXITS)}.")
