"""The watchdog: one line for a hang, one for its end, and silence otherwise."""

import threading

from looped_lm.train.watchdog import Watchdog


def test_a_step_that_takes_too_long_is_reported_once_with_what_to_do():
  said, now = [], [0.0]
  dog = Watchdog(60, where="process 1 of 2", report=said.append, clock=lambda: now[0])
  dog.beat("step 7")
  now[0] = 59.0
  dog.look()
  assert said == []
  now[0] = 61.0
  dog.look()
  dog.look()
  assert len(said) == 1
  assert said[0].startswith("Watchdog, process 1 of 2: step 7 has not ended after 61 s")
  assert "give the same command again" in said[0]
  assert "\n" not in said[0]
  now[0] = 75.0
  dog.beat("step 8")
  assert said[1:] == ["Watchdog, process 1 of 2: step 7 went on after 75 s."]
  now[0] = 80.0
  dog.look()
  assert len(said) == 2


def test_it_watches_from_a_thread_that_ends_with_it():
  said, heard = [], threading.Event()

  def report(line):
    said.append(line)
    heard.set()

  with Watchdog(0.02, report=report) as dog:
    dog.beat("step 1")
    assert heard.wait(10)
  assert "step 1 has not ended" in said[0]
  assert "watchdog" not in [thread.name for thread in threading.enumerate()]


def test_zero_seconds_watch_nothing():
  with Watchdog(0):
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]
