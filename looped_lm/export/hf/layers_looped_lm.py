"""Norms, products, attention and the three kinds of layer, as the training program computes them.

Norms, softmax, residual stream and logits are in at least float32, whatever the weights are in.
Shapes: B rows, T queries, S keys, D width, N heads, K key/value heads, H one head, P buckets.
"""

import math

import torch
from torch import nn
import torch.nn.functional as F

VALUE_GATE_INPUTS = 32


def widen(x):
  """To float32, unless it is wider."""
  return x if x.dtype == torch.float64 else x.float()


def layer_norm(x, eps):
  """(x - mean) / sqrt(var + eps), without parameters."""
  x = widen(x)
  x = x - x.mean(-1, keepdim=True)
  return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rms_norm(x, eps):
  """x / sqrt(mean(x²) + eps), without parameters."""
  x = widen(x)
  return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def of_loop(table, loop):
  """A per-loop table's entry; loops beyond its end use the last one."""
  return table[min(loop, table.shape[0] - 1)]


class Linear(nn.Linear):
  """x Wᵀ + b in the dtype of W."""

  def forward(self, x):
    return super().forward(x.to(self.weight.dtype))


class Norm(nn.Module):
  """A norm with a scale, perhaps a bias, perhaps one of each per loop."""

  def __init__(self, width, kind, eps, bias=False, num_loops=0):
    super().__init__()
    shape = (num_loops, width) if num_loops else (width,)
    self.function = {"rms": rms_norm, "layer": layer_norm}[kind]
    self.eps = eps
    self.weight = nn.Parameter(torch.ones(shape))
    self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

  def forward(self, x, loop=0):
    def own(table):
      return widen(table if table.dim() == 1 else of_loop(table, loop))

    y = self.function(x, self.eps) * own(self.weight)
    return y if self.bias is None else y + own(self.bias)


class Context:
  """What all layers of one forward pass share.

  Attributes:
    see: [B or 1, 1, T, S]: True where the query may see the key.
    tokens: [B, T].
    position: [B or 1, T]: of each token in its text.
    shared: [P, D], the bucket vectors of GPT-BERT, or None.
  """

  def __init__(self, see, tokens, position, shared):
    self.see = see
    self.tokens = tokens
    self.position = position
    self.shared = shared
    self._made = {}

  def once(self, what, *arguments):
    """The value of a function of this context and the arguments, computed only once."""
    key = (what.__name__, *arguments)
    if key not in self._made:
      self._made[key] = what(self, *arguments)
    return self._made[key]


def buckets(context, num_buckets, max_distance):
  """The row of the bucket table for each pair of positions: [1, 1, T, S].

  With r = query - key and mid = num_buckets // 2: |r| <= mid has a bucket of its own, farther ones
  share buckets that grow logarithmically, and from max_distance - 1 on all share the last one.
  """
  length, mid = context.tokens.shape[1], num_buckets // 2

  def bucket(distance):
    if distance <= mid:
      return distance
    far = math.log(min(distance, max_distance - 1) / mid) / math.log((max_distance - 1) / mid)
    return mid + math.ceil(far * (mid - 1))

  table = torch.tensor([bucket(r) for r in range(length)], device=context.tokens.device)
  index = torch.arange(length, device=context.tokens.device)
  r = index[:, None] - index[None, :]
  return (num_buckets - 1 + r.sign() * table[r.abs()])[None, None]


def rotations(context, head_dim, theta):
  """Cosines and sines of the rotary angles: [B or 1, T, 1, H / 2]."""
  # In float64, and so on the CPU: some devices have none.
  rate = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
  angle = context.position.cpu().double()[:, :, None, None] * rate
  return tuple(part.float().to(context.tokens.device) for part in (angle.cos(), angle.sin()))


def rotate(x, cosine, sine):
  """Turns the pairs of channels (2 i, 2 i + 1) of [B, T, N, H]."""
  x = widen(x)
  even, odd = x[..., 0::2], x[..., 1::2]
  return torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1).flatten(-2)


def attend(q, k, v, see, scale, bias=None, dropout=0.0):
  """softmax(scale · (q kᵀ + bias)) v; who sees nothing gets zeros."""
  score = widen(torch.einsum("btnh,bsnh->bnts", q, k))
  if bias is not None:
    score = score + bias
  score = (score * scale).masked_fill(~see, torch.finfo(score.dtype).min)
  p = score.softmax(-1).masked_fill(~see, 0.0)
  return torch.einsum("bnts,bsnh->btnh", F.dropout(p, dropout).to(v.dtype), v)


# ---- GPT-BERT


class BucketVectors(nn.Module):
  """What all layers share: the normalised vectors of the relative distances, [P, D]."""

  def __init__(self, width, settings):
    super().__init__()
    self.embedding = nn.Parameter(torch.zeros(2 * settings["num_buckets"] - 1, width))
    self.norm = Norm(width, "layer", settings["norm_eps"], bias=True)

  def forward(self):
    return self.norm(self.embedding)


