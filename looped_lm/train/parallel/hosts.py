"""Several processes, one run: how they find each other, agree, and end.

Every process runs the same program on its own devices. Process 0 also runs a small service by which
the others find it, and through which a lost one is noticed.
"""

from collections.abc import Callable, Iterator
import contextlib
import itertools
import os
import re
import sys
import traceback

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from looped_lm.errors import UserError

MODES = ("auto", "on", "off")
# Of all questions to `agreement`: with several runs in a process a step's number comes again.
_questions = itertools.count(1)
_NOTHING_FOUND = "coordinator_address should be defined"
_NUMBERS_MISSING = ("Number of processes must be", "process id of the current process must be")
# HOST:PORT; the brackets of an IPv6 host tell its colons from the port's.
_ADDRESS = re.compile(r"(?:[\w.-]+|\[[\w.:%]+\]):(\d{1,5})", re.ASCII)


def join(
  mode: str,
  *,
  coordinator: str | None,
  num_processes: int | None,
  process_id: int | None,
  lost_process_seconds: int,
) -> None:
  """Joins the processes of a run; comes before anything touches a device.

  Args:
    mode: "on" joins or fails, "off" runs alone, "auto" joins where JAX finds a cluster (a TPU pod,
      Slurm, Open MPI, Kubernetes) or a coordinator is given.
    coordinator: Host and port of process 0; None asks the cluster. The same holds for the next two.
    num_processes: Processes of the run.
    process_id: Which of them this is, from 0.
    lost_process_seconds: After how long without a sign of life a process counts as lost.

  Raises:
    UserError: The values contradict each other, or the processes do not find each other.
  """
  given = {
    "--coordinator": coordinator,
    "--num_processes": num_processes,
    "--process_id": process_id,
  }
  named = [name for name, value in given.items() if value is not None]
  if mode == "off":
    if named:
      raise UserError(f"{named[0]} has no meaning with --distributed=off; give one of them.")
    return
  if named and len(named) < len(given):
    missing = [name for name in given if name not in named]
    raise UserError(f"{', '.join(missing)} missing; {', '.join(given)} are given together.")
  if num_processes is not None and num_processes < 1:
    raise UserError(f"--num_processes={num_processes} must be at least 1; it counts all of them.")
  if num_processes is not None and process_id is not None:
    if not 0 <= process_id < num_processes:
      raise UserError(f"--process_id={process_id} must lie in [0, {num_processes - 1}].")
  if coordinator is not None and not _is_address(coordinator):
    raise UserError(
      f"--coordinator={coordinator} must be HOST:PORT of process 0, as in 10.0.0.1:1234 or "
      "[fe80::1]:1234, with a port from 1 to 65535."
    )
  check_patience(lost_process_seconds)
  try:
    jax.distributed.initialize(
      coordinator,
      num_processes,
      process_id,
      heartbeat_timeout_seconds=lost_process_seconds,
    )
  except ValueError as error:
    if any(words in str(error) for words in _NUMBERS_MISSING):
      raise UserError(
        "JAX knows a coordinator here (JAX_COORDINATOR_ADDRESS), but not how many processes there "
        "are and which this is; give --coordinator=HOST:PORT, --num_processes and --process_id, or "
        "--distributed=off."
      ) from error
    if _NOTHING_FOUND not in str(error):
      raise _not_joined(error) from error
    if mode == "on":
      raise UserError(
        "--distributed=on, but JAX finds no cluster here; give --coordinator=HOST:PORT, "
        "--num_processes and --process_id, or --distributed=off."
      ) from error
  except Exception as error:  # Each kind of cluster has its own.
    raise _not_joined(error) from error


def check_patience(lost_process_seconds: int) -> None:
  """Checks the config's value.

  Raises:
    UserError: It is below 1.
  """
  if lost_process_seconds < 1:
    raise UserError(f"parallel.lost_process_seconds={lost_process_seconds} must be at least 1.")


