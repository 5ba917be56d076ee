"""How a loop takes in the prelude's output, and what else surrounds the core in every loop."""

import math

import torch
from torch import nn
import torch.nn.functional as F

from .layers_looped_lm import Linear, Norm, layer_norm, of_loop, rms_norm, widen


def sinusoid(index, width):
  """sin and cos of the index at width / 2 wavelengths from 2π to 10,000 · 2π: [..., width]."""
  rate = torch.arange(0, width, 2, dtype=torch.float32, device=index.device)
  rate = torch.exp(rate * (-math.log(10_000.0) / width))
  angle = index[..., None].float() * rate
  return torch.cat((angle.sin(), angle.cos()), dim=-1)


class Injection(nn.Module):
  """No injection: the core reads the state, and its output is the next state."""

  def __init__(self, config, settings):
    super().__init__()
    self.s = settings
    self.width = config.hidden_size

  def prepare(self, e):
    """What the loops need of the prelude's output e."""
    return e

  def start(self, e):
    """The state before the first loop. Training may start from noise; here that is zero."""
    return e if self.s["state_init"] == "prelude" else torch.zeros_like(e)

  def enter(self, h, anchor, loop):
    """What the core reads."""
    return h

  def update(self, h, anchor, out, loop):
    """The next state, from the core's output."""
    return out

  def leave(self, h):
    """The state as one stream."""
    return h


class Add(Injection):
  """h ← N(F(e + h)), N the identity unless asked for."""

  def __init__(self, config, settings):
    super().__init__(config, settings)
    if settings["exit_norm"] != "none":
      self.norm_exit = Norm(self.width, settings["exit_norm"], settings["norm_eps"])

  def enter(self, h, anchor, loop):
    return anchor + h

  def update(self, h, anchor, out, loop):
    return out if self.s["exit_norm"] == "none" else self.norm_exit(out)


class Diagonal(Injection):
  """h ← F(exp(ΔA) ∘ h + s ∘ B e), A = -exp(A_log), Δ = softplus(dt_bias), s = Δ."""

  def __init__(self, config, settings):
    super().__init__(config, settings)
    self.A_log = nn.Parameter(torch.zeros(self.width))
    self.dt_bias = nn.Parameter(torch.zeros(self.width))
    self.B = nn.Parameter(torch.eye(self.width))

  def exponent(self):
    """-ΔA, by the logarithm of Δ: softplus(x) is exp(x) where it would underflow."""
    bias = widen(self.dt_bias)
    log_step = torch.where(bias < -30.0, bias, softplus(bias.clamp(min=-30.0)).log())
    return torch.exp(widen(self.A_log) + log_step)

  def drive_scale(self):
    return softplus(widen(self.dt_bias))

  def prepare(self, e):
    kept = torch.exp(-self.exponent())
    # exp(-x) is 1 for a tiny x; the decay stays below it.
    kept = kept.clamp(max=1.0 - torch.finfo(kept.dtype).eps / 2)
    return kept, self.drive_scale() * F.linear(widen(e), widen(self.B))

  def enter(self, h, anchor, loop):
    decay, drive = anchor
    return decay * h + drive


class DiagonalZoh(Diagonal):
  """The same with the exact hold: s = (1 - exp(ΔA)) / exp(A_log)."""

  def drive_scale(self):
    x = self.exponent()
    small = torch.where(x > 0, x.clamp(max=1.0), 1.0)
    held_small = super().drive_scale() * torch.where(x > 0, -torch.expm1(-small) / small, 1.0)
    held_large = -torch.expm1(-x) * torch.exp(-widen(self.A_log))
    return torch.where(x > 1.0, held_large, held_small)


def softplus(x):
  """log(1 + exp(x)), without torch's linear shortcut for large x."""
  return torch.logaddexp(x, torch.zeros_like(x))


class LinearInjection(Injection):
  """h ← F(W [h ; e])."""

  def __init__(self, config, settings):
    super().__init__(config, settings)
    self.project = Linear(2 * self.width, self.width, bias=False)

  def enter(self, h, anchor, loop):
    return widen(self.project(torch.cat((h, anchor), dim=-1)))


class Gated(Injection):
  """x = W [h ; e] + b; g = σ(MLP(norm [h ; e]) / τ); h ← g h + (1 - g) F(x)."""

  def __init__(self, config, settings):
    super().__init__(config, settings)
    self.project = Linear(2 * self.width, self.width)
    self.norm_scale = nn.Parameter(torch.ones(2 * self.width))
    self.gate_in = Linear(2 * self.width, self.width)
    self.gate_out = Linear(self.width, self.width)

  def enter(self, h, anchor, loop):
    return widen(self.project(torch.cat((h, anchor), dim=-1)))

  def update(self, h, anchor, out, loop):
    eps = self.s["norm_eps"]
    if self.s["gate_norm"] == "separate":
      both = torch.cat((layer_norm(h, eps), layer_norm(anchor, eps)), dim=-1)
    else:
      both = layer_norm(torch.cat((h, anchor), dim=-1), eps)
    hidden = F.silu(widen(self.gate_in(both * widen(self.norm_scale))))
    keep = torch.sigmoid(widen(self.gate_out(hidden)) / self.s["temperature"])
    return keep * h + (1.0 - keep) * out