class Mix(nn.Module):
  """Depth-weighted average: Σ_m α_m X_m over everything the stream has been."""

  def __init__(self, length):
    super().__init__()
    self.alpha = nn.Parameter(torch.zeros(length))
    with torch.no_grad():
      self.alpha[-1] = 1.0

  def forward(self, history):
    return sum(weight * x for weight, x in zip(widen(self.alpha), history, strict=True))


class GatedMlp(nn.Module):
  """LN(a · GELU_tanh(b)) W₂ with [a | b] = x W₁."""

  def __init__(self, width, inner, eps):
    super().__init__()
    self.up = Linear(width, 2 * inner, bias=False)
    self.down = Linear(inner, width, bias=False)
    self.eps = eps

  def forward(self, x):
    value, gate = self.up(x).chunk(2, dim=-1)
    return self.down(layer_norm(value * F.gelu(gate, approximate="tanh"), self.eps))


class GptBertLayer(nn.Module):
  """Gated attention with disentangled positions, then a gated feed-forward; each mixed by depth."""

  def __init__(self, config, settings, layer_index, stack_index, num_loops):
    super().__init__()
    width = config.hidden_size
    self.s = settings
    self.qk = Linear(width, 2 * width)
    self.vg = Linear(width, 2 * width)
    self.out = Linear(width, width)
    self.mlp = GatedMlp(width, settings["mlp_dim"], settings["norm_eps"])
    before = 2 * stack_index if settings["dwa_scope"] == "stack" else 0
    self.mix_attention = Mix(before + 2)
    self.mix_mlp = Mix(before + 3)

  def prepare(self, context):
    """The bucket vectors through this layer's projection; the same in every loop."""
    q, k = self.qk(self._drop(context.shared, "attention")).chunk(2, dim=-1)
    return self._heads(q), self._heads(k)

  def forward(self, x, history, context, prepared, loop):
    if self.s["dwa_scope"] == "layer" or not history:
      history = (x,)
    history += (x + widen(self._attend(x, context, prepared)),)
    x = self.mix_attention(history)
    y = self._drop(self.mlp(layer_norm(x, self.s["norm_eps"])), "hidden")
    history += (x + widen(y),)
    return self.mix_mlp(history), history

  def _attend(self, x, context, prepared):
    u = layer_norm(x, self.s["norm_eps"])
    q, k = map(self._heads, self.qk(u).chunk(2, dim=-1))
    v, gate = self.vg(u).chunk(2, dim=-1)
    index = context.once(buckets, self.s["num_buckets"], self.s["max_distance"])
    index = index.expand(*q.shape[::2], -1, -1)  # B, N
    position_q, position_k = prepared
    to_key = torch.einsum("btnh,pnh->bntp", q, position_k).gather(-1, index)
    to_query = torch.einsum("bsnh,pnh->bnsp", k, position_q).gather(-1, index.transpose(-1, -2))
    c = attend(
      q,
      k,
      self._heads(v),
      context.see,
      scale=1 / math.sqrt(3 * q.shape[-1]),
      bias=widen(to_key) + widen(to_query.transpose(-1, -2)),
      dropout=self.s["attention_dropout_rate"] if self.training else 0.0,
    )
    c = c.flatten(-2) * F.gelu(gate)
    return self._drop(self.out(layer_norm(c, self.s["norm_eps"])), "attention")

  def _heads(self, x):
    return x.unflatten(-1, (self.s["num_heads"], -1))

  def _drop(self, x, which):
    return F.dropout(x, self.s[f"{which}_dropout_rate"], self.training)


# ---- Pre-norm and sandwich


class ValueEmbedding(nn.Module):
  """A value vector per token, behind a gate per key/value head: 2 σ(u[:32] G) · E[token]."""

  def __init__(self, vocab_size, kv_heads, head_dim):
    super().__init__()
    self.tokens = nn.Embedding(vocab_size, kv_heads * head_dim)
    self.gate = Linear(VALUE_GATE_INPUTS, kv_heads, bias=False)

  def forward(self, u, rows):
    gate = 2 * widen(self.gate(widen(u)[..., :VALUE_GATE_INPUTS])).sigmoid()
    return gate[..., None] * widen(rows).unflatten(-1, (gate.shape[-1], -1))


