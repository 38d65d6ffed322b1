"""The passes in order, and what runs them.

A pass is a function over a kernel; it knows nothing of what is watched. :data:`PIPELINE` is the order. Why a pass is
where it is, is written with it as :attr:`Pass.after`, and a test holds the table to it.
"""

from __future__ import annotations

import difflib
import importlib
import time
from collections.abc import Callable, Collection
from functools import cache
from types import ModuleType
from typing import NamedTuple, cast

from ptxc.errors import CompileError, InternalError, UsageError
from ptxc.ir.kernel import Kernel


class Pass(NamedTuple):
    """One pass: ``run`` in the module of its name, ``early-exit`` in ``passes/early_exit.py``.

    ``rank`` orders it and numbers its dump.
    """

    rank: int
    name: str
    #: The lowest optimisation level (``--opt``) at which it runs. 0: the kernel is wrong or cannot be printed without
    #: it. 1: it makes code smaller, in little time. 2: it makes code faster at some price in registers.
    level: int
    #: What it does, in a line.
    summary: str
    #: Passes that must come before it, and why.
    after: tuple[tuple[str, str], ...] = ()

    @property
    def required(self) -> bool:
        """Whether it cannot be left out."""
        return self.level == 0

    @property
    def module(self) -> ModuleType:
        """Its module, imported only now: who reads the table alone need not wait for all of them."""
        return _imported(f"ptxc.passes.{self.name.replace('-', '_')}")

    @property
    def run(self) -> Callable[[Kernel], None]:
        """The pass itself, over a kernel in place."""
        return cast("Callable[[Kernel], None]", self.module.run)


@cache
def _imported(name: str) -> ModuleType:
    return importlib.import_module(name)


PIPELINE: tuple[Pass, ...] = (
    Pass(
        20, "collectives", 0,
        "find barriers and shuffles, prove that their threads reach them together",
    ),
    Pass(
        30, "coordinates", 0,
        "expand the tile's coordinates into arithmetic on thread and CTA numbers",
        (("collectives", "it reads from tile.coords in which group a coordinate is the same"),),
    ),
    Pass(
        40, "early-exit", 0,
        "keep threads outside the tile from having an effect",
        (
            ("collectives", "threads may leave only where no later collective misses them"),
            ("coordinates", "only then is it known whether the grid fits"),
        ),
    ),
    Pass(
        50, "simplify", 1,
        "fold constants, forward copies, divide without dividing",
        (("coordinates", "the coordinates' divisions by constants are most of what it finds"),),
    ),
    Pass(
        55, "cse", 1,
        "merge instructions that compute the same",
        (("simplify", "equal operations look equal only when their operands are simplified"),),
    ),
    Pass(
        60, "hoist", 2,
        "move what does not change in a loop in front of it",
        (("cse", "what is computed once already need not be moved twice"),),
    ),
    Pass(
        65, "counters", 2,
        "let a small loop count in its addresses",
        (("hoist", "what an address begins with stands in front of the loop only then"),),
    ),
    Pass(
        70, "contract", 1,
        "fuse multiplications and additions",
        (("cse", "a product that several sums use is not fused, and merging decides how many use it"),),
    ),
    Pass(
        72, "pair-halves", 1,
        "put operations on halves side by side that are packed together",
        (("contract", "it leaves one operation where two were"),),
    ),
    Pass(
        75, "dead-code", 1,
        "drop what nobody needs",
        (
            ("contract", "fused products are dead"),
            ("hoist", "hoisting may move what nobody needs, which then goes with the rest"),
        ),
    ),
    Pass(
        80, "leave-ssa", 0,
        "turn block parameters into registers and copies",
        (("dead-code", "every parameter that is left costs a register and copies"),),
    ),
    Pass(
        85, "pressure", 1,
        "spare registers: how many CTAs shall fit, and which loads keep their order",
        (("leave-ssa", "how many are live is known only then"),),
    ),
    Pass(
        90, "registers", 0,
        "count the registers of each bank",
        (("leave-ssa", "values share registers only then"),),
    ),
)  # fmt: skip

#: The optimisation level that has all passes, and is the default.
TOP_LEVEL = 2
#: What comes before the passes, the frontend; the dump of its result has the first rank.
BUILD = (10, "build")
#: What comes after them, the PTX text.
PRINT = "print"


