"""A job in a process of its own, with limits, from within any worker of any executor.

    worker thread  --job-->  server (one a thread)  --fork-->  child
                   <-------------------------------------------- answer

To start a Python that has imported all that a compilation needs takes a second; to fork one that has, milliseconds.
A worker cannot fork itself: it may have threads (those of Dask do), and locks that these hold stay locked in a child.
So each thread of a worker starts a server, a process without threads that imports everything and forks a child for
each job. Whatever a job does to its process, the server and the worker do not notice; and when the worker dies, the
server finds its connection closed, and ends with its child.

A child ends itself in time: an alarm raises an exception in Python, with which ptxas, too, is ended. One that does not
come to that, in C code for instance, is killed some seconds later. Memory is bounded by the system (``RLIMIT_AS``): by
so much may the child, or ptxas, have more than the child began with.
"""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, NoReturn

from ptxc.errors import CompileError, CrashError, InternalError, MemoryLimitError, TimeLimitError, UsageError

#: Seconds after its alarm in which a child can end by itself.
_GRACE = 3.0

#: Seconds that a limit of time may be, and bytes that one of memory must be.
_LONGEST, _LEAST = 1e7, 64 << 20

#: What keeps NumPy from starting threads, which nothing here needs: one that forks must have none.
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_SERVE = "import sys; sys.path[:] = {path!r}; from ptxc.batching.children import serve; serve({descriptor})"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one candidate may take."""

    #: Seconds of wall-clock time.
    seconds: float = 300.0
    #: Bytes of memory, its own and ptxas' each; on Linux only.
    memory: int = 4 << 30

    def __post_init__(self) -> None:
        if type(self.seconds) not in (int, float) or not 0 < self.seconds < _LONGEST:
            raise UsageError(f"{self.seconds!r} is no time limit", hint="give seconds, as in 20 or 0.5")
        hint = "give bytes, at least 64 MiB"
        if type(self.memory) is not int:
            raise UsageError(f"a memory limit is a number of bytes, not {self.memory!r}", hint=hint)
        if not _LEAST <= self.memory < 1 << 60:
            raise UsageError(f"a memory limit of {self.memory!r} bytes is too small or too large", hint=hint)


#: A job and its argument, pickled, and what it may take.
type _Request = tuple[bytes, Limits]

#: What this thread's jobs are run by.
_mine = threading.local()


def run_apart[T, R](job: Callable[[T], R], task: T, limits: Limits) -> R:
    """What ``job(task)`` gives in a process of its own.

    Raises TimeLimitError or MemoryLimitError where it took more than it may, CrashError where its process died, its
    CompileErrors, and InternalError for another exception.
    """
    request = pickle.dumps((job, task)), limits
    for _ in range(2):  # a server that was killed is no fault of the job's
        server = getattr(_mine, "server", None) or _Server()
        _mine.server = server
        try:
            answer = server.ask(request)
        except (EOFError, OSError):
            server.close()
            _mine.server = None
            continue
        if isinstance(answer, CompileError):
            raise answer
        return answer  # type: ignore[no-any-return]
    raise CrashError("the process that starts compilations died, twice", hint="see whether the system killed it")


class _Server:
    """The worker's end of a server."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            code = _SERVE.format(path=sys.path, descriptor=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, **_NO_THREADS},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the worker's
            )

    def ask(self, request: _Request) -> Any:
        """The answer to a request. Raises EOFError or OSError where the server died."""
        self._connection.send(request)
        return self._connection.recv()

    def close(self) -> None:
        """Have the server end."""
        self._connection.close()
        self._process.wait()


# ----------------------------------------------------------------------------------------------------- in the server


def serve(descriptor: int) -> None:
    """Answer requests until the other end is closed."""
    from ptxc.batching.warm import warm_up

    with Connection(descriptor) as connection:
        warm_up()
        while True:
            try:
                request = connection.recv()
            except (EOFError, OSError):
                return
            answer = _supervise(connection, request)
            with suppress(OSError):
                connection.send(answer)


def _supervise(connection: Connection, request: _Request) -> Any:
    """Run a request in a child; what it answered, or the error that its end means."""
    call, limits = request
    reader, writer = Pipe(duplex=False)
    child = os.fork()
    if not child:
        connection.close()
        reader.close()
        _answer(writer, call, limits)
    writer.close()
    with reader:
        ready = wait([reader, connection], limits.seconds + _GRACE)
        answer = None
        if reader in ready:
            with suppress(EOFError, OSError):
                answer = reader.recv()
        else:
            _end(child, gently=connection in ready)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if reader not in ready:
        return _too_long(limits)
    return _died(status) if answer is None else answer


def _end(child: int, gently: bool) -> None:
    """End a child; gently, so that it ends ptxas first, where nobody waits for it any more."""
    if gently:
        os.kill(child, signal.SIGTERM)
        pid_file = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
        if pid_file is not None:
            wait([pid_file], _GRACE)
            os.close(pid_file)
    os.kill(child, signal.SIGKILL)


def _too_long(limits: Limits) -> TimeLimitError:
    return TimeLimitError(f"it took longer than {limits.seconds:g} s", hint="allow more with --time-limit")


def _too_large(limits: Limits) -> MemoryLimitError:
    size = f"{limits.memory / (1 << 20):.4g} MiB"
    return MemoryLimitError(f"it took more than {size} of memory", hint="allow more with --memory-limit")


def _died(status: int) -> CompileError:
    """The error for a child that gave no answer."""
    if status == -signal.SIGKILL:  # not by the server
        return MemoryLimitError(
            "its process was killed, as the system does where memory runs out", hint="run fewer candidates at a time"
        )
    end = f"by signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"with status {status}"
    return CrashError(f"its process ended {end}", hint="compile it alone with ptxc compile")


# ------------------------------------------------------------------------------------------------------ in the child


class _Expired(BaseException):
    """The time is over. No Exception, so that nothing takes it for a fault of what it interrupts."""


def _answer(writer: Connection, call: bytes, limits: Limits) -> NoReturn:
    """Send the job's result, or the error that it ended with, and end the process."""
    status = 1
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        writer.send(_limited(call, limits))
        status = 0
    finally:
        os._exit(status)


def _limited(call: bytes, limits: Limits) -> Any:
    """The job's result, or the error that it ended with."""
    signal.signal(signal.SIGALRM, _expire)
    signal.signal(signal.SIGTERM, _expire)
    before = _bound_memory(limits.memory)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, limits.seconds)
            job, task = pickle.loads(call)
            return job(task)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            resource.setrlimit(resource.RLIMIT_AS, before)
    except _Expired:
        return _too_long(limits)
    except MemoryError:
        return _too_large(limits)
    except CompileError as error:
        return error
    except Exception as fault:
        if _is_memory(fault):
            return _too_large(limits)
        return InternalError(f"{type(fault).__name__}: {fault}")


def _is_memory(fault: Exception) -> bool:
    """Whether a fault is how the system says that it has no memory for a process or a thread."""
    no_room = isinstance(fault, OSError) and fault.errno == errno.ENOMEM
    return no_room or (isinstance(fault, RuntimeError) and "can't start new thread" in str(fault))


def _expire(number: int, frame: FrameType | None) -> None:
    raise _Expired


def _bound_memory(more: int) -> tuple[int, int]:
    """Let this process take so many bytes more than it has, and those that it starts as much; the limit before."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + more
        if before[1] == resource.RLIM_INFINITY or limit < before[1]:
            resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    return before
