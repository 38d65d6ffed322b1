"""The child process that a GPU is used in, and its deadline.

A kernel that hangs is ended with the process that launched it; one that faults leaves that process's context useless.
So the parent never touches the GPU. A child lives until something goes wrong in it, and the next task gets a new one.

    parent                          child
                                    cuInit, a context
             <- ("ready", the GPU's description)
    Task ->
             <- ("stage", "load")   modules, memory
             <- ("stage", "run")    launches, until they have ended
             <- ("stage", "read")   memory
             <- ("done", Outcome) or ("error", kind, text)

Nothing here needs more of ptxc than :mod:`ptxc.device.gpu`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from ptxc.device import DEADLINE
from ptxc.device.gpu import Driver, Gpu, GpuError, Outcome, Task

#: Seconds that anything else may take: starting, loading modules (PTX is assembled then) and memory, reading back.
PATIENCE = 300.0

#: What a child does at a stage, for errors.
_STAGES = {"load": "loading", "run": "the launch", "read": "reading back"}

#: Seconds to wait for a killed child; a driver may take a while to clear the GPU.
_BURIAL = 30.0


class Worker:
    """A child process with a GPU, started when there is something to do."""

    def __init__(self, ordinal: int = 0) -> None:
        self._ordinal = ordinal
        self._child: _Child | None = None

    def describe(self) -> dict[str, Any]:
        """What :meth:`Gpu.describe` says. Raises GpuError."""
        return self._ready().description

    def do(self, task: Task, deadline: float = DEADLINE) -> Outcome:
        """Do a task in the child; each round of its launches must end within ``deadline`` seconds.

        Raises GpuError, also for a child that hung or crashed.
        """
        child = self._ready()
        try:
            return child.do(task, deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _ready(self) -> _Child:
        if self._child is None:
            self._child = _Child(self._ordinal)
        return self._child


class _Child:
    """A running child. Raises GpuError where it does not come up."""

    def __init__(self, ordinal: int) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._pipe = ours
        try:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115  # the finalizer closes it
        except OSError as error:
            raise GpuError("usage", f"cannot write temporary files: {error.strerror or error}") from error
        self._process = subprocess.Popen(
            # -P: not what the current folder has, which may be a ptxc too.
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(ordinal)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is the parent's, which ends the child
        )
        theirs.close()
        self.end = weakref.finalize(self, _end, self._process, ours, self._said)
        try:
            self.description: dict[str, Any] = self._answer("starting", PATIENCE)[1]
        except BaseException:
            self.end()
            raise

    def do(self, task: Task, deadline: float) -> Outcome:
        """Send a task and wait for what comes of it. Raises GpuError."""
        try:
            self._pipe.send(task)
        except OSError:
            raise self._crash() from None
        what, limit = _STAGES["load"], PATIENCE
        while True:
            answer = self._answer(what, limit)
            if answer[0] == "done":
                outcome: Outcome = answer[1]
                return outcome
            what, limit = _STAGES[answer[1]], deadline if answer[1] == "run" else PATIENCE

    def _answer(self, what: str, limit: float) -> tuple[Any, ...]:
        """The next message. Raises GpuError for an error, for silence of ``limit`` seconds and for the child's end."""
        try:
            if not self._pipe.poll(limit):
                raise GpuError("deadline", f"{what} did not end within {limit:g} s")
            answer: tuple[Any, ...] = self._pipe.recv()
        except (EOFError, OSError):
            raise self._crash() from None
        if answer[0] == "error":
            raise GpuError(*answer[1:])
        return answer

    def _crash(self) -> GpuError:
        """The error for a child that ended by itself."""
        try:
            status = self._process.wait(_BURIAL)
        except subprocess.TimeoutExpired:
            return GpuError("kernel", "the process with the GPU does not answer")
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        self._said.seek(0)
        said = " ".join(self._said.read()[-500:].decode(errors="replace").split())
        return GpuError("kernel", f"the process with the GPU ended {how}{': ' if said else ''}{said}")


def _end(process: subprocess.Popen[bytes], pipe: Connection, said: IO[bytes]) -> None:
    """End a child for good."""
    pipe.close()
    said.close()
    process.kill()
    try:
        process.wait(_BURIAL)
    except subprocess.TimeoutExpired:  # the driver holds it; init will take it over
        process.returncode = -signal.SIGKILL


def _environment() -> dict[str, str]:
    """The environment of a child that finds this very package, and what this process finds."""
    here = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([here, *filter(None, sys.path)]))}


# ------------------------------------------------------------------------------------------------------ the child


def serve(pipe: Connection, ordinal: int) -> None:
    """Be the child: do tasks until the parent goes, or one fails."""
    threading.Thread(target=_follow, args=[os.getppid()], daemon=True).start()
    try:
        gpu = Gpu(Driver(), ordinal)
        pipe.send(("ready", gpu.describe()))
        while True:
            task: Task = pipe.recv()
            pipe.send(("done", gpu.do(task, lambda name: pipe.send(("stage", name)))))
            del task
    except GpuError as error:
        pipe.send(("error", error.kind, error.what))
    except (EOFError, BrokenPipeError):
        pass  # the parent has gone


def _follow(parent: int) -> None:
    """End this process once its parent has ended, even while a kernel hangs."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