class PassTime(NamedTuple):
    """CPU seconds of a pass, and the instructions that it left."""

    name: str
    seconds: float
    instructions: int


def check_name(name: str, *more: str) -> None:
    """Raise UsageError, with what was meant, for a name of no pass, unless it is one of ``more`` (build, print)."""
    passes = [item.name for item in PIPELINE]
    known = [step for step in (BUILD[1], *passes, PRINT) if step in passes or step in more]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        question = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"there is no pass {name!r}", hint=f"{question}passes are {', '.join(known)}")


class Clock:
    """CPU time of each step since the one before; keeps none unless ``running``."""

    def __init__(self, running: bool) -> None:
        self.laps: list[PassTime] = []
        self._running = running
        self._since = time.process_time() if running else 0.0

    def lap(self, name: str, kernel: Kernel) -> None:
        """A step has ended, and left ``kernel``."""
        if self._running:
            seconds = time.process_time() - self._since
            self.laps.append(PassTime(name, seconds, sum(len(block.instrs) for block in kernel.blocks)))
            self._since = time.process_time()


class Runner:
    """Runs the pipeline over a kernel."""

    def __init__(
        self,
        *,
        opt: int = TOP_LEVEL,
        disabled: Collection[str] = (),
        stop_after: str = "",
        start_at: str = "",
        verify: bool = False,
        observe: Callable[[int, str, Kernel], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``observe(rank, name, kernel)`` is called with the kernel after each pass.

        Of the passes those run that the optimisation level ``opt`` has and ``disabled`` does not name. ``verify``
        checks the kernel before the first and after each pass. Besides the passes, ``stop_after`` may be ``build`` and
        ``start_at`` may be ``print``: then none runs. Raises UsageError for names of no pass, and for disabling a
        required one.
        """
        for name in disabled:
            check_name(name)
        check_name(stop_after or BUILD[1], BUILD[1])
        check_name(start_at or PRINT, PRINT)
        for item in PIPELINE:
            if item.required and item.name in disabled:
                raise UsageError(f"pass {item.name!r} cannot be disabled", hint="without it the kernel would be wrong")
        steps = [BUILD[1], *(item.name for item in PIPELINE), PRINT]
        if stop_after and start_at and steps.index(stop_after) < steps.index(start_at):
            raise UsageError(f"pass {stop_after!r} comes before {start_at!r}", hint="nothing would be done")
        self.disabled = frozenset((*disabled, *(item.name for item in PIPELINE if item.level > opt)))
        self.stop_after, self.start_at = stop_after, start_at
        self.verify, self.observe = verify, observe
        self.clock = clock or Clock(False)

    def run(self, kernel: Kernel) -> None:
        """Run the passes in place.

        Raises CompileError for what a pass refuses; InternalError, with the IR from before the pass as its
        ``reproducer``, where one crashes or leaves IR that the verifier refuses.
        """
        from ptxc.ir.verify import check

        if self.verify:
            check(kernel, BUILD[1])
        if self.stop_after == BUILD[1] or self.start_at == PRINT:
            return
        first = next((at for at, item in enumerate(PIPELINE) if item.name == self.start_at), 0)
        for item in PIPELINE[first:]:
            if item.name not in self.disabled:
                self._run_one(item, kernel)
            if item.name == self.stop_after:
                return

    def _run_one(self, item: Pass, kernel: Kernel) -> None:
        before = _dump(item, kernel) if self.verify else ""
        try:
            item.run(kernel)
            self.clock.lap(item.name, kernel)
            if self.verify:
                _verify(item, kernel)
        except InternalError as error:
            error.reproducer = before
            error.at(kernel=kernel.name)
            raise
        except CompileError:
            raise
        except Exception as fault:
            what = f"pass {item.name!r} failed: {type(fault).__name__}: {fault}"
            crash = InternalError(what, kernel=kernel.name)
            crash.reproducer = before
            raise crash from fault
        if self.observe is not None:
            self.observe(item.rank, item.name, kernel)


def _dump(item: Pass, kernel: Kernel) -> str:
    """The IR from before a pass."""
    from ptxc.ir.text import format_kernel

    return f"// before pass {item.name}\n{format_kernel(kernel)}"


def _verify(item: Pass, kernel: Kernel) -> None:
    """Raise InternalError for IR that a pass should not have left."""
    from ptxc.ir.verify import check

    check(kernel, item.name)
