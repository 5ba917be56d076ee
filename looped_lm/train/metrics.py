"""What a run reports while it runs: metrics.jsonl, TensorBoard, and a line on the screen.

`WORKDIR/metrics.jsonl` has one JSON object per line, `{"step": 100, "train/loss_nats": 4.2, …}`;
several lines may share a step. A figure that is not finite is the string "nan", "inf" or "-inf",
because JSON has no such numbers; `read` turns it back.

Figures come as arrays that the device may not have finished: they are fetched when the next ones
arrive, one log interval later, so that logging never makes the device wait.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import json
import math
import time
from typing import Any, Self

from etils import epath
import numpy as np

from looped_lm.errors import UserError

_FILE = "metrics.jsonl"


class Metrics:
  """Writes a run's figures. Use as a context manager: leaving it writes what is pending."""

  def __init__(
    self,
    workdir: str,
    *,
    total_steps: int,
    resumed_step: int,
    writes: bool = True,
    progress: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    """Opens the log; lines of later steps than the resumed one are removed.

    Args:
      workdir: The run's folder; may be gs://, where the log appears at every `flush`.
      total_steps: Of the whole run, for the time left.
      resumed_step: The step the run goes on from; 0 begins a new log.
      writes: Whether this process is the one that writes; the others do nothing.
      progress: Gets each line for the screen.
      clock: Seconds, for speed and time left.

    Raises:
      UserError: The log of an earlier start cannot be read.
    """
    self._total_steps = total_steps
    self._writes = writes
    self._progress = progress
    self._clock = clock
    self._pending: dict[str, Any] | None = None
    self._mark: tuple[float, int, int] | None = None  # Clock, step and tokens of the last line.
    self._paused_seconds = 0.0
    self._log: _Log | None = None
    self._board: Any = None
    if writes:
      self._log = _Log(epath.Path(workdir) / _FILE, resumed_step=resumed_step)
      self._board = _tensorboard(workdir, resumed_step=resumed_step, progress=progress)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def train(
    self, step: int, figures: Mapping[str, Any], *, words_seen: int, tokens_seen: int
  ) -> dict[str, float] | None:
    """Takes the figures of a step and writes those of the step before.

    Args:
      step: Steps taken, this one included.
      figures: Name -> (sum, weight), or a scalar; "loss_nats" is written as "train/loss_nats". A
        ratio of weight 0 is left out: nothing was measured.
      words_seen: Words shown so far.
      tokens_seen: Corpus tokens shown so far.

    Returns:
      What was written, of an earlier step; None where nothing was pending.

    Raises:
      UserError: The log cannot be written, here and in all that writes.
    """
    now = self._clock()
    written = self._write_pending()
    extra: dict[str, Any] = {"train/words_seen": words_seen, "train/tokens_seen": tokens_seen}
    seconds_per_step = None
    if self._mark is not None:
      then, before, tokens = self._mark
      seconds = max(now - then - self._paused_seconds, 1e-9)
      extra["train/tokens_per_second"] = (tokens_seen - tokens) / seconds
      seconds_per_step = seconds / max(step - before, 1)
    self._mark, self._paused_seconds = (now, step, tokens_seen), 0.0
    named = {f"train/{name}": value for name, value in figures.items()}
    self._pending = {
      "step": step,
      "figures": named | extra,
      "seconds_per_step": seconds_per_step,
    }
    return written

  def write(self, step: int, figures: Mapping[str, Any]) -> dict[str, float]:
    """Writes figures under their own names at once, e.g. those of an evaluation.

    Args:
      step: Steps taken.
      figures: Name -> (sum, weight), or a scalar.

    Returns:
      What was written.
    """
    self._write_pending()
    values = _values(figures)
    self._put(step, values)
    return values

  def flush(self) -> dict[str, float] | None:
    """Writes what is pending, waiting for the device.

    Call it before a checkpoint of the same step is saved: a run resumed there then has the line.
    """
    written = self._write_pending()
    if self._log is not None:
      self._log.flush()
    self._on_board(lambda board: board.flush())
    return written

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Keeps the time inside, e.g. of an evaluation, out of the training speed.

    What is pending is written first: waiting for the steps before it is training time.
    """
    self._write_pending()
    start = self._clock()
    try:
      yield
    finally:
      self._paused_seconds += self._clock() - start

  def close(self) -> None:
    """Writes what is pending and closes the files."""
    try:
      self.flush()
    finally:
      if self._log is not None:
        self._log.close()
      self._on_board(lambda board: board.close())

  def _write_pending(self) -> dict[str, float] | None:
    if self._pending is None:
      return None
    pending, self._pending = self._pending, None
    values = _values(pending["figures"])
    self._put(pending["step"], values)
    if self._writes:
      seconds = pending["seconds_per_step"]
      self._progress(
        progress_line(
          pending["step"],
          values,
          total_steps=self._total_steps,
          seconds_per_step=seconds,
        )
      )
    return values

  def _put(self, step: int, values: Mapping[str, float]) -> None:
    if self._log is not None:
      self._log.put({"step": step} | {k: _encode(v) for k, v in values.items()})
    for name, value in values.items():
      self._on_board(lambda board, name=name, value=value: board.add_scalar(name, value, step))

  def _on_board(self, write: Callable[[Any], object]) -> None:
    """Writes to TensorBoard, if there is one. One that cannot write is left, and this is said."""
    if self._board is None:
      return
    try:
      write(self._board)
    except OSError as error:
      self._board = None
      self._progress(
        f"No more TensorBoard files ({error.strerror or error}); metrics.jsonl has it all."
      )


class _Log:
  """The JSONL file; appended to where it is local, rewritten at `flush` where it is not."""

  def __init__(self, path: epath.Path, *, resumed_step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [text for text, record in _parse(path) if record["step"] <= resumed_step]
    if resumed_step == 0:
      lines = []
    new = path.parent / (path.name + ".new")
    new.write_text("".join(line + "\n" for line in lines))
    new.replace(path)
    self._path = path
    self._lines: list[str] | None = lines if "://" in str(path) else None
    self._file = None if self._lines is not None else open(path, "a")  # noqa: SIM115

  def put(self, record: Mapping[str, Any]) -> None:
    line = json.dumps(record)
    if self._lines is not None:
      self._lines.append(line)
    else:
      assert self._file is not None
      with self._writing():
        self._file.write(line + "\n")
        self._file.flush()  # A killed run keeps every line.

  def flush(self) -> None:
    if self._lines is not None:
      with self._writing():
        self._path.write_text("".join(line + "\n" for line in self._lines))

  def close(self) -> None:
    if self._file is not None:
      with contextlib.suppress(OSError):  # What is not written yet has been told of.
        self._file.close()

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      raise UserError(
        f"{self._path} cannot be written ({error.strerror or error}). Free some space, or make it "
        "writable, and run the same command again to resume."
      ) from error


def exists(workdir: str) -> bool:
  """Tells whether a run has logged here."""
  return (epath.Path(workdir) / _FILE).exists()


def read(workdir: str) -> list[dict[str, float]]:
  """Reads metrics.jsonl, one dictionary per line in the order written.

  Raises:
    UserError: There is none, or a line other than a half-written last one is no JSON.
  """
  path = epath.Path(workdir) / _FILE
  if not path.exists():
    raise UserError(f"{path} does not exist; train first, or give the --workdir of a run.")
  return [{k: float(v) for k, v in record.items()} for _, record in _parse(path)]


def progress_line(
  step: int,
  values: Mapping[str, float],
  *,
  total_steps: int,
  seconds_per_step: float | None,
) -> str:
  """Sums a step up: `step  120/2000  loss 4.3120  1.2k tokens/s  98k words  3m20s left`."""
  width = len(str(total_steps))
  parts = [f"step {step:>{width}}/{total_steps}"]
  if "train/loss_nats" in values:
    parts.append(f"loss {values['train/loss_nats']:6.4f}")
  if "train/tokens_per_second" in values:
    parts.append(f"{_short(values['train/tokens_per_second']):>6} tokens/s")
  if "train/words_seen" in values:
    parts.append(f"{_short(values['train/words_seen']):>6} words")
  if seconds_per_step is not None:
    parts.append(f"{_duration((total_steps - step) * seconds_per_step)} left")
  return "  ".join(parts)


def _parse(path: epath.Path) -> list[tuple[str, dict[str, Any]]]:
  """Gives each line and what it says; a last line that was being written is dropped."""
  if not path.exists():
    return []
  lines = path.read_text().split("\n")
  records = []
  for number, line in enumerate(lines, start=1):
    if not line:
      continue
    try:
      record = json.loads(line)
      record["step"]
    except (ValueError, KeyError, TypeError) as error:
      if number == len(lines):  # No newline ended it: the run was stopped while writing.
        break
      raise UserError(
        f"{path}, line {number}, is not a metrics line ({line[:40]!r}); remove the line."
      ) from error
    records.append((line, record))
  return records


def _values(figures: Mapping[str, Any]) -> dict[str, float]:
  """Fetches figures and divides sums by weights."""
  values = {}
  for name, figure in figures.items():
    if isinstance(figure, tuple):
      total, weight = (float(np.asarray(part)) for part in figure)
      if weight != 0:
        values[name] = total / weight
      elif not math.isfinite(total):
        values[name] = total
    else:
      values[name] = float(np.asarray(figure))
  return values


def _encode(value: float) -> float | int | str:
  if not math.isfinite(value):
    return str(value)
  return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _tensorboard(workdir: str, *, resumed_step: int, progress: Callable[[str], None]) -> Any:
  """Opens the TensorBoard file, or says why there is none."""
  if "://" in str(workdir):
    progress("TensorBoard files are written to local workdirs only; metrics.jsonl has it all.")
    return None
  try:
    import tensorboardX
  except ImportError:
    progress("No TensorBoard files: pip install tensorboardX. metrics.jsonl has it all.")
    return None
  # Steps after the resumed one are hidden from an earlier start's file.
  return tensorboardX.SummaryWriter(f"{workdir}/tensorboard", purge_step=resumed_step + 1)


def _short(value: float) -> str:
  """Gives three digits and a letter: 981234 -> '981k'."""
  for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if abs(value) >= scale:
      return f"{value / scale:.3g}{letter}"
  return f"{value:.0f}"


def _duration(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours}h{minutes:02}m"
  return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"
