"""Looped language models in PyTorch: embed, prelude, shared core R times, coda, read out.

Written by looped_lm's export; needs torch and transformers alone. The logits at a position are
those of the *next* token, for the masked model too (masked next-token prediction): to read what
stands behind a `<mask>`, look one position to its left.
"""

import torch
from torch import nn
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import (
  BaseModelOutput,
  CausalLMOutput,
  MaskedLMOutput,
  SequenceClassifierOutput,
)

from .configuration_looped_lm import LoopedLMConfig
from .layers_looped_lm import LAYERS, BucketVectors, Context, Linear, Norm, layer_norm, widen
from .loops_looped_lm import INJECTIONS, Recurrence, sinusoid


class Embed(nn.Module):
  """LN(scale · E[token] P + position); every part but E may be off."""

  def __init__(self, config):
    super().__init__()
    s, width = config.embed, config.hidden_size
    self.s = s
    self.width = width
    self.tokens = nn.Embedding(config.vocab_size, s["factor_dim"] or width)
    if s["factor_dim"]:
      self.projection = Linear(s["factor_dim"], width, bias=False)
    if s["positions"] == "learned":
      self.positions = nn.Embedding(s["max_positions"], width)

  def forward(self, tokens, position):
    x = self.tokens(tokens)
    if self.s["factor_dim"]:
      x = self.projection(x)
    x = self.s["scale"] * widen(x)
    if self.s["positions"] == "learned":
      if tokens.shape[1] > self.s["max_positions"]:
        raise ValueError(
          f"Rows of {tokens.shape[1]} tokens are longer than the {self.s['max_positions']} learned "
          "positions; truncate them."
        )
      x = x + widen(self.positions(position))
    elif self.s["positions"] == "sinusoidal":
      x = x + sinusoid(position, self.width)
    if self.s["norm"]:
      x = layer_norm(x, self.s["norm_eps"])
    return F.dropout(x, self.s["dropout_rate"], self.training)

  def to_table(self, x):
    """From the model's width to the table's, for a tied read-out."""
    if not self.s["factor_dim"]:
      return x
    return x.to(self.projection.weight.dtype) @ self.projection.weight


class Head(nn.Module):
  """From hidden states to logits; `decoder` holds the token table itself where it is tied."""

  def __init__(self, config):
    super().__init__()
    s, width = config.head, config.hidden_size
    self.s = s
    self.is_transform = s["name"] == "transform"
    self.tied = self.is_transform or s["tied"]
    inner = config.embed["factor_dim"] if self.tied else s["factor_dim"]
    if self.is_transform:
      self.transform = Linear(width, width)
    elif not self.tied and s["factor_dim"]:
      self.down = Linear(width, s["factor_dim"], bias=False)
    self.decoder = Linear(inner or width, config.vocab_size, bias=self.is_transform)

  def forward(self, x, embed):
    if self.is_transform:
      x = layer_norm(x, self.s["norm_eps"])
      x = layer_norm(F.gelu(self.transform(x)), self.s["norm_eps"])
    x = F.dropout(x, self.s["dropout_rate"], self.training)
    if self.tied:
      x = embed.to_table(x)
    elif self.s["factor_dim"]:
      x = self.down(x)
    logits = widen(self.decoder(x))
    if self.is_transform:
      return logits
    logits = self.s["logit_scale"] * logits
    cap = self.s["softcap"]
    return cap * torch.tanh(logits / cap) if cap else logits


class LoopedLMPreTrainedModel(PreTrainedModel):
  """What all classes share."""

  config_class = LoopedLMConfig
  base_model_prefix = "model"
  _no_split_modules = [layer.__name__ for layer in LAYERS.values()]

  def _init_weights(self, module):
    # The other parameters have their starting values from their constructors.
    if isinstance(module, nn.Linear | nn.Embedding):
      nn.init.normal_(module.weight, std=self.config.initializer_range)
      if getattr(module, "bias", None) is not None:
        nn.init.zeros_(module.bias)


