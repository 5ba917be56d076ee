"""Looped GPT-BERT in plain PyTorch: what `train_step.py` is timed against.

The same mathematics as `configs/looped_gpt_bert.py` and its relatives, written as public PyTorch
code for these models is: relative positions gathered to [T, T, 2D], projected in every layer of
every loop and multiplied pair by pair; a visibility mask; the head on the supervised tokens alone;
LAMB as a loop over the parameters; no rematerialisation. Parameters come from ours, so that losses
can be compared.
"""

import math

import torch
from torch import nn
import torch.nn.functional as F


def layer_norm(x, eps):
  return F.layer_norm(x, x.shape[-1:], eps=eps)


def linear(tree):
  """A torch layer from {"kernel", "bias"}."""
  kernel = torch.tensor(tree["kernel"])
  layer = nn.Linear(*kernel.shape, bias="bias" in tree)
  with torch.no_grad():
    layer.weight.copy_(kernel.T)
    if "bias" in tree:
      layer.bias.copy_(torch.tensor(tree["bias"]))
  return layer


class Layer(nn.Module):
  """Gated attention and feed-forward, each mixed with what came before."""

  def __init__(self, tree, settings):
    super().__init__()
    self.qk, self.vg, self.out = (linear(tree[name]) for name in ("qk", "vg", "out"))
    self.up, self.down = linear(tree["mlp"]["up"]), linear(tree["mlp"]["down"])
    self.mix_attention = nn.Parameter(torch.tensor(tree["mix_attention"]["alpha"]))
    self.mix_mlp = nn.Parameter(torch.tensor(tree["mix_mlp"]["alpha"]))
    self.heads, self.eps = settings["num_heads"], settings["norm_eps"]
    self.attention_dropout = settings["attention_dropout_rate"]
    self.hidden_dropout = settings["hidden_dropout_rate"]
    self.whole_stack = settings["dwa_scope"] == "stack"

  def forward(self, x, history, relative, see):
    if not self.whole_stack or not history:
      history = [x]
    history = [*history, x + self.attend(x, relative, see)]
    x = sum(a * h for a, h in zip(self.mix_attention, history, strict=True))
    value, gate = self.up(layer_norm(x, self.eps)).chunk(2, dim=-1)
    y = self.down(layer_norm(value * F.gelu(gate, approximate="tanh"), self.eps))
    history = [*history, x + F.dropout(y, self.hidden_dropout, self.training)]
    return sum(a * h for a, h in zip(self.mix_mlp, history, strict=True)), history

  def attend(self, x, relative, see):
    batch, length, width = x.shape
    head = width // self.heads
    scale = 1 / math.sqrt(3 * head)
    u = layer_norm(x, self.eps)
    q, k = self.qk(u).chunk(2, dim=-1)
    v, gate = self.vg(u).chunk(2, dim=-1)
    q, k, v = (y.view(batch, length, self.heads, head).transpose(1, 2) for y in (q, k, v))
    # [T, T, 2D]: one projected vector per pair, by the layer's own weights.
    pairs = F.dropout(self.qk(relative), self.attention_dropout, self.training)
    pair_q, pair_k = pairs.view(length, length, 2, self.heads, head).unbind(2)
    score = torch.matmul(q, k.transpose(2, 3))
    score = score + torch.einsum("bhqd,qkhd->bhqk", q, pair_k)
    score = (score + torch.einsum("bhkd,qkhd->bhqk", k, pair_q)) * scale
    p = score.masked_fill(~see, float("-inf")).softmax(-1).masked_fill(~see, 0.0)
    p = F.dropout(p, self.attention_dropout, self.training)
    c = torch.matmul(p, v).transpose(1, 2).reshape(batch, length, width) * F.gelu(gate)
    c = self.out(layer_norm(c, self.eps))
    return F.dropout(c, self.attention_dropout, self.training)


