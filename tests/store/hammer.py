"""Many processes at one store, while others damage it and some are killed: every answer must be right.

`python tests/store/hammer.py SECONDS PROCESSES FOLDER` runs it on a folder, and prints what came of it as JSON.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import ptxc
from ptxc import driver
from ptxc.compilation import CompiledKernel, Options
from ptxc.driver import compile_kernel, graph_of
from ptxc.frontend.reader import KernelNode, kernel_nodes
from ptxc.store import Store, digest, open_store

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
FILES = [GOLDEN / name / "kernel.ir.json" for name in ("row_sum_tree", "vector_add_tail", "cos", "scan", "l2_norm")]
OPTIONS = [Options(target=target, opt=opt) for target in ("sm_80", "sm_90", "sm_120") for opt in (0, 2)]

#: Bytes: a part of what the kernels need, so that entries are removed all the time.
LIMIT = 80_000

#: What is counted, a row for each process.
ANSWERS, MISSES, WRONG, DAMAGED = range(4)


@dataclass(frozen=True)
class Problem:
    """A kernel, and what it is compiled to."""

    path: Path
    node: KernelNode
    graph: Any
    options: Options
    right: CompiledKernel


@dataclass
class Outcome:
    """What came of it."""

    answers: int
    misses: int
    wrong: int
    damaged: int
    killed: int
    #: What the folder holds at the end.
    entries: int
    size: int
    unfinished: int


def problems() -> list[Problem]:
    """All files with all options, compiled without a store."""
    found = []
    for path in FILES:
        graph = graph_of(path)
        (node,) = kernel_nodes(graph)
        found += [Problem(path, node, graph, some, driver._compile(node, graph, some, None)) for some in OPTIONS]
    return found


def hammer(folder: Path, seconds: float, processes: int) -> Outcome:
    """Have so many processes compile for so long; one in four more does damage, and now and then one is killed."""
    os.environ.update(PTXC_CACHE_DIR=str(folder), PTXC_CACHE_SIZE=str(LIMIT))
    context = multiprocessing.get_context("fork")
    vandals = max(1, processes // 4)
    counts = context.RawArray(ctypes.c_int64, 4 * (processes + vandals))
    todo, end = problems(), time.monotonic() + seconds

    def start(at: int) -> BaseProcess:
        work: Any = _compile_all if at < processes else _damage
        process = context.Process(target=work, args=(todo if at < processes else folder, end, counts, 4 * at))
        process.start()
        return process

    running = [start(at) for at in range(processes + vandals)]
    killed = 0
    chance = random.Random(0)
    while time.monotonic() < end - 0.5:
        time.sleep(chance.uniform(0.05, 0.3))
        at = chance.randrange(processes)
        os.kill(running[at].pid or 0, signal.SIGKILL)
        running[at].join()
        killed += 1
        running[at] = start(at)
    for at, process in enumerate(running):
        process.join(60)
        if process.exitcode != 0:  # an error, or one that waits for something
            process.kill()
            counts[4 * at + WRONG] += 1
    store = open_store()
    store.verify()
    entries = list(store.entries())
    return Outcome(
        answers=sum(counts[ANSWERS::4]),
        misses=sum(counts[MISSES::4]),
        wrong=sum(counts[WRONG::4]),
        damaged=sum(counts[DAMAGED::4]),
        killed=killed,
        entries=len(entries),
        size=sum(entry.size for entry in entries),
        unfinished=len(list(folder.glob("*/.*.new"))),
    )


def _compile_all(todo: list[Problem], end: float, counts: Any, at: int) -> None:
    """Compile kernels, in memory and from files, and compare with what is right."""
    chance, store, really = random.Random(os.urandom(8)), open_store(), driver._compile

    def compile(*args: Any, **named: Any) -> CompiledKernel:
        counts[at + MISSES] += 1
        return really(*args, **named)

    setattr(driver, "_compile", compile)  # noqa: B010  # of another signature
    while time.monotonic() < end:
        problem = chance.choice(todo)
        if chance.random() < 0.5:
            (found,) = ptxc.compile(problem.path, target=problem.options.target, opt=problem.options.opt)
        else:
            found = compile_kernel(problem.node, problem.graph, problem.options)
        counts[at + ANSWERS] += 1
        counts[at + WRONG] += found != problem.right
        numbers = [chance.randrange(20)] * 50
        counts[at + WRONG] += store.find("cuda", digest(str(numbers)), numbers.copy) != numbers


def _damage(folder: Path, end: float, counts: Any, at: int) -> None:
    """Cut, change, exchange and remove entries."""
    chance, store = random.Random(os.urandom(8)), Store(folder, LIMIT)
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.0, 0.02))
        entries = list(store.entries())
        if not entries:
            continue
        entry = chance.choice(entries)
        with suppress(OSError):
            _damage_one(entry.path, entry.size, chance.choice(entries).path, chance)
            counts[at + DAMAGED] += 1


def _damage_one(path: str, size: int, other: str, chance: random.Random) -> None:
    how = chance.random()
    if how < 0.6:
        os.truncate(path, chance.randrange(size + 1))
    elif how < 0.75:
        with open(path, "r+b") as file:
            file.seek(chance.randrange(size + 1))
            file.write(bytes([chance.randrange(256)]))
    elif how < 0.85:
        shutil.copyfile(other, path)
    elif how < 0.9:
        os.truncate(path, size + chance.randrange(1, 5000))
    elif how < 0.99:
        os.unlink(path)
    else:
        shutil.rmtree(os.path.dirname(path))


if __name__ == "__main__":
    print(json.dumps(asdict(hammer(Path(sys.argv[3]), float(sys.argv[1]), int(sys.argv[2])))))