class HyperConnections(Injection):
  """Several lanes: x = Σ_i a_i h_i; h_i ← Σ_j M_ij h_j + b_i (F(x) - x); read out Σ_i c_i h_i."""

  def __init__(self, config, settings):
    super().__init__(config, settings)
    R, n, D = settings["num_loops"], settings["num_lanes"], self.width
    self.lane_read = nn.Parameter(torch.zeros(R, n))
    self.lane_write = nn.Parameter(torch.ones(R, n))
    self.lane_mix = nn.Parameter(torch.eye(n).repeat(R, 1, 1))
    self.lane_out = nn.Parameter(torch.full((n,), 1 / n))
    if settings["dynamic"]:
      self.read_kernel = nn.Parameter(torch.zeros(R, D))
      self.write_kernel = nn.Parameter(torch.zeros(R, D))
      self.mix_kernel = nn.Parameter(torch.zeros(R, D, n))
      self.dynamic_scale = nn.Parameter(torch.full((R, 3), 0.01))

  def start(self, e):
    return super().start(e)[:, :, None].repeat(1, 1, self.s["num_lanes"], 1)

  def enter(self, h, anchor, loop):
    return self._read(h, loop)

  def update(self, h, anchor, out, loop):
    change = out - self._read(h, loop)
    write = widen(of_loop(self.lane_write, loop)).expand(h.shape[:3])
    mix = widen(of_loop(self.lane_mix, loop)).expand(*h.shape[:3], -1)
    if self.s["dynamic"]:
      normed = rms_norm(h, self.s["norm_eps"])
      write = write + self._dynamic(1, normed @ widen(of_loop(self.write_kernel, loop)), loop)
      mix = mix + self._dynamic(2, normed @ widen(of_loop(self.mix_kernel, loop)), loop)
    return mix @ h + write[..., None] * change[:, :, None]

  def leave(self, h):
    return torch.einsum("n,btnd->btd", widen(self.lane_out), h)

  def _read(self, h, loop):
    read = widen(of_loop(self.lane_read, loop)).expand(h.shape[:3])
    if self.s["dynamic"]:
      normed = rms_norm(h, self.s["norm_eps"])
      read = read + self._dynamic(0, normed @ widen(of_loop(self.read_kernel, loop)), loop)
    return torch.einsum("btn,btnd->btd", read, h)

  def _dynamic(self, which, projected, loop):
    return widen(of_loop(self.dynamic_scale, loop))[which] * projected.tanh()


INJECTIONS = {
  "none": Injection,
  "add": Add,
  "diagonal": Diagonal,
  "diagonal_zoh": DiagonalZoh,
  "linear": LinearInjection,
  "gated": Gated,
  "hyper_connections": HyperConnections,
}


class Recurrence(nn.Module):
  """Prelude norm, loop embedding, per-loop norm and step size, exit norm, read-out matrix."""

  def __init__(self, config, settings):
    super().__init__()
    width, loops = config.hidden_size, settings["num_loops"]
    eps, bias = settings["norm_eps"], settings["norm_bias"]
    self.s = settings
    self.width = width
    if settings["prelude_norm"] != "none":
      self.norm_prelude = Norm(width, settings["prelude_norm"], eps, bias=bias)
    if settings["entry_norm"] != "none":
      self.norm_entry = Norm(width, settings["entry_norm"], eps, bias=True, num_loops=loops)
    if settings["exit_norm"] in ("rms", "layer"):
      self.norm_exit = Norm(width, settings["exit_norm"], eps, bias=bias)
    if settings["loop_embedding"] == "learned":
      self.embedding = nn.Parameter(torch.zeros(loops, width))
    if settings["step_sizes"]:
      self.step_size = nn.Parameter(torch.ones(loops))
    if settings["readout"]:
      self.readout_matrix = Linear(width, width, bias=False)

  def begin(self, e):
    """What the injection gets of the prelude's output."""
    return e if self.s["prelude_norm"] == "none" else self.norm_prelude(e)

  def enter(self, x, loop):
    """What the core reads."""
    if self.s["loop_embedding"] == "learned":
      x = x + widen(of_loop(self.embedding, loop))
    elif self.s["loop_embedding"] == "sinusoidal":
      x = x + sinusoid(torch.tensor(loop, device=x.device), self.width)
    return x if self.s["entry_norm"] == "none" else self.norm_entry(x, loop)

  def update(self, old, new, loop):
    """The state after a loop."""
    if not self.s["step_sizes"]:
      return new
    return old + widen(of_loop(self.step_size, loop)) * (new - old)

  def leave(self, x):
    """What the coda reads."""
    if self.s["exit_norm"] in ("rms", "layer"):
      x = self.norm_exit(x)
    return widen(self.readout_matrix(x)) if self.s["readout"] else x
