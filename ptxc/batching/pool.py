"""Where jobs run: the standard process pool, a Dask cluster, or any executor that is given."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from ptxc.errors import CrashError, UsageError


class Given:
    """An executor that someone else made, and looks after."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit[R](self, function: Callable[..., R], *args: Any) -> Future[R]:
        """Have ``function`` called by a worker."""
        return self._executor.submit(function, *args)

    def restart(self) -> None:
        """Make a pool that broke work again. Raises CrashError."""
        raise CrashError("the executor broke", hint="the same call with a new one goes on")

    def close(self) -> None:
        """End what runs."""


class Pool(Given):
    """The standard process pool, whose processes end with the one that made it, however that ends.

    They are started anew, not forked: who calls may have threads. What ties them to this process is a pipe that nobody
    writes to, which they find closed.
    """

    def __init__(self, jobs: int) -> None:
        """With so many processes."""
        self._jobs = jobs
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._tie, self._lifeline = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(self._jobs, context, initializer=_end_with, initargs=(self._tie,))
        super().__init__(self._pool)

    def submit[R](self, function: Callable[..., R], *args: Any) -> Future[R]:
        """Have ``function`` called by a process; a signal waits until the process has what it begins with."""
        with _uninterrupted():
            return super().submit(function, *args)

    def restart(self) -> None:
        """Start new processes."""
        self.close()
        self._start()

    def close(self) -> None:
        """End the processes, and what they do."""
        self._lifeline.close()
        self._pool.shutdown(cancel_futures=True)
        self._tie.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let signals wait that would end this process: one in the middle of starting another leaves that with half of what
    it reads first, of which it prints a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no handler runs here
        return
    came: list[int] = []
    ending = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for caught in came:
            signal.raise_signal(caught)


def _end_with(tie: Connection) -> None:
    """In a pool's process: end when the other end of ``tie`` is closed, and leave Ctrl-C to who closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        tie.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def dask_cluster(address: str) -> Iterator[Executor]:
    """An executor of the Dask cluster whose scheduler is at ``address``. Raises UsageError where there is none.

    The cluster gives the tasks of workers that die to others.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("Dask is not installed", hint="get it with: pip install 'ptxc[dask]'") from error
    client = Client.__new__(Client)
    try:
        client.__init__(address, set_as_default=False)
    except Exception as error:  # of an address, Dask raises whatever is at hand
        client.status = "closed"  # else what never began is waited for when the object goes
        reason = str(error) or type(error).__name__
        hint = "give the address that `dask scheduler` prints, as in tcp://10.0.0.1:8786"
        raise UsageError(f"there is no Dask scheduler at {address}: {reason}", hint=hint) from error
    with client:
        yield client.get_executor(pure=False)
