"""Instructions, basic blocks and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ptxc.ir.opcodes import Opcode
from ptxc.ir.types import Type
from ptxc.ir.values import SPECIAL, Operand, Value


class Guard(NamedTuple):
    """The predicate under which an instruction executes: ``@%p`` or, negated, ``@!%p``."""

    predicate: Value
    negated: bool = False


class Instr:
    """One instruction. Facts about what it means are in its :class:`Opcode` row, none here."""

    __slots__ = ("guard", "loc", "mods", "op", "operands", "results", "targets")

    def __init__(
        self,
        op: Opcode,
        mods: tuple[str, ...] = (),
        results: tuple[Value, ...] = (),
        operands: tuple[Operand, ...] = (),
        targets: tuple[Edge, ...] = (),
        guard: Guard | None = None,
        loc: object = "",
    ) -> None:
        self.op = op
        self.mods = mods
        self.results = results
        self.operands = operands
        self.targets = targets
        self.guard = guard
        #: The Kernel IR statement it came from: ``str(loc)`` is what people see, empty for what no statement
        #: asked for. An object rather than text because most are never printed.
        self.loc = loc

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def __repr__(self) -> str:
        from ptxc.ir.text import format_instr

        return format_instr(self)


class Block:
    """A basic block: parameters, then instructions of which the last (and only the last) ends it."""

    __slots__ = ("collective", "instrs", "name", "params", "unrolled")

    def __init__(self, name: str, params: list[Value] | None = None) -> None:
        #: Unique within its kernel.
        self.name = name
        self.params: list[Value] = params or []
        self.instrs: list[Instr] = []
        #: The widest group of threads that an instruction here needs together: "cta", "warpgroup", "warp" or "".
        #: Written by the pass that finds collectives.
        self.collective = ""
        #: Whether this begins a loop that has been unrolled as far as it pays: the assembler shall not go on.
        self.unrolled = False

    @property
    def terminator(self) -> Instr:
        """The instruction that ends the block."""
        return self.instrs[-1]

    def successors(self) -> tuple[Block, ...]:
        """The blocks that control can reach next, in the terminator's order."""
        return tuple([edge.block for edge in self.instrs[-1].targets])

    def __repr__(self) -> str:
        return self.name


class Edge(NamedTuple):
    """A branch target: the block and what it passes for the block's parameters, in their order."""

    block: Block
    args: tuple[Operand, ...] = ()


class Param(NamedTuple):
    """A kernel parameter: ``type`` is PTX's ("u64", "u32"), ``align`` the pointee's alignment, 0 for a number."""

    name: str
    type: str
    align: int = 0


class Shared(NamedTuple):
    """A shared-memory array of ``size`` bytes; 0 means the dynamic pool, whose size the launch gives."""

    name: str
    size: int
    align: int


class Kernel:
    """One entry function: its interface and its blocks, of which the first is where control enters."""

    __slots__ = ("blocks", "ctas", "name", "names", "params", "registers", "shared", "ssa", "target", "threads")

    def __init__(self, name: str, target: str, threads: int) -> None:
        self.name = name
        #: The target's PTX spelling, such as ``sm_89``.
        self.target = target
        #: Threads of a CTA: the launch may not use more (``.maxntid``).
        self.threads = threads
        #: How many CTAs should fit a multiprocessor beside each other (``.minnctapersm``), 0 where it is left open.
        #: The assembler spares registers for more than the dynamic pool lets fit, whose size it does not know; and it
        #: may spill to fill a multiprocessor with threads.
        self.ctas = 0
        self.params: list[Param] = []
        self.shared: list[Shared] = []
        self.blocks: list[Block] = []
        #: Whether each value is defined once and blocks take parameters; false once registers are assigned.
        self.ssa = True
        #: How many registers of each bank there are; empty until they are counted.
        self.registers: dict[Type, int] = {}
        self.names: dict[str, int] = dict.fromkeys(SPECIAL, 0)

    def fresh(self, hint: str) -> str:
        """A name that nothing else of the kernel has: ``hint`` itself, then ``hint.1``, ``hint.2``, …"""
        counters = self.names
        count = counters.get(hint)
        if count is None:
            counters[hint] = 0
            return hint
        while True:
            count += 1
            name = f"{hint}.{count}"
            if name not in counters:
                counters[hint] = count
                counters[name] = 0
                return name

    def value(self, type: Type, hint: str) -> Value:
        """A new value, named after ``hint``."""
        counters = self.names
        number = counters[hint] = counters.get(hint, -1) + 1
        return Value(type, hint, number)

    def values(self, type: Type, hint: str, count: int) -> tuple[Value, ...]:
        """So many new values, named after ``hint``."""
        counters = self.names
        first = counters.get(hint, -1) + 1
        counters[hint] = first + count - 1
        return tuple([Value(type, hint, number) for number in range(first, first + count)])

    def reserve(self, name: str) -> None:
        """Take ``name`` as used, so that nothing new is called so."""
        self.names.setdefault(name, 0)
        stem, _, number = name.rpartition(".")
        if stem and number.isdigit():
            self.names[stem] = max(self.names.get(stem, 0), int(number))

    def take_apart(self) -> None:
        """Empty the blocks of a kernel that is not needed any more.

        The blocks of a loop hold each other by their branches. Apart, they go at once and leave the garbage collector
        nothing.
        """
        for block in self.blocks:
            block.instrs.clear()

    def instrs(self) -> Iterator[Instr]:
        """Every instruction in layout order."""
        for block in self.blocks:
            yield from block.instrs
