"""A watchdog: says so when the run has made no progress for long.

It only speaks. A step may wait for the network or for a compiler, and what hangs for good (a
device, a process of another host) no thread of this one can mend.
"""

from collections.abc import Callable
import threading
import time
from typing import Self


class Watchdog:
  """Watches from a thread of its own, because the one that trains is the one that hangs.

  Use as a context manager, and call `beat` whenever something new begins.

  Args:
    seconds: How long without a beat is too long; 0 watches nothing.
    where: Who speaks, e.g. "process 1 of 4"; "" for one process.
    report: Gets one line for a hang and one for its end.
    clock: Seconds.
  """

  def __init__(
    self,
    seconds: float,
    *,
    where: str = "",
    report: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    self._seconds = seconds
    self._where = f", {where}" if where else ""
    self._report = report
    self._clock = clock
    self._lock = threading.Lock()
    self._end = threading.Event()
    self._what = "the start"
    self._since = clock()
    self._reported = False
    self._thread: threading.Thread | None = None

  def __enter__(self) -> Self:
    if self._seconds > 0:
      self._since = self._clock()
      self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
      self._thread.start()
    return self

  def __exit__(self, *exception: object) -> None:
    if self._thread is not None:
      self._end.set()
      self._thread.join()

  def beat(self, what: str) -> None:
    """Says what begins now, e.g. "step 12"."""
    with self._lock:
      now = self._clock()
      if self._reported:
        self._report(f"Watchdog{self._where}: {self._what} went on after {self._age(now):.0f} s.")
      self._what, self._since, self._reported = what, now, False

  def look(self) -> None:
    """Reports a hang where there is one that was not reported yet."""
    with self._lock:
      now = self._clock()
      if self._reported or self._age(now) < self._seconds:
        return
      self._reported = True
      self._report(
        f"Watchdog{self._where}: {self._what} has not ended after {self._age(now):.0f} s "
        "(train.watchdog_seconds). If it should have, look for an error in the logs of all "
        "processes, stop the run (SIGTERM; SIGKILL where that has no effect) and give the same "
        "command again: it goes on from the last checkpoint."
      )

  def _age(self, now: float) -> float:
    return now - self._since

  def _watch(self) -> None:
    while not self._end.wait(min(self._seconds / 4, 1.0)):
      self.look()
