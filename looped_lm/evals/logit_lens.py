"""The logit lens over loops: what would be predicted if the model stopped after each of them.

Source: nostalgebraist, 2020, for layers. Here the state after a loop goes through coda and head,
which training taught to read it, so no lens is fitted.
"""

from collections.abc import Mapping
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from looped_lm.evals.snippets import Snippets, causal
from looped_lm.types import Params, Subject


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Top tokens after every loop, for a few snippets of held-out text read from left to right.

  Attributes:
    subject: The model and the held-out rows.
    num_snippets: Snippets.
    snippet_tokens: Positions of each, `<s>` included.
    top: Tokens kept of each prediction.
  """

  subject: Subject
  num_snippets: int = 2
  snippet_tokens: int = 12
  top: int = 5

  def views(self, params: Params) -> Mapping[str, np.ndarray]:
    """Looks.

    Args:
      params: This process's own; see `Strategy.one_copy`.

    Returns:
      token_BT: What is read, as text; "" behind the end of a short snippet.
      target_BT: What comes next, as text; "" where nothing does.
      top_RBTK: The likeliest tokens after each loop, as text.
      probability_RBTK: Their probabilities.
      target_probability_RBT: The probability of what comes next; NaN where nothing does.
    """
    snippets = Snippets.choose(
      self.subject, count=self.num_snippets, length_tokens=self.snippet_tokens
    )
    top_RBTK, probability_RBTK, target_RBT = self._look(
      params, snippets.tokens_BT, snippets.targets_BT, snippets.length_B
    )
    spell = self._spell
    none_BT = snippets.targets_BT == self.subject.vocabulary.pad_id
    return {
      "token_BT": spell(snippets.tokens_BT),
      "target_BT": spell(snippets.targets_BT),
      "top_RBTK": spell(np.asarray(top_RBTK)),
      "probability_RBTK": np.asarray(probability_RBTK, np.float32),
      "target_probability_RBT": np.where(none_BT, np.nan, np.asarray(target_RBT, np.float32)),
    }

  @functools.cached_property
  def _look(self):
    model = self.subject.model

    def look(params: Params, tokens_BT: jax.Array, targets_BT: jax.Array, length_B: jax.Array):
      inputs = causal(tokens_BT, length_B)
      states_RBTD = model.encode(params, inputs, keep_states=True).states_RBTD

      def read(h_BTD: jax.Array):
        hidden_BTD = model.finish(params, h_BTD, inputs)
        p_BTV = jax.nn.softmax(model.readout(params, hidden_BTD, inputs.row_B), axis=-1)
        target_BT = jnp.take_along_axis(p_BTV, targets_BT[..., None], axis=-1)[..., 0]
        probability_BTK, top_BTK = jax.lax.top_k(p_BTV, self.top)
        return top_BTK, probability_BTK, target_BT

      return jax.lax.map(read, states_RBTD)

    return jax.jit(look)

  def _spell(self, ids: np.ndarray) -> np.ndarray:
    pad_id, tokenizer = self.subject.vocabulary.pad_id, self.subject.tokenizer
    texts = ["" if id == pad_id else tokenizer.spell(int(id)) for id in ids.ravel()]
    return np.array(texts, np.str_).reshape(ids.shape)
