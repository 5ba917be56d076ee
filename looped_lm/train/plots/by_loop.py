"""Figures by loop and by depth: what loops are worth, and what the state does in them."""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any

from looped_lm.train.plots.canvas import (
  BLUE,
  GREY,
  MODE_COLOURS,
  Drawing,
  legend,
  loop_legend,
  whole,
)
from looped_lm.train.plots.series import (
  Record,
  last,
  loops,
  mode_name,
  modes,
  series,
  trained_loops,
)


def drawings(records: Sequence[Record]) -> list[Drawing]:
  """The pictures by loop, from a run's log."""

  def drawing(name: str, drawer: Callable[..., bool], caption: str, **size: Any) -> Drawing:
    draw = functools.partial(drawer, records=records)
    return Drawing(name=name, caption=caption, draw=draw, **size)

  return [
    drawing(
      "loss_by_depth",
      _loss_by_depth,
      "The model run with R loops and read at the end, up to twice its own depth. The number is "
      "what the deepest run changes against the model's own depth; above 0, more loops do harm.",
    ),
    drawing(
      "loss_by_loop",
      _loss_by_loop,
      "The state after loop r is sent through coda and head: what each further loop is worth.",
    ),
    drawing(
      "loss_by_loop_over_time", _loss_by_loop_over_time, "The same over training, a line per loop."
    ),
    drawing("state_rms", _state_rms, "Root mean square of the recurrent state after each loop."),
    drawing(
      "movement",
      _movement,
      "How the state moves, a mean over held-out tokens: the size of each loop's step against the "
      "state, the cosine between successive states, and how alike the states of different tokens "
      "of a row are (1: all the same). Shaded: deeper than the model's own depth.",
      size_inches=(14.4, 3.8),
      wide=True,
    ),
    drawing(
      "gate_openness",
      _gate_openness,
      "The share of the core's output that the gate lets into the state, a mean over held-out "
      "tokens and channels. Near 0 the loop copies the old state.",
    ),
  ]


