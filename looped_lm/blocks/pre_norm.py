"""The pre-norm block: x + attention(N₁ x), then x + feed-forward(N₂ x).

With RMS norms, rotary positions, normalised queries and keys, relu² and value embeddings it is
Parcae's (arXiv 2604.12946) and that of its dense twins; with layer norms, GELU and no rotary
positions it is GPT-2's, and so the Gated Recurrent Transformer's.
"""

from typing import Any

from jaxtyping import Array, Float

from looped_lm.nn import transformer
from looped_lm.nn.context import Context
from looped_lm.nn.transformer import TransformerLayer

check = transformer.check
forward_macs_per_token = transformer.forward_macs_per_token


class Block(TransformerLayer):
  """One norm before each sublayer. The settings are those of `TransformerLayer`."""

  def setup(self):
    super().setup()
    self.norm_attention = self.make_norm()
    self.norm_mlp = self.make_norm()

  def __call__(
    self,
    x_BTD: Float[Array, "B T D"],
    history: Any,
    context: Context,
    invariants: Float[Array, "B T K H"] | None,
  ) -> tuple[Float[Array, "B T D"], Any]:
    u_BTD = self.norm_attention(x_BTD, context.loop_B)
    x_BTD = context.picked(x_BTD) + self.attention_out(u_BTD, context, invariants)
    x_BTD = x_BTD + self.mlp_out(self.norm_mlp(x_BTD, context.loop_B), context)
    return x_BTD, history
