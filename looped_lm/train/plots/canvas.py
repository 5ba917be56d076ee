"""What all pictures share: colours, style, legends, and how a drawing becomes a PNG file."""

from collections.abc import Callable, Iterable
import dataclasses
import io
import math
from typing import Any
import warnings

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6b7280"
MODE_COLOURS = {"clm": BLUE, "mntp": ORANGE}
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
class Drawing:
  """A picture that can be drawn.

  Attributes:
    name: Of its file, without ending.
    caption: What it shows.
    draw: Draws onto a figure, or returns False because what it shows was not logged.
    size_inches: Width and height.
    wide: Whether it takes the page's whole width.
  """

  name: str
  caption: str
  draw: Callable[[Any], bool]
  size_inches: tuple[float, float] = (7.2, 4.0)
  wide: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
  """A finished picture.

  Attributes:
    name: Of its file, without ending.
    caption: What it shows.
    png: The file's bytes.
    wide: Whether it takes the page's whole width.
  """

  name: str
  caption: str
  png: bytes
  wide: bool


def render(drawings: Iterable[Drawing]) -> tuple[list[Plot], list[str]]:
  """Draws what can be drawn.

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
  with matplotlib.rc_context(style), warnings.catch_warnings():
    # A token may be of any script, and no font has them all: a box stands for what is lacking.
    warnings.filterwarnings("ignore", message="Glyph .* missing from")
    for drawing in drawings:
      margins = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)  # Inches.
      figure = Figure(figsize=drawing.size_inches, layout=margins)
      if drawing.draw(figure):
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=_DPI)
        plot = Plot(
          name=drawing.name, caption=drawing.caption, png=file.getvalue(), wide=drawing.wide
        )
        plots.append(plot)
      else:
        missing.append(drawing.name)
  return plots, missing


def loop_legend(figure: Any, axes: Any) -> None:
  """Names the loops beside the picture; of many, a few."""
  handles, labels = axes.get_legend_handles_labels()
  stride = math.ceil(len(labels) / 8)
  keep = sorted({*range(0, len(labels), stride), len(labels) - 1})
  figure.legend([handles[i] for i in keep], [labels[i] for i in keep], loc="outside right center")


def legend(axes: Any) -> None:
  """Names the lines, where any has a name."""
  if axes.get_legend_handles_labels()[0]:
    axes.legend(loc="best")


def whole(axis: Any) -> None:
  """Puts ticks at whole numbers alone."""
  from matplotlib.ticker import MaxNLocator

  axis.set_major_locator(MaxNLocator(integer=True, nbins=12))
