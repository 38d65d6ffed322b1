"""The passes in order, and what runs them.

A pass is a function over a kernel; it knows nothing of what is watched. :data:`PIPELINE` is the order. Why a pass is
where it is, is written with it as :attr:`Pass.after`, and a test holds the table to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from ptxc.errors import CompileError, InternalError, UsageError
from ptxc.ir.kernel import Kernel
from ptxc.ir.text import format_kernel
from ptxc.ir.verify import check
from ptxc.passes import (
    collectives,
    contract,
    coordinates,
    cse,
    dead_code,
    early_exit,
    hoist,
    leave_ssa,
    registers,
    simplify,
)


class Pass(NamedTuple):
    """One pass. ``rank`` orders it and numbers its dump."""

    rank: int
    name: str
    run: Callable[[Kernel], None]
    #: Whether the kernel is wrong or cannot be printed without it.
    required: bool
    #: What it does, in a line.
    summary: str
    #: Passes that must come before it, and why.
    after: tuple[tuple[str, str], ...] = ()


PIPELINE: tuple[Pass, ...] = (
    Pass(
        20, "collectives", collectives.run, True,
        "find barriers and shuffles, prove that their threads reach them together",
    ),
    Pass(
        30, "coordinates", coordinates.run, True,
        "expand the tile's coordinates into arithmetic on thread and CTA numbers",
        (("collectives", "it reads from tile.coords in which group a coordinate is the same"),),
    ),
    Pass(
        40, "early-exit", early_exit.run, True,
        "keep threads outside the tile from having an effect",
        (
            ("collectives", "threads may leave only where no later collective misses them"),
            ("coordinates", "only then is it known whether the grid fits"),
        ),
    ),
    Pass(
        50, "simplify", simplify.run, False,
        "fold constants, forward copies, divide without dividing",
        (("coordinates", "the coordinates' divisions by constants are most of what it finds"),),
    ),
    Pass(
        55, "cse", cse.run, False,
        "merge instructions that compute the same",
        (("simplify", "equal operations look equal only when their operands are simplified"),),
    ),
    Pass(
        60, "hoist", hoist.run, False,
        "move what does not change in a loop in front of it",
        (("cse", "what is computed once already need not be moved twice"),),
    ),
    Pass(
        70, "contract", contract.run, False,
        "fuse multiplications and additions",
        (("cse", "a product that several sums use is not fused, and merging decides how many use it"),),
    ),
    Pass(
        75, "dead-code", dead_code.run, False,
        "drop what nobody needs",
        (
            ("contract", "fused products are dead"),
            ("hoist", "hoisting may move what nobody needs, which then goes with the rest"),
        ),
    ),
    Pass(
        80, "leave-ssa", leave_ssa.run, True,
        "turn block parameters into registers and copies",
        (("dead-code", "every parameter that is left costs a register and copies"),),
    ),
    Pass(
        90, "registers", registers.run, True,
        "count the registers of each bank",
        (("leave-ssa", "values share registers only then"),),
    ),
)  # fmt: skip

#: The dump of the frontend's result has the first rank.
BUILD = (10, "build")


class PassTime(NamedTuple):
    """CPU seconds of a pass, and the instructions that it left."""

    name: str
    seconds: float
    instructions: int


class Runner:
    """Runs the pipeline over a kernel."""

    def __init__(
        self,
        *,
        disabled: Collection[str] = (),
        stop_after: str = "",
        start_at: str = "",
        verify: bool = False,
        observe: Callable[[int, str, Kernel], None] | None = None,
    ) -> None:
        """``observe(rank, name, kernel)`` is called with the kernel after each pass.

        ``verify`` checks the kernel before the first and after each pass. Raises UsageError for names of no pass, and
        for disabling a required one.
        """
        known = [item.name for item in PIPELINE]
        for name in (*disabled, *filter(None, (start_at, stop_after))):
            if name not in known and not (name == BUILD[1] and name == stop_after):
                raise UsageError(f"there is no pass {name!r}", hint=f"passes are {', '.join(known)}")
        for item in PIPELINE:
            if item.required and item.name in disabled:
                raise UsageError(f"pass {item.name!r} cannot be disabled", hint="without it the kernel would be wrong")
        self.disabled = frozenset(disabled)
        self.stop_after, self.start_at = stop_after, start_at
        self.verify, self.observe = verify, observe
        self.times: list[PassTime] = []

    def run(self, kernel: Kernel) -> None:
        """Run the passes in place.

        Raises CompileError for what a pass refuses; InternalError, with the IR from before the pass as its
        ``reproducer``, where one crashes or leaves IR that the verifier refuses.
        """
        if self.verify:
            check(kernel, BUILD[1])
        if self.stop_after == BUILD[1]:
            return
        first = next((at for at, item in enumerate(PIPELINE) if item.name == self.start_at), 0)
        for item in PIPELINE[first:]:
            if item.name not in self.disabled:
                self._run_one(item, kernel)
            if item.name == self.stop_after:
                return

    def _run_one(self, item: Pass, kernel: Kernel) -> None:
        before = format_kernel(kernel) if self.verify else ""
        start = time.process_time()
        try:
            item.run(kernel)
            seconds = time.process_time() - start
            if self.verify:
                check(kernel, item.name)
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
        self.times.append(PassTime(item.name, seconds, sum(len(block.instrs) for block in kernel.blocks)))
        if self.observe is not None:
            self.observe(item.rank, item.name, kernel)
