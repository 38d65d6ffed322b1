"""Program -> kernel: blocks of closures that the scheduler runs. An instruction that no table has is an error here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ptxc.sim.aligned import ALIGNED
from ptxc.sim.asynchronous import COPIES
from ptxc.sim.atomics import ATOMICS
from ptxc.sim.barrier import BarrierOperation, barrier_operation, cluster_arrive
from ptxc.sim.binding import Action, Modifiers, Pure, Reader, bind_pure, guarded, reader
from ptxc.sim.cfg import split_blocks
from ptxc.sim.convert import CONVERT
from ptxc.sim.global_race import GRID
from ptxc.sim.integer import INTEGER
from ptxc.sim.logic import LOGIC
from ptxc.sim.matrix import MATRIX
from ptxc.sim.matrix_memory import MATRIX_MEMORY
from ptxc.sim.mbarrier_ops import MBARRIERS, WAITS, PhaseWait, phase_wait
from ptxc.sim.movement import MOVEMENT, nothing
from ptxc.sim.program import Instruction, Label, LabelTable, Program
from ptxc.sim.proxy import fence
from ptxc.sim.real import REAL
from ptxc.sim.scalar import TYPES
from ptxc.sim.warp import COLLECTIVES, WARP_STATE, Collective, warp_barrier
from ptxc.sim.wgmma_ops import WARPGROUPS

_FENCES = ("fence", "membar")
_NO_EFFECT = ("nanosleep", "pmevent", "brkpt")
"""Ordering that one thread at a time in program order has anyway, and hints."""

ACTIONS: dict[str, Callable[[Instruction], Action]] = {
    **MOVEMENT,
    **ATOMICS,
    **COPIES,
    **GRID,
    **WARP_STATE,
    **MATRIX,
    **MATRIX_MEMORY,
    **MBARRIERS,
    **WARPGROUPS,
    "barrier": cluster_arrive,
    **dict.fromkeys(_FENCES, fence),
    **dict.fromkeys(_NO_EFFECT, nothing),
}
"""Opcodes that act on the machine's state."""

_FLOAT_KINDS = {"f", "bf"}
_FLOAT_PAIRS = {"f16x2", "bf16x2", "f32x2"}
BLOCKING = frozenset({"bar", "barrier", "mbarrier", *COLLECTIVES})
"""Opcodes at which a thread may have to wait."""


@dataclass(frozen=True, slots=True)
class FallThrough:
    """Control goes on at the next block."""


@dataclass(frozen=True, slots=True)
class Branch:
    """To block ``target``."""

    target: int


@dataclass(frozen=True, slots=True, eq=False)
class IndexedBranch:
    """To the block of ``targets`` that ``index`` chooses."""

    targets: tuple[int, ...]
    index: Reader


@dataclass(frozen=True, slots=True)
class Exit:
    """The thread is done."""


@dataclass(frozen=True, slots=True)
class Trap:
    """The launch is aborted."""


@dataclass(frozen=True, slots=True, eq=False)
class BarrierEnd:
    """A CTA barrier, then the next block."""

    operation: BarrierOperation


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveEnd:
    """A warp operation, then the next block."""

    collective: Collective


@dataclass(frozen=True, slots=True, eq=False)
class PhaseEnd:
    """A wait at an mbarrier, then the next block."""

    wait: PhaseWait


End = FallThrough | Branch | IndexedBranch | Exit | Trap | BarrierEnd | CollectiveEnd | PhaseEnd


@dataclass(slots=True, eq=False)
class Block:
    """A basic block: ``actions`` in order, then ``end`` for the threads in which ``guard`` holds.

    ``length`` counts instructions, ``first`` and ``last`` are its ends. ``polls`` says that the block belongs to a
    loop that may wait for what other threads write. ``gathers`` is how many threads must be there together (a warp, a
    warpgroup) before the block runs, 0 where one may run alone.
    """

    actions: list[tuple[Instruction, Action]]
    end: End
    guard: Reader | None
    first: Instruction
    last: Instruction
    length: int
    rank: int
    polls: bool = False
    gathers: int = 0


@dataclass(slots=True)
class Kernel:
    """An entry that can be launched."""

    program: Program
    blocks: list[Block] = field(default_factory=list)


