"""The configuration of a looped language model: everything that decides its numbers."""

from transformers import PretrainedConfig


class LoopedLMConfig(PretrainedConfig):
  """Embed, prelude once, shared core `num_loops` times, coda once, read out.

  The groups `block`, `core_block`, `injection`, `recurrence`, `attention`, `embed` and `head` are
  dicts of settings, named as in the training program. Nothing has a default that an exported folder
  leaves out.

  Attributes:
    vocab_size: V.
    hidden_size: D.
    prelude_layers: Layers before the loop.
    core_layers: Layers of the shared core.
    coda_layers: Layers after the loop.
    num_loops: How often the core is applied. Any number from 1 on works, whatever was trained:
      `from_pretrained(folder, num_loops=24)`, or `model(ids, num_loops=24)` for one call.
    block: The layers. `name` is "gpt_bert", "pre_norm" or "sandwich".
    core_block: Settings in which the core's layers differ.
    injection: How the prelude's output enters a loop, by `name`.
    recurrence: What surrounds the core in every loop; its `num_loops` is the length of the per-loop
      tables, and deeper loops use their last entries.
    attention: Which pairs are computed; "dense", all of them.
    embed: Token embeddings.
    head: The read-out. `name` is "transform" or "linear".
    exit_gate: Whether a learned gate says how likely a state is to be the last; see
      `LoopedLMModel.exit_probability`. All loops run all the same.
    causal: Whether the bare model and the sequence classifier let a token see the later ones
      (False) or not (True). `ForCausalLM` never does and `ForMaskedLM` always does.
    trained_length: Tokens of a training row; a hint.
    max_position_embeddings: The longest row where positions are learned; else only a hint.
    classifier_dropout: In the sequence classifier.
    initializer_range: Standard deviation of new weights, such as a classifier's.
  """

  model_type = "looped_lm"

  def __init__(
    self,
    vocab_size=None,
    hidden_size=None,
    prelude_layers=None,
    core_layers=None,
    coda_layers=None,
    num_loops=None,
    block=None,
    core_block=None,
    injection=None,
    recurrence=None,
    attention=None,
    embed=None,
    head=None,
    exit_gate=None,
    causal=None,
    trained_length=None,
    max_position_embeddings=None,
    classifier_dropout=0.1,
    initializer_range=0.02,
    **kwargs,
  ):
    self.vocab_size = vocab_size
    self.hidden_size = hidden_size
    self.prelude_layers = prelude_layers
    self.core_layers = core_layers
    self.coda_layers = coda_layers
    self.num_loops = num_loops
    self.block = dict(block or {})
    self.core_block = dict(core_block or {})
    self.injection = dict(injection or {})
    self.recurrence = dict(recurrence or {})
    self.attention = dict(attention or {})
    self.embed = dict(embed or {})
    self.head = dict(head or {})
    self.exit_gate = exit_gate
    self.causal = causal
    self.trained_length = trained_length
    self.max_position_embeddings = max_position_embeddings
    self.classifier_dropout = classifier_dropout
    self.initializer_range = initializer_range
    # Under the names that other programs look for.
    self.num_hidden_layers = sum(n or 0 for n in (prelude_layers, core_layers, coda_layers))
    self.num_attention_heads = self.block.get("num_heads")
    self.intermediate_size = self.block.get("mlp_dim")
    for derived in ("num_hidden_layers", "num_attention_heads", "intermediate_size"):
      kwargs.pop(derived, None)
    # There is no cache of keys and values: `generate` reads the whole text for every token.
    self.use_cache = False
    kwargs.pop("use_cache", None)
    super().__init__(**kwargs)
