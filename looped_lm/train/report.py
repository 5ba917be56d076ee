"""The report of a run: one HTML file that stands alone, and its pictures as PNG files."""

import base64
from collections.abc import Callable, Mapping, Sequence
from html import escape
import itertools
import json
from typing import Any

from etils import epath

from looped_lm.train import metrics, views
from looped_lm.train.plots import gallery
from looped_lm.train.plots import series as plots
from looped_lm.train.plots.canvas import Plot
from looped_lm.train.plots.series import Record

FILE = "report.html"
INSTALL_PLOTS = "pip install 'looped-lm[plots]'"

_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 76rem; color: #1f2937;
  background: #f8fafc; font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .75rem; }
p { margin: .25rem 0 1rem; color: #4b5563; max-width: 46rem; }
.card { background: #fff; border: 1px solid #e5e7eb; border-radius: 10px; padding: 1rem; }
.scroll { overflow-x: auto; }
.columns { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .6rem; text-align: right; border-bottom: 1px solid #eef0f3; }
th { font-weight: 600; color: #374151; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
td.text { text-align: left; overflow-wrap: anywhere; }
figure { margin: 0; }
.wide { grid-column: 1 / -1; }
img { display: block; width: 100%; height: auto; }
figcaption { margin-top: .5rem; font-size: .9rem; color: #6b7280; }
.note { border-left: 4px solid #D55E00; background: #fff7ed; padding: .75rem 1rem; }
code, pre { font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, monospace; }
code { background: #eef2f7; padding: .1rem .3rem; border-radius: 4px; }
pre { overflow-x: auto; margin: 0; }
summary { cursor: pointer; font-weight: 600; }
"""


def write_report(
  workdir: str,
  *,
  facts: Mapping[str, str] | None = None,
  progress: Callable[[str], None] = print,
) -> str:
  """Writes WORKDIR/report.html and WORKDIR/plots/*.png from the run's files.

  Without matplotlib the report says how to install it, and has all but the pictures.

  Args:
    workdir: The run's folder, with metrics.jsonl and, where they exist, config.json and run.json.
    facts: Further lines of the summary, e.g. {"Parameters": "12,330,004"}.
    progress: Gets what the reader of the screen should know.

  Returns:
    The path of the report.

  Raises:
    UserError: There are no metrics.
  """
  folder = epath.Path(workdir)
  records = metrics.read(workdir)
  try:
    pictures, missing = gallery.draw(records, views.read(workdir))
  except ImportError as error:
    pictures, missing = {}, None
    progress(f"The report has no plots ({error}): {INSTALL_PLOTS}, then write it again.")
  for plot in itertools.chain.from_iterable(pictures.values()):
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    (folder / "plots" / f"{plot.name}.png").write_bytes(plot.png)
  name = folder.name or str(workdir)
  text = _page(
    name=name,
    summary={**_run_facts(folder), **(facts or {}), **_final_facts(records)},
    loops=_loop_table(records),
    depths=_depth_table(records),
    pictures=_pictures(pictures, missing),
    config=_text(folder / "config.json"),
  )
  path = folder / FILE
  path.write_text(text)
  return str(path)


def _run_facts(folder: epath.Path) -> dict[str, str]:
  """What the run's record says of it."""
  if not (folder / "run.json").exists():
    return {}
  starts = json.loads((folder / "run.json").read_text())["starts"]
  last = starts[-1]
  kinds = ", ".join(f"{count} × {kind}" for kind, count in last["devices"]["kinds"].items())
  overrides = ", ".join(f"{k}={json.dumps(v)}" for k, v in last["overrides"].items())
  facts = {"Started": starts[0]["time"], "Devices": kinds, "Seed": str(last["seed"])}
  if len(starts) > 1:
    facts["Resumed"] = f"{len(starts) - 1} time(s), last from step {last['step']:,}"
  if overrides:
    facts["Overrides"] = overrides
  if last["git"]:
    changed = ", with uncommitted changes" if last["git"]["dirty"] else ""
    facts["Commit"] = last["git"]["commit"][:12] + changed
  facts["Versions"] = ", ".join(
    f"{package} {last['versions'][package]}" for package in ("jax", "flax", "python")
  )
  return facts


def _final_facts(records: Sequence[Record]) -> dict[str, str]:
  """The last value of what matters."""
  facts = {"Steps": f"{max((record['step'] for record in records), default=0):,.0f}"}
  for name, label, form in (
    ("train/words_seen", "Words seen", "{:,.0f}"),
    ("train/tokens_seen", "Tokens seen", "{:,.0f}"),
    ("train/tokens_per_second", "Tokens per second, last", "{:,.0f}"),
    ("train/loss_nats", "Training loss, last", "{:.4f} nats per token"),
  ):
    value = _last(records, name)
    if value is not None:
      facts[label] = form.format(value)
  for mode in plots.modes(records):
    loss = _last(records, f"eval/{mode}/loss_nats")
    accuracy = _last(records, f"eval/{mode}/accuracy")
    if loss is not None:
      text = f"{loss:.4f} nats per token"
      if accuracy is not None:
        text += f", accuracy {accuracy:.1%}"
      facts[f"Held-out loss, {plots.mode_name(mode)}"] = text
  unigram = _last(records, "eval/unigram/held_out_cross_entropy_nats")
  entropy = _last(records, "eval/unigram/train_entropy_nats")
  if unigram is not None:
    facts["Unigram model, held out"] = f"{unigram:.4f} nats per token"
  if entropy is not None:
    facts["Unigram entropy, training"] = f"{entropy:.4f} nats per token"
  return facts


def _loop_table(records: Sequence[Record]) -> str:
  """The loss of every mode and the state's size after each loop, at the last evaluation."""
  modes = [m for m in plots.modes(records) if plots.loops(records, f"eval/{m}/loop", "loss_nats")]
  numbers = set(plots.loops(records, "eval/loop", "state_rms"))
  for mode in modes:
    numbers.update(plots.loops(records, f"eval/{mode}/loop", "loss_nats"))
  if not numbers:
    return "<p>No loop was evaluated on its own.</p>"
  columns = [
    (f"eval/{mode}/loop/{{:02}}/loss_nats", f"{plots.mode_name(mode)} loss, nats") for mode in modes
  ]
  columns.append(("eval/loop/{:02}/state_rms", "state RMS"))
  head = "".join(f"<th>{escape(title)}</th>" for _, title in columns)
  rows = []
  for r in sorted(numbers):
    cells = (_last(records, name.format(r)) for name, _ in columns)
    rows.append(f"<tr><td>{r}</td>" + "".join(f"<td>{_number(c)}</td>" for c in cells) + "</tr>")
  return f"<table><tr><th>loop</th>{head}</tr>{''.join(rows)}</table>"


def _depth_table(records: Sequence[Record]) -> str:
  """Loss and accuracy of every mode in runs of R loops, at the last evaluation."""
  numbers = plots.loops(records, "eval/depth", "state_rms")
  if not numbers:
    return ""
  trained = plots.trained_loops(numbers)
  columns = []
  for mode in plots.modes(records):
    if plots.loops(records, "eval/depth", f"{mode}_loss_nats"):
      name = plots.mode_name(mode)
      columns.append((f"eval/depth/{{:02}}/{mode}_loss_nats", f"{name} loss, nats"))
      columns.append((f"eval/depth/{{:02}}/{mode}_accuracy", f"{name} accuracy"))
  columns.append(("eval/depth/{:02}/state_rms", "state RMS"))
  rows = []
  for r in numbers:
    cells = "".join(f"<td>{_number(_last(records, name.format(r)))}</td>" for name, _ in columns)
    own = ", the model's own" if r == trained else ", deeper" if r > trained else ""
    rows.append(f"<tr><td>{r}{own}</td>{cells}</tr>")
  head = "".join(f"<th>{escape(title)}</th>" for _, title in columns)
  table = f"<table><tr><th>loops run</th>{head}</tr>{''.join(rows)}</table>"
  return f"<h2>Depth by depth</h2><div class='card scroll'>{table}</div>"


def _pictures(pictures: Mapping[str, Sequence[Plot]], missing: Sequence[str] | None) -> str:
  if missing is None:
    return (
      "<h2>Curves</h2><p class='note'>The plots are missing because matplotlib is not installed. "
      f"<code>{escape(INSTALL_PLOTS)}</code>, then write the report again.</p>"
    )
  sections = ""
  for heading, plots_ in pictures.items():
    if plots_:
      figures = "".join(_figure(plot) for plot in plots_)
      sections += f"<h2>{escape(heading)}</h2><div class='columns'>{figures}</div>"
  absent = ""
  if missing:
    listed = ", ".join(name.replace("_", " ") for name in missing)
    absent = f"<p>Not drawn, because the run logged no such figures: {escape(listed)}.</p>"
  return sections + absent


def _figure(plot: Plot) -> str:
  return (
    f"<figure class='card{' wide' if plot.wide else ''}'><img alt='{escape(plot.caption)}' "
    f"src='data:image/png;base64,{base64.b64encode(plot.png).decode()}'>"
    f"<figcaption>{escape(plot.caption)} <code>plots/{plot.name}.png</code></figcaption></figure>"
  )


def _page(
  *,
  name: str,
  summary: Mapping[str, str],
  loops: str,
  depths: str,
  pictures: str,
  config: str | None,
) -> str:
  rows = "".join(
    f"<tr><td>{escape(key)}</td><td class='text'>{escape(value)}</td></tr>"
    for key, value in summary.items()
  )
  settings = ""
  if config is not None:
    settings = (
      "<h2>Configuration</h2><details class='card'><summary>config.json</summary>"
      f"<pre>{escape(config)}</pre></details>"
    )
  return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)} · looped_lm</title>
<style>{_CSS}</style>
</head>
<body>
<h1>{escape(name)}</h1>
<p>A looped language model, trained with looped_lm.</p>
<div class="columns">
<section><h2>Summary</h2><div class="card scroll"><table>{rows}</table></div></section>
<section><h2>Loop by loop</h2><div class="card scroll">{loops}</div></section>
</div>
{depths}
{pictures}
{settings}
</body>
</html>
"""


def _last(records: Sequence[Record], name: str) -> float | None:
  values = plots.series(records, name)[1]
  return values[-1] if values else None


def _number(value: float | None) -> str:
  return "–" if value is None else f"{value:.4f}"


def _text(path: Any) -> str | None:
  return path.read_text() if path.exists() else None