class LoopedGptBert(nn.Module):
  """From our parameters and the config's `model` group."""

  def __init__(self, params, model, bucket_TS, compiled):
    super().__init__()
    self.embedding = nn.Parameter(torch.tensor(params["embed"]["embedding"]))
    positions = params["shared"]["positions"]
    self.relative = nn.Parameter(torch.tensor(positions["embedding"]))
    self.relative_scale = nn.Parameter(torch.tensor(positions["norm"]["scale"]))
    self.relative_bias = nn.Parameter(torch.tensor(positions["norm"]["bias"]))
    layers = [
      Layer(params["core"][f"layers_{i}"], model["block"]) for i in range(model["core_layers"])
    ]
    self.layers = nn.ModuleList(layers)
    self.transform = linear(params["head"]["transform"])
    self.bias = nn.Parameter(torch.tensor(params["head"]["bias"]))
    self.injection = model["injection"]["name"]
    for name, value in params.get("injection", {}).items():
      self.register_parameter(name, nn.Parameter(torch.tensor(value)))
    self.register_buffer("buckets", torch.tensor(bucket_TS))
    self.num_loops, self.eps = model["num_loops"], model["block"]["norm_eps"]
    self.dropout = model["embed"]["dropout_rate"]
    self.apply_layer = [torch.compile(layer) if compiled else layer for layer in layers]

  def forward(self, tokens, see, supervised):
    """Logits of the supervised positions, [number, V]."""
    x = F.dropout(layer_norm(self.embedding[tokens], self.eps), self.dropout, self.training)
    width = self.relative.shape[-1:]
    relative = F.layer_norm(self.relative, width, self.relative_scale, self.relative_bias, self.eps)
    relative = F.embedding(self.buckets, relative)
    state = torch.zeros_like(x)
    for _ in range(self.num_loops):
      state, history = self.enter(x, state), []
      for layer in self.apply_layer:
        state, history = layer(state, history, relative, see)
    y = layer_norm(state.flatten(0, 1)[supervised], self.eps)
    y = layer_norm(F.gelu(self.transform(y)), self.eps)
    return F.linear(F.dropout(y, self.dropout, self.training), self.embedding, self.bias)

  def enter(self, x, state):
    if self.injection == "none":
      return x
    if self.injection == "add":
      return x + state
    step = F.softplus(self.dt_bias)
    return torch.exp(-step * self.A_log.exp()) * state + step * F.linear(x, self.B)


def loss(model, tokens, see, targets, weights, z_loss_weight):
  """The weighted mean of cross-entropy and z-loss, as our objectives have it."""
  supervised = weights.flatten().nonzero()[:, 0]
  logits, weights = model(tokens, see, supervised), weights.flatten()[supervised]
  logits = logits.float()
  log_z = logits.logsumexp(-1)
  nats = F.cross_entropy(logits, targets.flatten()[supervised], reduction="none")
  return (weights * (nats + z_loss_weight * log_z.square())).sum() / weights.sum()


class Lamb:
  """LAMB with GPT-BERT's groups: everything but biases, norms, A_log and dt_bias is decayed."""

  def __init__(self, model, settings, ema_decay):
    plain = ("bias", "relative_scale", "A_log", "dt_bias")
    self.parameters = [(p, not name.endswith(plain)) for name, p in model.named_parameters()]
    self.first = [torch.zeros_like(p) for p, _ in self.parameters]
    self.second = [torch.zeros_like(p) for p, _ in self.parameters]
    self.average = [p.detach().clone() for p, _ in self.parameters] if ema_decay else []
    self.settings, self.ema_decay, self.count = settings, ema_decay, 0

  @torch.no_grad()
  def step(self, learning_rate):
    s = self.settings
    self.count += 1
    nn.utils.clip_grad_norm_([p for p, _ in self.parameters], s["clip_norm"])
    for (p, decayed), m, v in zip(self.parameters, self.first, self.second, strict=True):
      m.lerp_(p.grad, 1 - s["b1"])
      v.mul_(s["b2"]).addcmul_(p.grad, p.grad, value=1 - s["b2"])
      update = (v / (1 - s["b2"] ** self.count)).sqrt_().add_(s["eps"])
      update = m / (1 - s["b1"] ** self.count) / update
      if decayed:
        update.add_(p, alpha=s["weight_decay"])
        norm_p, norm_u = p.norm(), update.norm()
        if norm_p > 0 and norm_u > 0:
          update.mul_(norm_p / norm_u)
      p.sub_(update, alpha=learning_rate)
      p.grad = None
    for average, (p, _) in zip(self.average, self.parameters, strict=False):
      average.lerp_(p, 1 - self.ema_decay)
