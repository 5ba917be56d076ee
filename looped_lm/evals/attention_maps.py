"""Attention maps by loop: where each layer looks, as the forward pass computed it."""

from collections.abc import Mapping
import dataclasses
import functools

import jax
import numpy as np

from looped_lm.evals.snippets import Snippets, causal
from looped_lm.nn import watch
from looped_lm.types import Params, Subject


@dataclasses.dataclass(kw_only=True, eq=False)
class Evaluator:
  """Attention probabilities of one snippet of held-out text read from left to right.

  Attributes:
    subject: The model and the held-out rows.
    snippet_tokens: Positions of the snippet, `<s>` included.
  """

  subject: Subject
  snippet_tokens: int = 16

  def views(self, params: Params) -> Mapping[str, np.ndarray]:
    """Looks.

    Args:
      params: This process's own; see `Strategy.one_copy`.

    Returns:
      token_T: What is read, as text.
      core_layer_<l>_RTS: Of each layer of the core: the mean over its heads after every loop; a row
        is a query and sums to 1. l is the layer's physical index.
      prelude_layer_<l>_TS, coda_layer_<l>_TS: Of the layers outside the loop.
      A pattern of attention that never forms its probabilities gives no maps.
    """
    snippets = Snippets.choose(self.subject, count=1, length_tokens=self.snippet_tokens)
    length = int(snippets.length_B[0])
    spelled = [self.subject.tokenizer.spell(int(id)) for id in snippets.tokens_BT[0, :length]]
    maps = {
      name: np.asarray(map_, np.float32)[..., :length, :length]
      for name, map_ in self._look(params, snippets.tokens_BT, snippets.length_B).items()
    }
    return {"token_T": np.array(spelled, np.str_), **maps}

  @functools.cached_property
  def _look(self):
    def look(params: Params, tokens_BT: jax.Array, length_B: jax.Array) -> dict[str, jax.Array]:
      inputs = causal(tokens_BT, length_B)
      letters = {watch.ATTENTION: "RTS", watch.ATTENTION_OUTSIDE: "TS"}
      output = self.subject.model.encode(params, inputs, watch=tuple(letters))
      assert output.watched is not None
      maps = {}
      for collection, axes in letters.items():
        for path, p_BNTS in output.watched[collection].items():
          # "core/layers_0/attend/layer_2": the stack and the layer's physical index.
          stack, layer = path.split("/", 1)[0], path.rpartition("/")[2]
          maps[f"{stack}_{layer}_{axes}"] = p_BNTS[..., 0, :, :, :].mean(axis=-3)
      return maps

    return jax.jit(look)
