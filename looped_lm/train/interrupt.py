"""Signals that ask a run to stop: it saves where it is, and the same command goes on from there.

SIGTERM is what schedulers send before they take a machine away, SIGINT is Ctrl-C. The first of
either ends the run after the step that is being taken; a second SIGINT ends it at once, from the
last checkpoint. While no run trains, signals do what they always do.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(Exception):
  """Raised by a signal inside `Interrupts.at_once`."""


class Interrupts:
  """Listens for signals while it is entered.

  Args:
    agreed: With several processes, step -> whether all of them shall stop after it: a signal may
      reach one of them alone, and all must save the same step. It then listens for SIGTERM itself.
      None is for one process.
    progress: Told that the run will stop.
  """

  def __init__(
    self,
    *,
    agreed: Callable[[int], bool] | None = None,
    progress: Callable[[str], None] = print,
  ) -> None:
    self.received: signal.Signals | None = None
    self.stops = False
    self._agreed = agreed
    self._progress = progress
    self._immediate = False
    self._before: dict[signal.Signals, Any] = {}

  def __enter__(self) -> Self:
    # Python lets the main thread alone listen for signals; a run in another one is not stopped.
    if threading.current_thread() is threading.main_thread():
      for number in _SIGNALS if self._agreed is None else (signal.SIGINT,):
        self._before[number] = signal.signal(number, self._receive)
    return self

  def __exit__(self, *exception: object) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
    self._before = {}

  def due(self, step: int) -> bool:
    """Whether to stop after this step; call it once for every step."""
    asked = self._agreed(step) if self._agreed is not None else self.received is not None
    self.stops = self.stops or asked
    return self.stops

  @contextlib.contextmanager
  def at_once(self) -> Iterator[None]:
    """Inside, a signal raises `Interrupted` instead of waiting; for what can be done again.

    With several processes it waits all the same: they leave their common work together.
    """
    if self._agreed is not None:
      yield
      return
    self._immediate = True
    try:
      if self.received is not None:
        raise Interrupted
      yield
    finally:
      self._immediate = False
      self.stops = self.stops or self.received is not None

  @property
  def asked(self) -> bool:
    """Whether a signal came, even too late to stop the run: nothing shall be begun after it.

    With several processes that is what they agreed on, which is the same for all.
    """
    return self.stops or (self._agreed is None and self.received is not None)

  @property
  def exit_code(self) -> int:
    """0 after SIGTERM, as schedulers want it; after SIGINT what shells expect, so scripts stop."""
    return 128 + signal.SIGINT if self.received is signal.SIGINT else 0

  def _receive(self, number: int, frame: FrameType | None) -> None:
    del frame
    if self.received is not None:
      if number == signal.SIGINT:
        raise KeyboardInterrupt
      return
    self.received = signal.Signals(number)
    if self._agreed is not None:  # The processes agree by the signal that schedulers send.
      os.kill(os.getpid(), signal.SIGTERM)
    again = "" if number == signal.SIGTERM else " Once more to stop at once, from the last one."
    self._progress(f"{self.received.name}: saving a checkpoint after this step.{again}")
    if self._immediate:
      raise Interrupted