class LoopedLMModel(LoopedLMPreTrainedModel):
  """Tokens to hidden states; bidirectional or causal as `config.causal` says."""

  def __init__(self, config):
    super().__init__(config)
    _check_loops(config.num_loops)
    self.embed = Embed(config)
    self.shared = nn.ModuleDict()
    if config.block["name"] == "gpt_bert":
      self.shared["positions"] = BucketVectors(config.hidden_size, config.block)
    first = config.prelude_layers + config.core_layers
    core = {**config.block, **config.core_block}
    self.prelude = self._stack(config, config.block, config.prelude_layers, 0)
    self.core = self._stack(config, core, config.core_layers, config.prelude_layers, in_loop=True)
    self.coda = self._stack(config, config.block, config.coda_layers, first)
    self.injection = INJECTIONS[config.injection["name"]](config, config.injection)
    self.recurrence = Recurrence(config, config.recurrence)
    self.exit_gate = Linear(config.hidden_size, 1) if config.exit_gate else None
    self.norm_head = None
    if config.head["name"] == "linear" and config.head["norm"] != "none":
      s = config.head
      self.norm_head = Norm(config.hidden_size, s["norm"], s["norm_eps"], bias=s["norm_bias"])
    self.post_init()

  @staticmethod
  def _stack(config, settings, num_layers, first, in_loop=False):
    layer = LAYERS[config.block["name"]]
    return nn.ModuleList(
      layer(config, settings, first + index, index, in_loop) for index in range(num_layers)
    )

  def get_input_embeddings(self):
    return self.embed.tokens

  def set_input_embeddings(self, value):
    self.embed.tokens = value

  def forward(
    self,
    input_ids,
    attention_mask=None,
    num_loops=None,
    causal=None,
    output_hidden_states=None,
    return_dict=None,
  ):
    """Reads texts.

    Args:
      input_ids: [B, T].
      attention_mask: [B, T], 1 for text and 0 for padding, on either side; or [B, T, S], 1 where
        the query may see the key.
      num_loops: How often the core is applied; by default as the configuration says.
      causal: Whether later tokens are hidden; by default as the configuration says.
      output_hidden_states: Also return the prelude's output and the state after every loop.
      return_dict: False returns a tuple.

    Returns:
      `last_hidden_state` [B, T, D], normed where the read-out has a learned norm, and perhaps
      `hidden_states`: the prelude's output, the state after every loop, the last hidden state.
    """
    config = self.config
    causal = config.causal if causal is None else causal
    num_loops = config.num_loops if num_loops is None else num_loops
    if output_hidden_states is None:
      output_hidden_states = config.output_hidden_states
    _check_loops(num_loops)
    see, position = who_sees_whom(input_ids, attention_mask, causal)
    shared = self.shared["positions"]() if "positions" in self.shared else None
    context = Context(see, input_ids, position, shared)

    e = self.embed(input_ids, position)
    e = self._run(self.prelude, e, context, self._prepare(self.prelude, context))
    e = self.recurrence.begin(e)
    h, anchor = self.injection.start(e), self.injection.prepare(e)
    prepared = self._prepare(self.core, context)
    states = [e]
    for loop in range(num_loops):
      x = self.recurrence.enter(self.injection.enter(h, anchor, loop), loop)
      out = self._run(self.core, x, context, prepared, loop)
      h = self.recurrence.update(h, self.injection.update(h, anchor, out, loop), loop)
      states.append(self.injection.leave(h) if output_hidden_states else None)

    x = self.injection.leave(h)
    if config.recurrence["exit_norm"] == "head":
      x = self.norm_head(x)
    x = self._run(self.coda, self.recurrence.leave(x), context, self._prepare(self.coda, context))
    if self.norm_head is not None:
      x = self.norm_head(x)
    output = BaseModelOutput(
      last_hidden_state=x, hidden_states=(*states, x) if output_hidden_states else None
    )
    return output if _as_dict(return_dict, config) else output.to_tuple()

  def exit_probability(self, state):
    """How likely it is that a state is the last, by the learned gate: [B, T].

    Args:
      state: One of the states in `hidden_states`.
    """
    if self.exit_gate is None:
      raise ValueError("This model has no exit gate.")
    return widen(self.exit_gate(state))[..., 0].sigmoid()

  @staticmethod
  def _prepare(layers, context):
    return [layer.prepare(context) for layer in layers]

  @staticmethod
  def _run(layers, x, context, prepared, loop=0):
    history = ()
    for layer, own in zip(layers, prepared, strict=True):
      x, history = layer(x, history, context, own, loop)
    return x


def who_sees_whom(input_ids, attention_mask, causal):
  """Visibility [B or 1, 1, T, S] and positions [B or 1, T].

  Nothing sees padding. Positions count from a row's first token, so that padding on the left moves
  no text.
  """
  length, device = input_ids.shape[1], input_ids.device
  index = torch.arange(length, device=device)
  see = torch.ones(1, length, length, dtype=torch.bool, device=device)
  if causal:
    see = see.tril()
  position = index[None]
  if attention_mask is not None and attention_mask.dim() == 2:
    is_text = attention_mask.bool()
    see = see & is_text[:, None, :]
    position = (index - is_text.long().argmax(-1, keepdim=True)).clamp(min=0)
  elif attention_mask is not None:
    see = see & attention_mask.reshape(-1, length, length).bool()
  return see[:, None], position


def _check_loops(num_loops):
  if num_loops < 1:
    raise ValueError(f"num_loops={num_loops} must be at least 1.")


def _as_dict(return_dict, config):
  return config.return_dict if return_dict is None else return_dict


def _next_token_loss(logits, labels):
  """Mean nats of labels[t + 1] at position t; labels of -100 do not count."""
  if labels is None:
    return None
  logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
  return F.cross_entropy(logits, labels.to(logits.device), ignore_index=-100)


