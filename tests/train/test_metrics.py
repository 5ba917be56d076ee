"""The log has every figure once, through kills and resumes."""

import json

import jax.numpy as jnp
import pytest
from tensorboardX.proto import event_pb2

from looped_lm.errors import UserError
from looped_lm.train import metrics
from looped_lm.train.metrics import Metrics


class Clock:
  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now


class Untouchable:
  """A figure the device has not finished: looking at it is an error until it is."""

  done = False

  def __array__(self, dtype=None, copy=None):
    assert self.done, "the device was made to wait"
    return jnp.float32(2.0).__array__(dtype)


def open_metrics(workdir, *, resumed_step=0, total_steps=100, **kwargs):
  lines = []
  kwargs = {"progress": lines.append} | kwargs
  opened = Metrics(str(workdir), total_steps=total_steps, resumed_step=resumed_step, **kwargs)
  return opened, lines


def log_steps(workdir, steps, **kwargs):
  opened, _ = open_metrics(workdir, **kwargs)
  with opened:
    for step in steps:
      opened.train(step, {"loss_nats": float(step)}, words_seen=step, tokens_seen=step)


def test_sums_are_divided_once_and_named(tmp_path):
  opened, _ = open_metrics(tmp_path)
  with opened:
    figures = {
      "loss_nats": (jnp.float32(6.0), jnp.float32(4.0)),
      "mntp/loss_nats": (jnp.float32(0.0), jnp.float32(0.0)),
      "learning_rate": jnp.float32(0.25),
    }
    opened.train(10, figures, words_seen=100, tokens_seen=130)
    opened.write(10, {"eval/clm/loss_nats": (9.0, 2.0)})
  assert metrics.read(tmp_path) == [
    {
      "step": 10,
      "train/loss_nats": 1.5,
      "train/learning_rate": 0.25,
      "train/words_seen": 100,
      "train/tokens_seen": 130,
    },
    {"step": 10, "eval/clm/loss_nats": 4.5},
  ]


def test_figures_are_fetched_one_interval_later(tmp_path):
  opened, _ = open_metrics(tmp_path)
  first, second = Untouchable(), Untouchable()
  assert opened.train(1, {"x": first}, words_seen=0, tokens_seen=0) is None
  first.done = True
  assert opened.train(2, {"x": second}, words_seen=0, tokens_seen=0)["train/x"] == 2.0
  second.done = True
  assert opened.flush()["train/x"] == 2.0
  assert opened.flush() is None
  opened.close()
  assert [record["step"] for record in metrics.read(tmp_path)] == [1, 2]


def test_speed_and_time_left_leave_out_what_is_paused(tmp_path):
  clock = Clock()
  opened, lines = open_metrics(tmp_path, clock=clock)
  with opened:
    for step in (10, 20):
      clock.now += 5
      with opened.paused():
        clock.now += 1000
      opened.train(step, {"loss_nats": 4.25}, words_seen=step * 1000, tokens_seen=step * 2000)
  assert lines == [
    "step  10/100  loss 4.2500     10k words",
    "step  20/100  loss 4.2500      4k tokens/s     20k words  40s left",
  ]


def test_waiting_for_the_device_is_no_pause(tmp_path):
  clock = Clock()

  class Slow:
    def __array__(self, dtype=None, copy=None):
      clock.now += 4  # The device still trains.
      return jnp.float32(1.0).__array__(dtype)

  opened, lines = open_metrics(tmp_path, clock=clock)
  with opened:
    opened.train(10, {"loss_nats": Slow()}, words_seen=0, tokens_seen=0)
    with opened.paused():
      clock.now += 1000
    opened.train(20, {"loss_nats": 1.0}, words_seen=0, tokens_seen=400)
  assert "100 tokens/s" in lines[1]


def test_what_is_not_finite_survives(tmp_path):
  opened, _ = open_metrics(tmp_path)
  with opened:
    opened.write(1, {"a": float("nan"), "b": float("inf"), "c": -float("inf")})
  line = json.loads((tmp_path / "metrics.jsonl").read_text())
  assert line == {"step": 1, "a": "nan", "b": "inf", "c": "-inf"}
  (record,) = metrics.read(tmp_path)
  assert record["a"] != record["a"]
  assert (record["b"], record["c"]) == (float("inf"), -float("inf"))


def test_a_resumed_log_equals_an_undisturbed_one(tmp_path):
  log_steps(tmp_path / "undisturbed", [5, 10, 15, 20])
  disturbed = tmp_path / "disturbed"
  log_steps(disturbed, [5, 10, 15])
  with open(disturbed / "metrics.jsonl", "a") as file:
    file.write('{"step": 15, "eval')  # Killed while writing.
  log_steps(disturbed, [15, 20], resumed_step=10)
  steps = [record["step"] for record in metrics.read(disturbed)]
  assert steps == [5, 10, 15, 20]
  untimed = [
    [{k: v for k, v in r.items() if "per_second" not in k} for r in metrics.read(tmp_path / name)]
    for name in ("undisturbed", "disturbed")
  ]
  assert untimed[0] == untimed[1]


def test_a_new_run_begins_a_new_log(tmp_path):
  log_steps(tmp_path, [5, 10])
  log_steps(tmp_path, [5], resumed_step=0)
  assert [record["step"] for record in metrics.read(tmp_path)] == [5]


def test_a_damaged_log_is_named(tmp_path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nrubbish\n{"step": 2}\n')
  with pytest.raises(UserError, match="line 2"):
    metrics.read(tmp_path)
  with pytest.raises(UserError, match="does not exist"):
    metrics.read(tmp_path / "elsewhere")


def test_other_processes_write_nothing(tmp_path):
  opened, lines = open_metrics(tmp_path / "run", writes=False)
  with opened:
    opened.train(1, {"loss_nats": 1.0}, words_seen=1, tokens_seen=1)
    assert opened.flush() is not None
  assert not lines
  assert not (tmp_path / "run").exists()


def events(workdir):
  """Reads (step, tag, value) of all TensorBoard files."""
  found = []
  for path in sorted((workdir / "tensorboard").iterdir()):
    data = path.read_bytes()
    while data:
      size = int.from_bytes(data[:8], "little")
      event = event_pb2.Event.FromString(data[12 : 12 + size])
      data = data[12 + size + 4 :]
      found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
  return found


def test_tensorboard_has_the_same_figures(tmp_path):
  log_steps(tmp_path, [5, 10])
  assert (10, "train/loss_nats", 10.0) in events(tmp_path)
  assert (5, "train/words_seen", 5.0) in events(tmp_path)


def test_a_log_that_cannot_be_written_is_one_message(tmp_path):
  opened, _ = open_metrics(tmp_path)
  opened._log._file.close()
  opened._log._file = open("/dev/full", "w")  # noqa: SIM115
  with pytest.raises(UserError, match=r"metrics\.jsonl cannot be written \(No space left"), opened:
    opened.write(3, {"loss": 1.0})


class FullBoard:
  def add_scalar(self, *_):
    raise OSError(28, "No space left on device")

  flush = close = add_scalar


def test_without_tensorboard_the_log_goes_on(tmp_path):
  opened, lines = open_metrics(tmp_path)
  opened._board.close()
  opened._board = FullBoard()
  with opened:
    opened.write(3, {"loss": 1.0})
    opened.write(4, {"loss": 2.0})
  told = "No more TensorBoard files (No space left on device); metrics.jsonl has it all."
  assert lines == [told]
  assert [each["step"] for each in metrics.read(str(tmp_path))] == [3, 4]