def _loss_by_loop(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  most = 0
  for mode in modes(records):
    numbers = loops(records, f"eval/{mode}/loop", "loss_nats")
    if numbers:
      values = [last(records, f"eval/{mode}/loop/{r:02}/loss_nats") for r in numbers]
      colour = MODE_COLOURS.get(mode, GREY)
      axes.plot(numbers, values, "o-", color=colour, label=mode_name(mode))
      most = max(most, *numbers)
  axes.set(
    title="Held-out loss read after each loop, last evaluation",
    xlabel="loop r",
    ylabel="nats per token",
  )
  whole(axes.xaxis)
  if most:
    axes.set_xlim(0.7, most + 0.3)
  legend(axes)
  return most > 0


def _loss_by_loop_over_time(figure: Any, records: Sequence[Record]) -> bool:
  shown = [mode for mode in modes(records) if loops(records, f"eval/{mode}/loop", "loss_nats")]
  if not shown:
    return False
  panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
  for axes, mode in zip(panels, shown, strict=True):
    _lines_by_loop(axes, records, prefix=f"eval/{mode}/loop", suffix="loss_nats")
    axes.set_title(mode_name(mode), fontsize=11, fontweight="normal")
    axes.set_xlabel("optimiser step")
  panels[0].set_ylabel("nats per token")
  figure.suptitle("Held-out loss by loop, over training", x=0.02, ha="left", fontweight="bold")
  loop_legend(figure, panels[-1])
  return True


def _loss_by_depth(figure: Any, records: Sequence[Record]) -> bool:
  """A run of R loops for each R; what lies beyond the trained depth is marked, and how it ends."""
  from matplotlib.ticker import FixedLocator, NullLocator

  axes = figure.subplots()
  ticks: set[int] = set()
  for mode in modes(records):
    numbers = loops(records, "eval/depth", f"{mode}_loss_nats")
    if not numbers:
      continue
    values = [last(records, f"eval/depth/{r:02}/{mode}_loss_nats") for r in numbers]
    colour, trained = MODE_COLOURS.get(mode, GREY), trained_loops(numbers)
    axes.plot(numbers, values, "o-", color=colour, label=mode_name(mode))
    change = values[-1] - values[numbers.index(trained)]
    # What is not finite has no place on the axis, so it is said in words.
    text = f"{change:+.3f}" if math.isfinite(change) else f"not finite at {numbers[-1]}"
    place = [value for value in values if math.isfinite(value)][-1:] or [0.0]
    axes.annotate(
      text, (numbers[-1], place[0]), (-4, 7), textcoords="offset points", ha="right", color=colour
    )
    ticks.update(numbers)
  if not ticks:
    return False
  trained = trained_loops(sorted(ticks))
  axes.axvline(trained, color=GREY, linestyle=":", label=f"the model's own depth, {trained}")
  axes.axvspan(trained, max(ticks) * 1.1, color=GREY, alpha=0.08, linewidth=0)
  axes.set(
    title="Held-out loss of a run of R loops",
    xlabel="loops R (logarithmic); shaded: deeper than the model's own depth",
    ylabel="nats per token",
    xscale="log",
    xlim=(0.9, max(ticks) * 1.1),
  )
  axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
  axes.xaxis.set_minor_locator(NullLocator())
  axes.xaxis.set_major_formatter("{x:.0f}")
  axes.margins(y=0.15)
  legend(axes)
  return True


def _movement(figure: Any, records: Sequence[Record]) -> bool:
  """Step size, cosine and token correlation, a panel each."""
  kinds = {
    "step_size": ("Step size", "‖h_r − h_{r−1}‖ / ‖h_r‖"),
    "cosine": ("Cosine to the loop before", "cos(h_r, h_{r−1})"),
    "token_correlation": ("Token correlation", "cosine of two tokens' states"),
  }
  panels = figure.subplots(1, len(kinds))
  for axes, (kind, (title, unit)) in zip(panels, kinds.items(), strict=True):
    if not _over_loops(axes, records, kind):
      return False
    axes.set_title(title)
    axes.set(xlabel="loop r", ylabel=unit)
    axes.set_ylim(bottom=0 if kind == "step_size" else None, top=None)
  legend(panels[0])
  return True


def _gate_openness(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  drawn = _over_loops(axes, records, "gate_openness")
  axes.set(title="How far the gate is open, 1 − g", xlabel="loop r", ylabel="mean of 1 − g")
  axes.set_ylim(bottom=0)
  legend(axes)
  return drawn


def _over_loops(axes: Any, records: Sequence[Record], kind: str) -> bool:
  """Draws a figure of each loop, as last measured, up to twice the model's depth."""
  numbers = loops(records, "eval/loop", kind)
  if not numbers:
    return False
  values = [last(records, f"eval/loop/{r:02}/{kind}") for r in numbers]
  axes.plot(numbers, values, "o-", color=BLUE, markersize=4)
  trained = trained_loops(numbers)
  axes.axvline(trained, color=GREY, linestyle=":", label=f"the model's own depth, {trained}")
  axes.axvspan(trained, numbers[-1] + 0.3, color=GREY, alpha=0.08, linewidth=0)
  axes.set_xlim(0.7, numbers[-1] + 0.3)
  whole(axes.xaxis)
  return True


def _state_rms(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  drawn = _lines_by_loop(axes, records, prefix="eval/loop", suffix="state_rms")
  axes.set(title="Size of the state after each loop", xlabel="optimiser step", ylabel="state RMS")
  if drawn:
    loop_legend(figure, axes)
  return drawn


def _lines_by_loop(axes: Any, records: Sequence[Record], *, prefix: str, suffix: str) -> bool:
  """Draws one line per loop, dark for the first and light for the last."""
  import matplotlib

  numbers = loops(records, prefix, suffix)
  colours = matplotlib.colormaps["viridis"]
  for place, r in enumerate(numbers):
    steps, values = series(records, f"{prefix}/{r:02}/{suffix}")
    shade = colours(0.88 * place / max(len(numbers) - 1, 1))
    marker = "o" if len(steps) < 40 else ""
    axes.plot(steps, values, color=shade, marker=marker, markersize=3.5, label=f"loop {r}")
  return bool(numbers)