class _WithHead(LoopedLMPreTrainedModel):
  """The model and its read-out."""

  _tied_weights_keys = {"head.decoder.weight": "model.embed.tokens.weight"}

  def __init__(self, config):
    super().__init__(config)
    self.model = LoopedLMModel(config)
    self.head = Head(config)
    self.post_init()

  def get_input_embeddings(self):
    return self.model.embed.tokens

  def set_input_embeddings(self, value):
    self.model.embed.tokens = value

  def get_output_embeddings(self):
    return self.head.decoder

  def set_output_embeddings(self, value):
    self.head.decoder = value

  def _read(self, output_class, labels, return_dict, **inputs):
    read = self.model(**inputs, return_dict=True)
    logits = self.head(read.last_hidden_state, self.model.embed)
    output = output_class(
      loss=_next_token_loss(logits, labels), logits=logits, hidden_states=read.hidden_states
    )
    return output if _as_dict(return_dict, self.config) else output.to_tuple()


class LoopedLMForCausalLM(_WithHead, GenerationMixin):
  """Left to right: no token sees a later one."""

  def forward(
    self,
    input_ids,
    attention_mask=None,
    labels=None,
    num_loops=None,
    output_hidden_states=None,
    return_dict=None,
  ):
    """Logits of the next token; `labels` are the tokens themselves, shifted here."""
    return self._read(
      CausalLMOutput,
      labels,
      return_dict,
      input_ids=input_ids,
      attention_mask=attention_mask,
      num_loops=num_loops,
      causal=True,
      output_hidden_states=output_hidden_states,
    )

  def prepare_inputs_for_generation(self, input_ids, attention_mask=None, num_loops=None, **_):
    """The whole text every time: there is no cache."""
    return {"input_ids": input_ids, "attention_mask": attention_mask, "num_loops": num_loops}


class LoopedLMForMaskedLM(_WithHead):
  """Both ways: every token sees all others, `<mask>` hides some, and t tells t + 1."""

  def forward(
    self,
    input_ids,
    attention_mask=None,
    labels=None,
    num_loops=None,
    output_hidden_states=None,
    return_dict=None,
  ):
    """Logits of the next token; `labels[t]` is the token hidden at t (or -100), shifted here."""
    return self._read(
      MaskedLMOutput,
      labels,
      return_dict,
      input_ids=input_ids,
      attention_mask=attention_mask,
      num_loops=num_loops,
      causal=False,
      output_hidden_states=output_hidden_states,
    )


class LoopedLMForSequenceClassification(LoopedLMPreTrainedModel):
  """Classes from one token's state: the last of the text if causal, else the first."""

  def __init__(self, config):
    super().__init__(config)
    self.num_labels = config.num_labels
    self.model = LoopedLMModel(config)
    self.dense = Linear(config.hidden_size, config.hidden_size)
    self.classifier = Linear(config.hidden_size, config.num_labels)
    self.post_init()

  def get_input_embeddings(self):
    return self.model.embed.tokens

  def set_input_embeddings(self, value):
    self.model.embed.tokens = value

  def forward(
    self,
    input_ids,
    attention_mask=None,
    labels=None,
    num_loops=None,
    output_hidden_states=None,
    return_dict=None,
  ):
    """Logits [B, classes]; the kind of loss is `config.problem_type`, or told by the labels."""
    read = self.model(
      input_ids,
      attention_mask,
      num_loops=num_loops,
      output_hidden_states=output_hidden_states,
      return_dict=True,
    )
    x = read.last_hidden_state
    x = x[torch.arange(x.shape[0], device=x.device), self._place(input_ids, attention_mask)]
    x = layer_norm(F.gelu(self.dense(layer_norm(x, 1e-5))), 1e-5)
    logits = widen(self.classifier(F.dropout(x, self.config.classifier_dropout, self.training)))
    output = SequenceClassifierOutput(
      loss=self._loss(logits, labels), logits=logits, hidden_states=read.hidden_states
    )
    return output if _as_dict(return_dict, self.config) else output.to_tuple()

  def _place(self, input_ids, attention_mask):
    """Index of the token that is read, per row."""
    is_text = torch.ones_like(input_ids)
    if attention_mask is not None and attention_mask.dim() == 2:
      is_text = attention_mask.long()
    if not self.config.causal:
      return is_text.argmax(-1)
    return input_ids.shape[1] - 1 - is_text.flip(-1).argmax(-1)

  def _loss(self, logits, labels):
    if labels is None:
      return None
    kind = self.config.problem_type
    if kind is None:
      whole = labels.dtype in (torch.long, torch.int)
      kind = "single_label_classification" if whole else "multi_label_classification"
      kind = "regression" if self.num_labels == 1 else kind
    if kind == "regression":
      return F.mse_loss(logits.squeeze(), labels.squeeze().to(logits.dtype))
    if kind == "single_label_classification":
      return F.cross_entropy(logits, labels.view(-1))
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


# So that save_pretrained copies this code beside the weights, whatever the version.
LoopedLMConfig.register_for_auto_class("AutoConfig")
LoopedLMModel.register_for_auto_class("AutoModel")
LoopedLMForCausalLM.register_for_auto_class("AutoModelForCausalLM")
LoopedLMForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
LoopedLMForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