def bind(program: Program) -> Kernel:
    """Look up every instruction of ``program``.

    Raises UnsupportedError, with the line, for one that is not executed, InputError for one that is not PTX.
    """
    code = program.instructions
    parts = split_blocks(program, BLOCKING, ALIGNED)
    numbers = {part.start: at for at, part in enumerate(parts)}
    kernel = Kernel(program)
    for part in parts:
        last = code[part.end - 1]
        end, guard = _end(last, numbers)
        plain = code[part.start : part.end if isinstance(end, FallThrough) else part.end - 1]
        actions = [(item, guarded(action_of(item), item.guard, item)) for item in plain]
        kernel.blocks.append(
            Block(
                actions, end, guard, code[part.start], last, part.end - part.start, part.rank, part.polls, part.gathers
            )
        )
    return kernel


def _end(last: Instruction, numbers: dict[int, int]) -> tuple[End, Reader | None]:
    end = _end_kind(last, numbers)
    if isinstance(end, FallThrough) or last.guard is None:
        return end, None
    return end, reader(last.guard, TYPES["pred"], last)


def _end_kind(last: Instruction, numbers: dict[int, int]) -> End:
    opcode = last.opcode
    if opcode == "exit":
        return Exit()
    if opcode == "trap":
        return Trap()
    if opcode == "bra":
        target = last.operands[0]
        if not isinstance(target, Label):
            raise last.wrong("a label is expected")
        return Branch(numbers[target.index])
    if opcode == "brx":
        index, table = last.operands
        if not isinstance(table, LabelTable):
            raise last.wrong("a list of labels is expected")
        return IndexedBranch(tuple(numbers[label.index] for label in table.labels), reader(index, TYPES["u32"], last))
    if opcode in {"bar", "barrier"}:
        if "warp" in last.modifiers:
            return CollectiveEnd(warp_barrier(last))
        if "cluster" in last.modifiers and "arrive" in last.modifiers:
            return FallThrough()
        return BarrierEnd(barrier_operation(last))
    if opcode == "mbarrier" and not set(WAITS).isdisjoint(last.modifiers):
        return PhaseEnd(phase_wait(last))
    if opcode in COLLECTIVES:
        return CollectiveEnd(COLLECTIVES[opcode](last))
    return FallThrough()


def action_of(instruction: Instruction) -> Action:
    """The action of an instruction that is not a control transfer and never waits."""
    special = ACTIONS.get(instruction.opcode)
    if special is not None:
        return special(instruction)
    row = _pure_row(instruction)
    if row is None:
        raise instruction.unsupported("this instruction")
    modifiers = Modifiers(instruction)
    pure = row(modifiers)
    modifiers.finish()
    return bind_pure(instruction, pure)


def _pure_row(instruction: Instruction) -> Callable[[Modifiers], Pure] | None:
    """The row of an opcode; where integers and floats share it, the type decides."""
    opcode = instruction.opcode
    kinds = [TYPES[name] for name in instruction.modifiers if name in TYPES]
    real = any(kind.kind in _FLOAT_KINDS or kind.name in _FLOAT_PAIRS for kind in kinds)
    if opcode in REAL and (real or opcode not in INTEGER):
        return REAL[opcode]
    return INTEGER.get(opcode) or LOGIC.get(opcode) or CONVERT.get(opcode)


def supported() -> dict[str, list[str]]:
    """The opcodes that are executed, by kind."""
    tables: dict[str, Iterable[str]] = {
        "integers": INTEGER,
        "floats": REAL,
        "bits and predicates": LOGIC,
        "conversions": CONVERT,
        "data": MOVEMENT,
        "atomics": ATOMICS,
        "matrices": [
            *MATRIX,
            *MATRIX_MEMORY,
            "wgmma.mma_async",
            "wgmma.fence",
            "wgmma.commit_group",
            "wgmma.wait_group",
        ],
        "asynchronous copies": [
            "cp.async",
            "cp.async.commit_group",
            "cp.async.wait_group",
            "cp.async.wait_all",
            "cp.async.bulk",
            "cp.async.bulk.tensor",
            "cp.async.mbarrier.arrive",
        ],
        "warps": [*COLLECTIVES, *WARP_STATE, "bar.warp"],
        "barriers": ["bar", "barrier", "barrier.cluster", *MBARRIERS],
        "control": ["bra", "brx.idx", "call", "ret", "exit", "trap"],
        "of no effect here": [*_FENCES, *_NO_EFFECT],
    }
    return {kind: sorted(opcodes) for kind, opcodes in tables.items()}
