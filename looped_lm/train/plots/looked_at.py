"""What single tokens show: predictions after every loop, and where attention looks."""

from collections.abc import Mapping
import functools
from typing import Any

import numpy as np

from looped_lm.train.plots.canvas import Drawing

# Loops and layers in one picture; of more, evenly spaced ones are drawn.
_MOST_ROWS, _MOST_PANELS, _MOST_LAYERS = 16, 6, 6
_LENS_CAPTION = (
  "Logit lens on held-out text: the likeliest next token if the model stopped after loop r, darker "
  "where it is surer; a frame where it is right. Below: what the model has read; above: what comes "
  "next. A dot is the space before a word."
)
_MAPS_CAPTION = (
  "Attention of layer {layer} in each loop on held-out text, mean over heads: a row is a query, a "
  "column a key, each map from white to its own darkest."
)


def drawings(views: Mapping[str, Mapping[str, np.ndarray]]) -> list[Drawing]:
  """The pictures, from what the evaluators `logit_lens` and `attention_maps` wrote."""
  return _lenses(views.get("logit_lens")) + _maps(views.get("attention_maps"))


def _lenses(lens: Mapping[str, np.ndarray] | None) -> list[Drawing]:
  if lens is None:
    return [Drawing(name="logit_lens", caption="", draw=lambda figure: False)]
  rows = min(lens["top_RBTK"].shape[0], _MOST_ROWS)
  return [
    Drawing(
      name=f"logit_lens_{snippet + 1}",
      caption=_LENS_CAPTION,
      draw=functools.partial(_lens, lens=lens, snippet=snippet),
      size_inches=(14.4, 1.9 + 0.36 * rows),
      wide=True,
    )
    for snippet in range(lens["token_BT"].shape[0])
  ]


def _lens(figure: Any, *, lens: Mapping[str, np.ndarray], snippet: int) -> bool:
  import matplotlib
  from matplotlib.patches import Rectangle

  tokens_T = lens["token_BT"][snippet]
  length = int((tokens_T != "").sum())
  targets_T = lens["target_BT"][snippet]
  shown_R = _spaced(lens["top_RBTK"].shape[0], _MOST_ROWS)
  top_RT = lens["top_RBTK"][shown_R, snippet, :, 0]
  probability_RT = lens["probability_RBTK"][shown_R, snippet, :length, 0]
  axes = figure.subplots()
  colours = matplotlib.colormaps["Blues"]
  image = axes.imshow(probability_RT, cmap=colours, vmin=0.0, vmax=1.0, aspect="auto")
  for row in range(len(shown_R)):
    for column in range(length):
      axes.text(
        column,
        row,
        _visible(top_RT[row, column]),
        ha="center",
        va="center",
        fontsize=9,
        color="white" if probability_RT[row, column] > 0.55 else "#111827",
        parse_math=False,
      )
      if targets_T[column] and top_RT[row, column] == targets_T[column]:
        frame = {"fill": False, "edgecolor": "#D55E00", "linewidth": 1.6}
        axes.add_patch(Rectangle((column - 0.47, row - 0.44), 0.94, 0.88, **frame))
  places = range(length)
  axes.set_xticks(places, [_visible(token) for token in tokens_T[:length]], parse_math=False)
  axes.set_yticks(range(len(shown_R)), [f"loop {r + 1}" for r in shown_R])
  above = axes.secondary_xaxis("top")
  above.set_xticks(places, [_visible(token) for token in targets_T[:length]], parse_math=False)
  above.tick_params(length=0)
  axes.set(xlabel="read so far, up to")
  above.set_xlabel("comes next")
  axes.grid(visible=False)
  axes.tick_params(length=0)
  figure.colorbar(image, ax=axes, label="probability", pad=0.01, aspect=30)
  return True


def _maps(maps: Mapping[str, np.ndarray] | None) -> list[Drawing]:
  names = [name for name in maps or {} if name.startswith("core_layer_")]
  if maps is None or not names:
    return [Drawing(name="attention_maps", caption="", draw=lambda figure: False)]
  layers = {int(name.split("_")[2]): maps[name] for name in names}
  numbers = [sorted(layers)[place] for place in _spaced(len(layers), _MOST_LAYERS)]
  panels = min(next(iter(layers.values())).shape[0], _MOST_PANELS)
  return [
    Drawing(
      name=f"attention_layer_{number}",
      caption=_MAPS_CAPTION.format(layer=number),
      draw=functools.partial(_map, map_RTS=layers[number], tokens_T=maps["token_T"]),
      size_inches=(14.4, 1.6 + 12.4 / max(panels, 4)),
      wide=True,
    )
    for number in numbers
  ]


def _map(figure: Any, *, map_RTS: np.ndarray, tokens_T: np.ndarray) -> bool:
  shown_R = _spaced(map_RTS.shape[0], _MOST_PANELS)
  panels = figure.subplots(1, len(shown_R), squeeze=False, sharey=True)[0]
  labels, places = [_visible(token) for token in tokens_T], range(len(tokens_T))
  for axes, r in zip(panels, shown_R, strict=True):
    axes.imshow(map_RTS[r], cmap="Blues", vmin=0.0)
    axes.set_title(f"loop {r + 1}", fontsize=11, fontweight="normal")
    axes.set_xticks(places, labels, rotation=90, fontsize=8, parse_math=False)
    axes.grid(visible=False)
    axes.tick_params(length=0)
  panels[0].set_yticks(places, labels, fontsize=8, parse_math=False)
  return True


def _spaced(count: int, most: int) -> list[int]:
  """Gives at most so many of 0 .. count - 1, the first and the last among them."""
  return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})


def _visible(token: str) -> str:
  """A token with its space and line ends to be seen, and a box for a part of a character."""
  return token.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥").replace("\ufffd", "▯")
