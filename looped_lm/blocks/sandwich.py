"""The sandwich block: x = N₂(x + attention(N₁ x)), then x = N₄(x + feed-forward(N₃ x)).

Source: Huginn, arXiv 2502.05171. The norms after the sums keep the stream's size bounded over any
number of loops, which is why its recurrence needs no norm of its own.
"""

from typing import Any

from jaxtyping import Array, Float

from looped_lm.nn import transformer
from looped_lm.nn.context import Context
from looped_lm.nn.transformer import TransformerLayer

check = transformer.check
forward_macs_per_token = transformer.forward_macs_per_token


class Block(TransformerLayer):
  """A norm before each sublayer and after each sum. The settings are `TransformerLayer`'s."""

  def setup(self):
    super().setup()
    self.norm_attention = self.make_norm()
    self.norm_after_attention = self.make_norm()
    self.norm_mlp = self.make_norm()
    self.norm_after_mlp = self.make_norm()

  def __call__(
    self,
    x_BTD: Float[Array, "B T D"],
    history: Any,
    context: Context,
    invariants: Float[Array, "B T K H"] | None,
  ) -> tuple[Float[Array, "B T D"], Any]:
    loop_B = context.loop_B
    y_BTD = self.attention_out(self.norm_attention(x_BTD, loop_B), context, invariants)
    x_BTD = self.norm_after_attention(context.picked(x_BTD) + y_BTD, loop_B)
    y_BTD = self.mlp_out(self.norm_mlp(x_BTD, loop_B), context)
    return self.norm_after_mlp(x_BTD + y_BTD, loop_B), history
