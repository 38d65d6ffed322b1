"""What is done for one candidate, in a process of its own, and what is known of it afterwards."""

from __future__ import annotations

import errno
import io
import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxc.batching.candidates import Task
from ptxc.batching.check import check
from ptxc.errors import (
    CheckError,
    CompileError,
    CrashError,
    MemoryLimitError,
    TimeLimitError,
    ToolchainError,
)

if TYPE_CHECKING:
    from ptxc.compilation import CompiledKernel
    from ptxc.driver import Kernels
    from ptxc.toolchain import Assembly

#: The statuses of what failed, by the error; of all others it is ``error``.
_STATUSES: dict[type[CompileError], str] = {
    CheckError: "wrong",
    TimeLimitError: "timeout",
    MemoryLimitError: "memory",
    CrashError: "crash",
}

#: How ptxas says that it has no more memory.
_OUT_OF_MEMORY = re.compile(r"bad_alloc|out of memory|memory allocation|cannot allocate", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Built:
    """What became of one kernel of a candidate."""

    #: The fields of its line that are its own; docs/batch.md explains them.
    facts: dict[str, Any]
    ptx: str = ""
    cubin: bytes = b""

    @property
    def is_ok(self) -> bool:
        """Whether there is PTX, and machine code where that was asked for."""
        return bool(self.facts["status"] == "ok")


def build(task: Task) -> list[Built]:
    """Compile every kernel of a candidate, assemble and check it where that is asked for.

    Errors of kernels are in what is returned. Raises MemoryError where ptxc or ptxas had no more memory.
    """
    from ptxc.driver import Kernels

    try:
        kernels = Kernels(io.BytesIO(task.source), task.options)
        return [_build(task, kernels, number) for number in range(len(kernels.names))]
    except CompileError as error:
        _raise_for_memory(error)
        return [failed(task, error)]


def failed(task: Task, error: CompileError, key: str = "") -> Built:
    """The outcome of a candidate, or of the kernel ``key``, that has an error."""
    facts = {"key": key or task.digest, "status": _STATUSES.get(type(error), "error"), "target": task.options.target}
    named = {name: getattr(error, name) for name in ("kernel", "statement", "hint") if getattr(error, name)}
    return Built(facts | {"error": {"type": type(error).__name__, "message": error.what, **named}})


def _build(task: Task, kernels: Kernels, number: int) -> Built:
    started = time.monotonic()
    key = kernels.key(number, task.options) or task.digest
    try:
        with _alone(task, key):
            before = time.process_time()
            kernel = kernels.compile(number, task.options)
            seconds = {"compile": time.process_time() - before}
            assembly = _assembled(kernel, task) if task.assemble else None
        checked = {"checked": check(kernel, kernels.graph, task.check)} if task.check else {}
    except CompileError as error:
        _raise_for_memory(error)
        return failed(task, error.at(kernel=kernels.names[number]), key)
    if assembly is not None:
        seconds["assemble"] = assembly.seconds
    seconds["wall"] = time.monotonic() - started
    facts = {"key": key, "status": "ok", "kernel": kernel.name, "target": kernel.target, **_figures(kernel, assembly)}
    facts |= checked
    facts["seconds"] = {what: round(took, 6) for what, took in seconds.items()}
    return Built(facts, kernel.ptx, assembly.cubin if assembly is not None else b"")


def _assembled(kernel: CompiledKernel, task: Task) -> Assembly:
    from ptxc.store.assemblies import assemble_kept

    return assemble_kept(kernel.ptx, kernel.target, cache=task.options.cache)


def _figures(kernel: CompiledKernel, assembly: Assembly | None) -> dict[str, Any]:
    """What a kernel takes of the machine; without ptxas only what ptxc decides."""
    from ptxc.comparison.occupancy import occupancy
    from ptxc.target import parse_target

    launch = kernel.launch
    assert launch is not None  # only IR comes without
    figures: dict[str, Any] = {"lines": kernel.stats.lines, "dynamic_shared": launch.dynamic_shared}
    if assembly is None:
        return figures | {"shared": launch.static_shared}
    used = assembly.kernels[kernel.name]
    threads = math.prod(launch.block)
    shared = used.shared + launch.dynamic_shared
    fits = occupancy(parse_target(kernel.target), threads, used.registers, shared, used.barriers)
    return figures | {
        "shared": used.shared,
        "registers": used.registers,
        "spill_stores": used.spill_stores,
        "spill_loads": used.spill_loads,
        "stack": used.stack,
        "occupancy": round(fits.share, 6),
        "occupancy_limit": fits.limit,
    }


def _raise_for_memory(error: CompileError) -> None:
    """Raise MemoryError where that is what ``error`` comes from."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            raise MemoryError from error
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, ToolchainError) and _OUT_OF_MEMORY.search(error.what):
        raise MemoryError from error


@contextmanager
def _alone(task: Task, key: str) -> Iterator[None]:
    """One process at a time for a kernel, so that the others find its result in the store.

    A lock goes with its holder, however that ends. Kernels whose keys begin alike wait for each other; so be it.
    """
    from ptxc.store import open_store

    store = open_store(task.options.is_kept())
    lock = None
    if store.limit:
        import fcntl

        with suppress(OSError):  # a folder that cannot be written keeps nothing either
            os.makedirs(store.folder, exist_ok=True)
            lock = os.open(os.path.join(store.folder, f".batch-{key[:3]}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)
