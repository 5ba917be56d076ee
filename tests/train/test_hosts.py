"""What is told of several processes before they look for each other: a mistake is one clear line.

tests/reliability/test_two_processes.py joins.
"""

import jax
import pytest

from looped_lm.errors import UserError
from looped_lm.train.parallel import hosts

ADDRESS = "127.0.0.1:1234"
WHOLE = {
  "mode": "auto",
  "coordinator": ADDRESS,
  "num_processes": 2,
  "process_id": 0,
  "lost_process_seconds": 100,
}
NONE = {"coordinator": None, "num_processes": None, "process_id": None}
TOGETHER = "--coordinator, --num_processes, --process_id are given together."
HOST_AND_PORT = "must be HOST:PORT of process 0"


@pytest.fixture
def joined(monkeypatch):
  """What JAX was asked to join; it joins nothing."""
  calls = []
  monkeypatch.setattr(
    jax.distributed, "initialize", lambda *arguments, **named: calls.append((*arguments, named))
  )
  return calls


@pytest.mark.parametrize(
  ("changes", "expected"),
  [
    (
      {"num_processes": None, "process_id": None},
      f"--num_processes, --process_id missing; {TOGETHER}",
    ),
    ({**NONE, "num_processes": 2}, f"--coordinator, --process_id missing; {TOGETHER}"),
    (
      {"coordinator": None, "num_processes": None},
      f"--coordinator, --num_processes missing; {TOGETHER}",
    ),
    ({"process_id": None}, f"--process_id missing; {TOGETHER}"),
    ({"num_processes": None}, f"--num_processes missing; {TOGETHER}"),
    ({"coordinator": None}, f"--coordinator missing; {TOGETHER}"),
    ({"mode": "on", "process_id": None}, f"--process_id missing; {TOGETHER}"),
    ({"mode": "off"}, "--coordinator has no meaning with --distributed=off"),
    ({"mode": "off", **NONE, "num_processes": 2}, "--num_processes has no meaning with"),
    ({"mode": "off", **NONE, "process_id": 0}, "--process_id has no meaning with"),
    ({"num_processes": 0}, "--num_processes=0 must be at least 1"),
    ({"process_id": 2}, r"--process_id=2 must lie in [0, 1]."),
    ({"process_id": -1}, r"--process_id=-1 must lie in [0, 1]."),
    ({"coordinator": ""}, HOST_AND_PORT),
    ({"coordinator": "localhost"}, HOST_AND_PORT),
    ({"coordinator": ":1234"}, HOST_AND_PORT),
    ({"coordinator": "localhost:0"}, HOST_AND_PORT),
    ({"coordinator": "localhost:65536"}, HOST_AND_PORT),
    ({"coordinator": "http://localhost:80"}, HOST_AND_PORT),
    ({"coordinator": "fe80::1"}, HOST_AND_PORT),
    ({"lost_process_seconds": 0}, "parallel.lost_process_seconds=0 must be at least 1."),
  ],
)
def test_what_cannot_be_joined_is_one_line_before_anything_is_waited_for(joined, changes, expected):
  with pytest.raises(UserError) as error:
    hosts.join(**WHOLE | changes)
  assert expected in str(error.value)
  assert "\n" not in str(error.value)
  assert not joined


@pytest.mark.parametrize("coordinator", ["10.0.0.1:1234", "node-1.a_b:65535", "[fe80::1%eth0]:1"])
def test_an_address_goes_to_jax_as_it_is(joined, coordinator):
  hosts.join(**WHOLE | {"coordinator": coordinator})
  assert joined == [(coordinator, 2, 0, {"heartbeat_timeout_seconds": 100})]


def test_off_asks_nobody(joined):
  hosts.join(**WHOLE | NONE | {"mode": "off"})
  assert not joined


@pytest.mark.parametrize(
  "missing", ["Number of processes", "The process id of the current process"]
)
def test_a_coordinator_that_jax_knows_does_not_say_how_many_there_are(monkeypatch, missing):
  def initialize(*_, **__):
    raise ValueError(f"{missing} must be defined.")

  monkeypatch.setattr(jax.distributed, "initialize", initialize)
  with pytest.raises(UserError, match=r"^JAX knows a coordinator here .*; give --coordinator="):
    hosts.join(**WHOLE | NONE)