def _is_address(text: str) -> bool:
  found = _ADDRESS.fullmatch(text)
  return found is not None and 0 < int(found[1]) < 2**16


def _not_joined(error: Exception) -> UserError:
  why = " ".join(str(error).split())[:300]
  return UserError(
    f"The processes of the run did not find each other ({why}); start all of them within five "
    "minutes with the same --coordinator, or run this one alone with --distributed=off."
  )


def is_first() -> bool:
  """True in the process that writes logs, records and reports."""
  return jax.process_index() == 0


def name() -> str:
  """Says which process this is; nothing where it is the only one."""
  if jax.process_count() == 1:
    return ""
  return f"process {jax.process_index()} of {jax.process_count()}"


def wait_for_all(where: str) -> None:
  """Waits until every process is there; alone, it does not wait."""
  multihost_utils.sync_global_devices(f"looped_lm: {where}")


def smallest(num_bytes: int) -> int:
  """The smallest of all processes' sizes, to the MiB where there are several; all must call it."""
  if jax.process_count() == 1:
    return num_bytes
  return int(multihost_utils.process_allgather(np.int32(num_bytes >> 20)).min()) << 20


def agreement() -> Callable[[int], bool] | None:
  """Gives step -> whether all processes stop after it, because one was told to; None for one.

  JAX catches SIGTERM, and takes the first step that no process has begun when the news has reached
  all; after the last step of a run, that is the first one of the next. Every process asks for every
  step.
  """
  if jax.process_count() == 1:
    return None
  return lambda _: multihost_utils.reached_preemption_sync_point(next(_questions))


@contextlib.contextmanager
def together() -> Iterator[None]:
  """Ends the processes together: one that fails takes the others down instead of leaving them wait.

  An error inside is printed, a `UserError` as one line, and the process ends at once with exit code
  1: what usually happens at exit (a checkpoint being written, the farewell of the processes) would
  wait for the others. They notice the loss and come here as well. Alone, errors are left alone.
  """
  if jax.process_count() == 1:
    yield
    return
  try:
    _meet()
    yield
  except UserError as error:
    _end(str(error))
  except (jax.errors.JaxRuntimeError, ValueError, OSError, RuntimeError) as error:
    if not _lost(error):
      traceback.print_exc()
      _end("this process failed; the others stop, too.")
    why = " ".join(str(error).split())[:200]
    _end(
      f"another process is gone or does not answer ({why}). Look for its error in its log, then "
      "start all of them again with the same command: the run goes on from the last checkpoint."
    )
  except BaseException:
    traceback.print_exc()
    _end("this process failed; the others stop, too.")
  wait_for_all("the end")
  jax.distributed.shutdown()


def _meet() -> None:
  """Lets all devices sum something up, before compiling takes the processes different times.

  CPUs connect at their first common sum, and then wait for each other half a minute at most.
  """
  where = NamedSharding(Mesh(np.array(jax.devices()), ("devices",)), PartitionSpec("devices"))
  ones = jax.make_array_from_callback(
    (jax.device_count(),), where, lambda index: np.ones(jax.device_count())[index]
  )
  whole = NamedSharding(where.mesh, PartitionSpec())
  jax.jit(jnp.sum, out_shardings=whole)(ones).block_until_ready()


_LOST_WORDS = (
  "Connection closed by peer",
  "Connection reset by peer",
  "Connection refused",
  "Gloo",
  "heartbeat",
  "coordination service",
  "UNAVAILABLE",
  "ABORTED",
  "DEADLINE_EXCEEDED",
)


def _lost(error: BaseException | None) -> bool:
  """True where an error, or one it came from, is that of a process that lost another."""
  while error is not None:
    if any(word in str(error) for word in _LOST_WORDS):
      return True
    error = error.__cause__ or error.__context__
  return False


def _end(message: str) -> None:
  sys.stdout.flush()
  print(f"looped_lm: {name()}: {message}", file=sys.stderr, flush=True)
  os._exit(1)
