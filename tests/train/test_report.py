"""The report shows what was logged, with and without matplotlib."""

import base64
import builtins
from html.parser import HTMLParser
import math
import re

import numpy as np
import pytest

from looped_lm.errors import UserError
from looped_lm.train import metrics, report, run_record, views
from looped_lm.train.plots import series as plots

PNG = b"\x89PNG\r\n\x1a\n"
PICTURES = (
  *("loss", "spectral_radius", "drive_norm", "learning_rate", "gradient_norm"),
  *("tokens_per_second", "loss_by_depth", "loss_by_loop", "loss_by_loop_over_time", "state_rms"),
  *("scores", "movement", "gate_openness", "logit_lens_1", "logit_lens_2"),
  *("attention_layer_1", "attention_layer_2"),
)


def log_run(workdir, *, injection=True, num_loops=3):
  """Two evaluations of a run whose figures are easy to recognise."""
  run_record.write(
    str(workdir),
    {"seed": 5, "model": {"num_loops": num_loops}},
    overrides={"model.num_loops": num_loops},
    changes={},
    step=0,
  )
  with metrics.Metrics(
    str(workdir), total_steps=20, resumed_step=0, progress=lambda line: None
  ) as log:
    for step in (10, 20):
      figures = {
        "loss_nats": 40.0 / step,
        "clm/loss_nats": 38.0 / step,
        "mntp/loss_nats": 42.0 / step,
        "grad_norm": 1.0,
        "learning_rate": 0.01,
      }
      log.train(step, figures, words_seen=step * 100, tokens_seen=step * 130)
      evaluated = {
        "eval/unigram/held_out_cross_entropy_nats": 6.5,
        "eval/unigram/train_entropy_nats": 6.25,
        "eval/blimp/causal/score_percent": 50.0 + step,
      }
      for mode in ("clm", "mntp"):
        evaluated |= {f"eval/{mode}/loss_nats": 3.125, f"eval/{mode}/accuracy": 0.25}
        for r in range(1, num_loops + 1):
          evaluated[f"eval/{mode}/loop/{r:02}/loss_nats"] = 4.0 - r / 10 - step / 1000
      for r in range(1, num_loops + 1):
        evaluated[f"eval/loop/{r:02}/state_rms"] = r / 2
      if injection:
        evaluated |= {"eval/injection/rho_max": 0.6, "eval/injection/rho_mean": 0.4}
        evaluated["eval/injection/drive_norm"] = 0.9
      log.write(step, evaluated)
    log.write(20, diagnosed(num_loops))
  views.write(str(workdir), looked_at(num_loops))


def diagnosed(num_loops):
  """Figures of depths and loops up to twice the model's own; one of them is no number."""
  figures = {}
  for depth in (1, 2, num_loops, 2 * num_loops):
    for mode in ("clm", "mntp"):
      figures[f"eval/depth/{depth:02}/{mode}_loss_nats"] = 4.0 - depth / 10
      figures[f"eval/depth/{depth:02}/{mode}_accuracy"] = depth / 100
    figures[f"eval/depth/{depth:02}/state_rms"] = depth / 2
  figures[f"eval/depth/{2 * num_loops:02}/mntp_loss_nats"] = math.nan
  for loop in range(1, 2 * num_loops + 1):
    for kind in ("step_size", "cosine", "token_correlation", "gate_openness"):
      figures[f"eval/loop/{loop:02}/{kind}"] = 1 / loop
  return figures


def looked_at(num_loops):
  """Two snippets, one shorter; tokens that a plot could take for formulas or lacks a sign for."""
  tokens = np.array([["<s>", " a$b$", "\n"], ["<s>", "語\ufffd", ""]])
  ones = np.ones((num_loops, 2, 3, 2), np.float32)
  lens = {
    "token_BT": tokens,
    "target_BT": np.roll(tokens, -1, axis=1),
    "top_RBTK": np.broadcast_to(tokens[None, ..., None], ones.shape),
    "probability_RBTK": ones / 4,
    "target_probability_RBT": ones[..., 0] / 4,
  }
  maps = {f"core_layer_{layer}_RTS": ones[..., 0] for layer in (1, 2)}
  return {"logit_lens": lens, "attention_maps": {"token_T": tokens[0, :2], **maps}}


class Page(HTMLParser):
  """Collects table rows and images, and checks that every element is closed."""

  def __init__(self, text):
    super().__init__()
    self.open, self.rows, self.images = [], [], []
    self.feed(text)
    assert not self.open

  def handle_starttag(self, tag, attrs):
    if tag == "img":
      self.images.append(dict(attrs)["src"])
    if tag == "tr":
      self.rows.append([])
    if tag in ("td", "th"):
      self.rows[-1].append("")
    if tag not in ("img", "meta"):
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if self.open and self.open[-1] in ("td", "th"):
      self.rows[-1][-1] += data


