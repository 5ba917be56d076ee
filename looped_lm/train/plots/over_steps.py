"""Curves over the steps of a run."""

from collections.abc import Callable, Sequence
import functools
import re
from typing import Any

from looped_lm.train.plots.canvas import BLUE, GREEN, GREY, MODE_COLOURS, ORANGE, Drawing, legend
from looped_lm.train.plots.series import Record, mode_name, modes, series, smooth


def drawings(records: Sequence[Record]) -> list[Drawing]:
  """The curves of a run, from its log."""
  return [
    Drawing(name=name, caption=caption, draw=functools.partial(drawer, records=records))
    for name, (drawer, caption) in _CURVES.items()
  ]


def _loss(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  drawn = False
  trained = [mode for mode in modes(records) if series(records, f"train/{mode}/loss_nats")[0]]
  for mode in trained or [None]:
    steps, values = series(records, f"train/{mode}/loss_nats" if mode else "train/loss_nats")
    if steps:
      colour, name = MODE_COLOURS.get(mode or "", GREY), mode_name(mode)
      axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.9)
      window = max(1.0, len(values) / 50)
      axes.plot(
        steps, smooth(values, window=window), color=colour, label=f"train, {name}, smoothed"
      )
      drawn = True
  for mode in modes(records):
    steps, values = series(records, f"eval/{mode}/loss_nats")
    if steps:
      colour = MODE_COLOURS.get(mode, GREY)
      axes.plot(
        steps,
        values,
        "o--",
        color=colour,
        markerfacecolor="white",
        markersize=5,
        linewidth=1.2,
        label=f"held out, {mode_name(mode)}",
      )
      drawn = True
  _, unigram = series(records, "eval/unigram/held_out_cross_entropy_nats")
  if unigram and drawn:
    axes.axhline(unigram[-1], color=GREY, linestyle=":", label="unigram model, held out")
  axes.set(title="Loss", xlabel="optimiser step", ylabel="nats per token")
  legend(axes)
  return drawn


def _scores(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  names = {name for record in records for name in record}
  pattern = re.compile(r"eval/([^/]+)/([^/]+)/score_percent")
  found = sorted(match.groups() for name in names if (match := pattern.fullmatch(name)))
  for task, backend in found:
    steps, values = series(records, f"eval/{task}/{backend}/score_percent")
    axes.plot(steps, values, "o-", markersize=4, label=f"{task.replace('_', ' ')}, {backend}")
  axes.set(title="Scores on tasks", xlabel="optimiser step", ylabel="percent")
  legend(axes)
  return bool(found)


def _spectral_radius(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  drawn = False
  for name, colour, label in (
    ("eval/injection/rho_max", ORANGE, "spectral radius ρ: largest channel"),
    ("eval/injection/rho_mean", BLUE, "mean of the channels"),
  ):
    steps, values = series(records, name)
    if steps:
      axes.plot(steps, values, "o-", markersize=4, color=colour, label=label)
      drawn = True
  axes.axhline(1.0, color=GREY, linestyle=":", label="1: nothing would decay")
  axes.set(
    title="What a loop keeps of the state, exp(ΔA)",
    xlabel="optimiser step",
    ylabel="factor per loop",
    ylim=(0, 1.05),
  )
  legend(axes)
  return drawn


def _single(
  name: str,
  *,
  title: str,
  unit: str,
  colour: str,
  smoothed: bool = False,
  engineering: bool = False,
) -> Callable[[Any, Sequence[Record]], bool]:
  """Makes a drawer of one figure over the steps; `engineering` writes 10 k for 10,000."""

  def drawer(figure: Any, records: Sequence[Record]) -> bool:
    from matplotlib.ticker import EngFormatter

    axes = figure.subplots()
    steps, values = series(records, name)
    if smoothed and len(values) > 20:
      axes.plot(steps, values, color=colour, alpha=0.3, linewidth=0.9, label="each logged step")
      average = smooth(values, window=len(values) / 50)
      axes.plot(steps, average, color=colour, label="smoothed")
      legend(axes)
    else:
      axes.plot(steps, values, color=colour)
    axes.set(title=title, xlabel="optimiser step", ylabel=unit)
    if engineering:
      axes.yaxis.set_major_formatter(EngFormatter())
    else:
      axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4), useMathText=True)
    axes.set_ylim(bottom=0)
    return bool(steps)

  return drawer


_CURVES: dict[str, tuple[Callable[..., bool], str]] = {
  "loss": (_loss, "Training loss (faint: each logged step) and held-out loss of each mode."),
  "scores": (_scores, "What each task gave the model whenever it was scored."),
  "spectral_radius": (
    _spectral_radius,
    "The injection's decay per channel; its largest is the spectral radius of the linear part.",
  ),
  "drive_norm": (
    _single(
      "eval/injection/drive_norm",
      title="Norm of the injection's drive, ‖diag(s) B‖₂",
      unit="largest singular value",
      colour=GREEN,
    ),
    "By how much a loop may stretch the prelude's output when taking it in.",
  ),
  "learning_rate": (
    _single("train/learning_rate", title="Learning rate", unit="learning rate", colour=BLUE),
    "The schedule as applied.",
  ),
  "gradient_norm": (
    _single(
      "train/grad_norm",
      title="Gradient norm before clipping",
      unit="global L2 norm",
      colour=GREEN,
      smoothed=True,
    ),
    "Global norm of the gradient, before it is clipped.",
  ),
  "tokens_per_second": (
    _single(
      "train/tokens_per_second",
      title="Speed",
      unit="tokens per second",
      colour=BLUE,
      smoothed=True,
      engineering=True,
    ),
    "Corpus tokens trained on per second, evaluation and checkpoints left out.",
  ),
}
