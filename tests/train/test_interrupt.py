"""Signals: the first asks a run to save and stop, a second Ctrl-C ends it at once."""

import os
import signal

import pytest

from looped_lm.train.interrupt import Interrupted, Interrupts


def send(number):
  os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_first_signal_stops_after_the_step_and_says_so(number, code):
  said = []
  with Interrupts(progress=said.append) as interrupts:
    assert not interrupts.due(1)
    send(number)
    assert interrupts.due(2)
    send(signal.SIGTERM)  # Schedulers repeat themselves.
    assert interrupts.due(3)
  assert interrupts.stops
  assert interrupts.exit_code == code
  assert len(said) == 1
  assert f"{signal.Signals(number).name}: saving a checkpoint after this step." in said[0]


def test_a_second_ctrl_c_does_not_wait():
  with Interrupts(progress=lambda _: None):
    send(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
      send(signal.SIGINT)


def test_what_can_be_done_again_is_left_at_once():
  with Interrupts(progress=lambda _: None) as interrupts:
    with pytest.raises(Interrupted), interrupts.at_once():
      send(signal.SIGTERM)
    assert interrupts.stops
    with pytest.raises(Interrupted), interrupts.at_once():
      pytest.fail("the run shall stop, so nothing new begins")


def test_handlers_are_those_of_before_once_the_run_is_over():
  before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
  with Interrupts(progress=lambda _: None):
    assert signal.getsignal(signal.SIGTERM) != before[0]
  assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_several_processes_stop_where_they_agreed():
  """SIGTERM is left to those who agree; what came to this process alone does not count."""
  before = signal.getsignal(signal.SIGTERM)
  with Interrupts(agreed=lambda step: step >= 5, progress=lambda _: None) as interrupts:
    assert signal.getsignal(signal.SIGTERM) == before
    with interrupts.at_once():
      assert [interrupts.due(step) for step in (3, 4, 5, 6)] == [False, False, True, True]
