"""Pictures of a run, drawn from its metrics: one function per picture."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import io
import math
import re
from typing import Any

Record = Mapping[str, float]
Points = tuple[list[float], list[float]]  # Steps and values.

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#6b7280"
_MODE_COLOURS = {"clm": _BLUE, "mntp": _ORANGE}
_MODE_NAMES = {"clm": "causal", "mntp": "masked next token"}
_SIZE = (7.2, 4.0)  # Inches.
_DPI = 144
_STYLE = {
  "font.size": 10.5,
  "axes.titlesize": 12.5,
  "axes.titleweight": "bold",
  "axes.titlelocation": "left",
  "axes.titlepad": 10,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.edgecolor": "#9ca3af",
  "axes.labelcolor": "#374151",
  "axes.grid": True,
  "grid.color": "#e5e7eb",
  "grid.linewidth": 0.8,
  "xtick.color": "#4b5563",
  "ytick.color": "#4b5563",
  "legend.frameon": False,
  "lines.linewidth": 1.8,
  "axes.axisbelow": True,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
  """A finished picture.

  Attributes:
    name: Of its file, without ending.
    caption: What it shows.
    png: The file's bytes.
  """

  name: str
  caption: str
  png: bytes


def draw(records: Sequence[Record]) -> tuple[list[Plot], list[str]]:
  """Draws every picture the metrics have figures for.

  Args:
    records: As `metrics.read` gives them.

  Returns:
    The pictures, and the names of those without figures.

  Raises:
    ImportError: matplotlib is absent.
  """
  import matplotlib
  from matplotlib.figure import Figure  # Draws without a screen and without global state.
  from matplotlib.layout_engine import ConstrainedLayoutEngine

  plots, missing = [], []
  style: Any = _STYLE
  with matplotlib.rc_context(style):
    for name, (drawer, caption) in _PLOTS.items():
      margins = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)  # Inches.
      figure = Figure(figsize=_SIZE, layout=margins)
      if drawer(figure, records):
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=_DPI)
        plots.append(Plot(name=name, caption=caption, png=file.getvalue()))
      else:
        missing.append(name)
  return plots, missing


def series(records: Sequence[Record], name: str) -> Points:
  """Gives the steps and values of a figure, the last value of each step, steps ascending."""
  values = {record["step"]: record[name] for record in records if name in record}
  steps = sorted(values)
  return list(steps), [values[step] for step in steps]


def modes(records: Sequence[Record]) -> list[str]:
  """Lists the objectives' modes that were evaluated or trained, e.g. ["clm", "mntp"]."""
  pattern = re.compile(r"(?:train|eval)/([^/]+)/loss_nats")
  names = {name for record in records for name in record}
  return sorted({match[1] for name in names if (match := pattern.fullmatch(name))})


def loops(records: Sequence[Record], prefix: str, suffix: str) -> list[int]:
  """Lists the loops r for which a figure `<prefix>/<rr>/<suffix>` was logged."""
  pattern = re.compile(rf"{re.escape(prefix)}/(\d+)/{re.escape(suffix)}")
  names = {name for record in records for name in record}
  return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def mode_name(mode: str | None) -> str:
  """Names a mode in words; None stands for all rows together."""
  return "all rows" if mode is None else _MODE_NAMES.get(mode, mode)


def smooth(values: Sequence[float], *, window: float) -> list[float]:
  """Averages each value with both its sides, weights falling by 1/e over `window` values.

  Looking both ways, the average does not lag behind a falling loss.
  """
  keep = math.exp(-1 / window)

  def one_way(ordered: Sequence[float]) -> list[tuple[float, float]]:
    total, weight, sums = 0.0, 0.0, []
    for value in ordered:
      total, weight = keep * total, keep * weight
      sums.append((total, weight))  # Without the value itself, which belongs to neither side.
      if math.isfinite(value):
        total, weight = total + value, weight + 1
    return sums

  left, right = one_way(values), one_way(values[::-1])[::-1]
  out = []
  for value, (total, weight), (more, heavier) in zip(values, left, right, strict=True):
    here = math.isfinite(value)
    total, weight = total + more + (value if here else 0.0), weight + heavier + here
    out.append(total / weight if weight else math.nan)
  return out


def _loss(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  drawn = False
  trained = [mode for mode in modes(records) if series(records, f"train/{mode}/loss_nats")[0]]
  for mode in trained or [None]:
    steps, values = series(records, f"train/{mode}/loss_nats" if mode else "train/loss_nats")
    if steps:
      colour, name = _MODE_COLOURS.get(mode or "", _GREY), mode_name(mode)
      axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.9)
      window = max(1.0, len(values) / 50)
      axes.plot(
        steps, smooth(values, window=window), color=colour, label=f"train, {name}, smoothed"
      )
      drawn = True
  for mode in modes(records):
    steps, values = series(records, f"eval/{mode}/loss_nats")
    if steps:
      colour = _MODE_COLOURS.get(mode, _GREY)
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
    axes.axhline(unigram[-1], color=_GREY, linestyle=":", label="unigram model, held out")
  axes.set(title="Loss", xlabel="optimiser step", ylabel="nats per token")
  _legend(axes)
  return drawn