class Attention(nn.Module):
  """Projections, positions, attention, projection back."""

  def __init__(self, width, settings):
    super().__init__()
    self.s = settings
    self.head_dim = width // settings["num_heads"]
    kv_width = settings["num_kv_heads"] * self.head_dim
    qk_bias = settings["use_bias"] or settings["qk_bias"]
    self.query = Linear(width, width, bias=qk_bias)
    self.key = Linear(width, kv_width, bias=qk_bias)
    self.value = Linear(width, kv_width, bias=settings["use_bias"])
    self.out = Linear(width, width, bias=settings["use_bias"])

  def forward(self, u, extra, context):
    q = self._place(self.query(u), context)
    k = self._place(self.key(u), context)
    v = self.value(u).unflatten(-1, (-1, self.head_dim))
    if extra is not None:
      v = (widen(v) + extra).to(v.dtype)
    repeats = q.shape[2] // k.shape[2]
    rate = self.s["attention_dropout_rate"]
    c = attend(
      q,
      k.repeat_interleave(repeats, dim=2),
      v.repeat_interleave(repeats, dim=2),
      context.see,
      scale=1 / math.sqrt(self.head_dim),
      dropout=rate if self.training else 0.0,
    )
    return F.dropout(self.out(c.flatten(-2)), rate, self.training)

  def _place(self, x, context):
    y = x.unflatten(-1, (-1, self.head_dim))
    if self.s["positions"] == "rotary":
      y = rotate(y, *context.once(rotations, self.head_dim, self.s["rope_theta"]))
    if self.s["qk_norm"]:
      y = rms_norm(y, torch.finfo(widen(y).dtype).eps)
    return y.to(x.dtype)


class Mlp(nn.Module):
  """f(x W₁) W₂, or (f(a) · b) W₂ with [a | b] = x W₁ where gated."""

  # Name -> (f, whether it is gated).
  ACTIVATIONS = {
    "relu2": (lambda x: 0.5 * x.relu().square(), False),
    "gelu": (F.gelu, False),
    "swiglu": (F.silu, True),
    "geglu": (F.gelu, True),
  }

  def __init__(self, width, inner, activation, bias):
    super().__init__()
    self.activate, self.gated = self.ACTIVATIONS[activation]
    self.up = Linear(width, 2 * inner if self.gated else inner, bias=bias)
    self.down = Linear(inner, width, bias=bias)

  def forward(self, x):
    y = self.up(x)
    if not self.gated:
      return self.down(self.activate(y))
    value, factor = y.chunk(2, dim=-1)
    return self.down(self.activate(value) * factor)


class PreNormLayer(nn.Module):
  """x + attention(N₁ x), then x + feed-forward(N₂ x)."""

  def __init__(self, config, settings, layer_index, stack_index, num_loops):
    super().__init__()
    width = config.hidden_size
    self.s = settings
    self.num_loops = settings["num_loop_norms"] if num_loops else 0
    self.norm_attention = self.make_norm(width)
    self.attend = Attention(width, settings)
    self.norm_mlp = self.make_norm(width)
    self.feed = Mlp(width, settings["mlp_dim"], settings["mlp"], settings["use_bias"])
    self.value_embedding = None
    if layer_index in settings["value_layers"]:
      kv_heads, head_dim = settings["num_kv_heads"], width // settings["num_heads"]
      self.value_embedding = ValueEmbedding(config.vocab_size, kv_heads, head_dim)

  def make_norm(self, width):
    s = self.s
    return Norm(width, s["norm"], s["norm_eps"], bias=s["norm_bias"], num_loops=self.num_loops)

  def prepare(self, context):
    """The tokens' value vectors; the same in every loop."""
    return None if self.value_embedding is None else self.value_embedding.tokens(context.tokens)

  def forward(self, x, history, context, prepared, loop):
    x = x + self.attention_out(self.norm_attention(x, loop), context, prepared)
    x = x + self.mlp_out(self.norm_mlp(x, loop))
    return x, history

  def attention_out(self, u, context, prepared):
    extra = None if prepared is None else self.value_embedding(u, prepared)
    return widen(self.attend(u, extra, context))

  def mlp_out(self, u):
    return widen(F.dropout(self.feed(u), self.s["hidden_dropout_rate"], self.training))


class SandwichLayer(PreNormLayer):
  """x = N₂(x + attention(N₁ x)), then x = N₄(x + feed-forward(N₃ x))."""

  def __init__(self, config, settings, layer_index, stack_index, num_loops):
    super().__init__(config, settings, layer_index, stack_index, num_loops)
    self.norm_after_attention = self.make_norm(config.hidden_size)
    self.norm_after_mlp = self.make_norm(config.hidden_size)

  def forward(self, x, history, context, prepared, loop):
    y = self.attention_out(self.norm_attention(x, loop), context, prepared)
    x = self.norm_after_attention(x + y, loop)
    y = self.mlp_out(self.norm_mlp(x, loop))
    return self.norm_after_mlp(x + y, loop), history


LAYERS = {"gpt_bert": GptBertLayer, "pre_norm": PreNormLayer, "sandwich": SandwichLayer}