def write(workdir, **kwargs):
  lines = []
  path = report.write_report(str(workdir), progress=lines.append, **kwargs)
  with open(path) as file:
    return file.read(), lines


def test_the_report_has_every_picture_and_number(tmp_path):
  log_run(tmp_path)
  text, lines = write(tmp_path, facts={"Parameters": "12 <b> & more"})
  page = Page(text)
  assert not lines
  files = sorted(path.name for path in (tmp_path / "plots").iterdir())
  assert files == sorted(f"{name}.png" for name in PICTURES)
  assert len(page.images) == len(files)
  for source in page.images:
    png = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    assert png.startswith(PNG)
  summary = {row[0]: row[1] for row in page.rows if len(row) == 2}
  assert summary["Parameters"] == "12 <b> & more"
  assert summary["Steps"] == "20"
  assert summary["Words seen"] == "2,000"
  assert summary["Training loss, last"] == "2.0000 nats per token"
  assert summary["Held-out loss, causal"] == "3.1250 nats per token, accuracy 25.0%"
  assert summary["Unigram model, held out"] == "6.5000 nats per token"
  assert summary["Overrides"] == "model.num_loops=3"
  loops = [row for row in page.rows if len(row) == 4]
  assert loops == [
    ["loop", "causal loss, nats", "masked next token loss, nats", "state RMS"],
    ["1", "3.8800", "3.8800", "0.5000"],
    ["2", "3.7800", "3.7800", "1.0000"],
    ["3", "3.6800", "3.6800", "1.5000"],
  ]
  depths = [row for row in page.rows if len(row) == 6]
  assert [row[0] for row in depths] == ["loops run", "1", "2", "3, the model's own", "6, deeper"]
  assert depths[-1][1:] == ["3.4000", "0.0600", "nan", "0.0600", "3.0000"]


def test_the_report_stands_alone(tmp_path):
  log_run(tmp_path)
  text, _ = write(tmp_path)
  assert not re.search(r"""(?:src|href)=["'](?!data:)""", text)
  assert "width=device-width" in text


def test_what_was_not_logged_is_said(tmp_path):
  log_run(tmp_path, injection=False)
  text, _ = write(tmp_path)
  assert "the run logged no such figures: spectral radius, drive norm." in text
  assert not (tmp_path / "plots" / "spectral_radius.png").exists()


def test_a_run_without_evaluations_is_reported(tmp_path):
  with metrics.Metrics(
    str(tmp_path), total_steps=5, resumed_step=0, progress=lambda line: None
  ) as log:
    log.train(5, {"loss_nats": float("nan")}, words_seen=1, tokens_seen=1)
  text, _ = write(tmp_path)
  assert "No loop was evaluated" in text
  assert "nan nats per token" in text


def test_without_matplotlib_only_the_plots_are_missing(tmp_path, monkeypatch):
  log_run(tmp_path)
  real = builtins.__import__

  def absent(name, *args, **kwargs):
    if name.startswith("matplotlib"):
      raise ImportError(f"No module named {name!r}")
    return real(name, *args, **kwargs)

  monkeypatch.setattr(builtins, "__import__", absent)
  text, lines = write(tmp_path)
  command = "pip install 'looped-lm[plots]'"
  assert command in text.replace("&#x27;", "'")
  assert any(command in line for line in lines)
  assert not Page(text).images
  assert "3.1250 nats per token" in text


def test_no_metrics_no_report(tmp_path):
  with pytest.raises(UserError, match="train first"):
    report.write_report(str(tmp_path))


def test_smoothing_keeps_constants_and_slopes():
  assert plots.smooth([3.0] * 20, window=4) == pytest.approx([3.0] * 20)
  rising = plots.smooth([float(i) for i in range(41)], window=4)
  assert rising[20] == pytest.approx(20.0)  # No lag.
  assert plots.smooth([1.0, math.nan, 1.0], window=2) == pytest.approx([1.0, 1.0, 1.0])
  assert math.isnan(plots.smooth([math.nan], window=2)[0])


def test_a_repeated_step_shows_its_last_value():
  records = [{"step": 2, "a": 1.0}, {"step": 1, "a": 5.0}, {"step": 2, "a": 3.0}, {"step": 3}]
  assert plots.series(records, "a") == ([1, 2], [5.0, 3.0])
