"""Which rematerialisation a step can afford, where the config leaves it open."""

from collections.abc import Mapping
import os
from typing import Any

import jax

from looped_lm.errors import UserError
from looped_lm.scaling import memory
from looped_lm.types import Params

AUTO = "auto"
# From the fastest to the smallest. On CPU keeping everything costs time too: its memory is touched
# afresh each step (docs/performance.md).
_ORDER = ("none", "attention", "dots", "full")
_ORDER_CPU = _ORDER[1:]
# Estimates are within 30 %, so they may fill this share of what is free.
_SHARE = 0.7


def choose(
  model: Mapping[str, Any],
  params: Params,
  *,
  rows: int,
  seq_len: int,
  chunk_tokens: int,
  held_bytes: int,
  device_bytes: int,
  platform: str,
) -> tuple[str, str]:
  """The fastest rematerialisation whose estimate fits, and a line that says why.

  Args:
    model: The `model` group of a config; what its `remat` says is not read.
    params: Parameters or their shapes.
    rows: Rows that go through a device at once: batch / (devices × micro-batches).
    seq_len: T.
    chunk_tokens: `objective.chunk_tokens`.
    held_bytes: What a device holds all the time: its part of parameters, gradients and state.
    device_bytes: Memory of a device.
    platform: "cpu", or an accelerator's.
  """
  free = device_bytes - held_bytes
  sizes = {
    name: memory.activation_bytes(
      {**model, "remat": name}, params, rows=rows, seq_len=seq_len, chunk_tokens=chunk_tokens
    )
    for name in (_ORDER_CPU if platform == "cpu" else _ORDER)
  }
  fitting = [name for name, size in sizes.items() if size <= _SHARE * free]
  name = fitting[0] if fitting else _ORDER[-1]
  told = ", ".join(f"{other} {size / 1e9:.2f}" for other, size in sizes.items())
  line = (
    f"model.remat='auto' takes {name!r}: GB estimated for {rows} rows × {seq_len} tokens on a "
    f"device: {told}; {max(0, free) / 1e9:.2f} are free."
  )
  if not fitting:
    line += " None is sure to fit: raise train.micro_batches."
  return name, line


def device_bytes(device: Any) -> int:
  """Memory of a device; of a CPU, its share of the machine's.

  Args:
    device: A `jax.Device`.

  Raises:
    UserError: Neither the device nor the system tells.
  """
  stats = device.memory_stats() or {}
  if "bytes_limit" in stats:
    return stats["bytes_limit"]
  try:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, OSError, ValueError):
    raise UserError(
      "model.remat='auto' needs to know the memory, and this system does not tell; choose "
      "'none', 'attention', 'dots' or 'full'."
    ) from None
  return total // jax.local_device_count()