def _loss_by_loop(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  most = 0
  for mode in modes(records):
    numbers = loops(records, f"eval/{mode}/loop", "loss_nats")
    if numbers:
      last = [series(records, f"eval/{mode}/loop/{r:02}/loss_nats")[1][-1] for r in numbers]
      colour = _MODE_COLOURS.get(mode, _GREY)
      axes.plot(numbers, last, "o-", color=colour, label=mode_name(mode))
      most = max(most, *numbers)
  axes.set(
    title="Held-out loss read after each loop, last evaluation",
    xlabel="loop r",
    ylabel="nats per token",
  )
  _whole(axes.xaxis)
  if most:
    axes.set_xlim(0.7, most + 0.3)
  _legend(axes)
  return most > 0


def _loss_by_loop_over_time(figure: Any, records: Sequence[Record]) -> bool:
  shown = [mode for mode in modes(records) if loops(records, f"eval/{mode}/loop", "loss_nats")]
  if not shown:
    return False
  panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
  for axes, mode in zip(panels, shown, strict=True):
    _by_loop(axes, records, prefix=f"eval/{mode}/loop", suffix="loss_nats")
    axes.set_title(mode_name(mode), fontsize=11, fontweight="normal")
    axes.set_xlabel("optimiser step")
  panels[0].set_ylabel("nats per token")
  figure.suptitle("Held-out loss by loop, over training", x=0.02, ha="left", fontweight="bold")
  _loop_legend(figure, panels[-1])
  return True


def _state_rms(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  drawn = _by_loop(axes, records, prefix="eval/loop", suffix="state_rms")
  axes.set(title="Size of the state after each loop", xlabel="optimiser step", ylabel="state RMS")
  if drawn:
    _loop_legend(figure, axes)
  return drawn


def _spectral_radius(figure: Any, records: Sequence[Record]) -> bool:
  axes = figure.subplots()
  drawn = False
  for name, colour, label in (
    ("eval/injection/rho_max", _ORANGE, "spectral radius ρ: largest channel"),
    ("eval/injection/rho_mean", _BLUE, "mean of the channels"),
  ):
    steps, values = series(records, name)
    if steps:
      axes.plot(steps, values, "o-", markersize=4, color=colour, label=label)
      drawn = True
  axes.axhline(1.0, color=_GREY, linestyle=":", label="1: nothing would decay")
  axes.set(
    title="What a loop keeps of the state, exp(ΔA)",
    xlabel="optimiser step",
    ylabel="factor per loop",
    ylim=(0, 1.05),
  )
  _legend(axes)
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
      _legend(axes)
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


def _by_loop(axes: Any, records: Sequence[Record], *, prefix: str, suffix: str) -> bool:
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


def _loop_legend(figure: Any, axes: Any) -> None:
  """Names the loops beside the picture; of many, a few."""
  handles, labels = axes.get_legend_handles_labels()
  stride = math.ceil(len(labels) / 8)
  keep = sorted({*range(0, len(labels), stride), len(labels) - 1})
  figure.legend([handles[i] for i in keep], [labels[i] for i in keep], loc="outside right center")


def _legend(axes: Any) -> None:
  if axes.get_legend_handles_labels()[0]:
    axes.legend(loc="best")


def _whole(axis: Any) -> None:
  from matplotlib.ticker import MaxNLocator

  axis.set_major_locator(MaxNLocator(integer=True, nbins=12))


_PLOTS: dict[str, tuple[Callable[[Any, Sequence[Record]], bool], str]] = {
  "loss": (_loss, "Training loss (faint: each logged step) and held-out loss of each mode."),
  "loss_by_loop": (
    _loss_by_loop,
    "The state after loop r is sent through coda and head: what each further loop is worth.",
  ),
  "loss_by_loop_over_time": (_loss_by_loop_over_time, "The same over training, a line per loop."),
  "state_rms": (_state_rms, "Root mean square of the recurrent state after each loop."),
  "spectral_radius": (
    _spectral_radius,
    "The injection's decay per channel; its largest is the spectral radius of the linear part.",
  ),
  "learning_rate": (
    _single(
      "train/learning_rate",
      title="Learning rate",
      unit="learning rate",
      colour=_BLUE,
    ),
    "The schedule as applied.",
  ),
  "gradient_norm": (
    _single(
      "train/grad_norm",
      title="Gradient norm before clipping",
      unit="global L2 norm",
      colour=_GREEN,
      smoothed=True,
    ),
    "Global norm of the gradient, before it is clipped.",
  ),
  "tokens_per_second": (
    _single(
      "train/tokens_per_second",
      title="Speed",
      unit="tokens per second",
      colour=_BLUE,
      smoothed=True,
      engineering=True,
    ),
    "Corpus tokens trained on per second, evaluation and checkpoints left out.",
  ),
}
