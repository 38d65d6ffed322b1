"""Checks that a kernel is well formed. Every pass may rely on these invariants and must keep them.

The interface
   1. The names of the kernel, its parameters and its shared arrays are PTX identifiers, no two of them alike.
   2. The target is ``sm_NN``, a CTA has 1 to 1024 threads, at most 32 CTAs are to fit a multiprocessor, parameters
      are u32 or u64, alignments are powers of two (0 for a parameter that is a number), sizes are not negative and
      one array at most is the dynamic pool.

Blocks and edges
   3. There is a block. Block names are such as the text form reads, no two alike; a collective mark is warp,
      warpgroup or cta.
   4. No block and no instruction object stands in two places.
   5. Every block ends with an instruction of effect END and has no other such.
   6. A ``bra`` has one target without a predicate and two with one; no other instruction has targets.
   7. Every edge leads to a block of the kernel.
   8. An edge passes one value or constant for each parameter of its block, of the parameter's bank.
   9. No edge leads to the entry block, and it takes no parameters. One block at most guards the tile, once.
  10. Every block can be reached from the entry block.

Instructions
  11. The modifiers are among the row's, none twice, with a number where the row has a ``=``; the types come last, as
      many as the row takes, and a vector form stands before its type. The types of ``bitcast`` are equally wide.
      ``tile.coords`` has ``cells`` and ``aux``, and to group two of its axes ``group``, ``grouped`` and ``other``.
  12. There are as many results and operands as the signature says; ``atom`` takes a third operand for ``cas`` alone.
  13. Every result and operand is of the kind and bank that its letter names; instructions of f16, bf16 and their
      pairs take no constants.
  14. Constants are normalised: integers and predicates signed in their bank's width, floats their bits.
  15. An address's base is a b64 register, in shared memory a b32 register or an array too, and in parameter space a
      parameter, which is loaded whole; the offset fits 32 bits, signed.
  16. Every symbol names a parameter or a shared array of the kernel or a special register, where that may stand, and
      ``mov`` of it has its width.
  17. A guard is a predicate, and never on an instruction of effect END, SYNC or JOINT: what threads do together stays
      under control flow, where its uniformity is analysed.

Values
  18. The names of values are such as the text form reads, no special register's, no two values' alike.
  19. SSA form: a value is defined once, by one result or one block parameter.
  20. SSA form: the definition dominates every use.
  21. SSA form: a guarded instruction has results only if its effect is READ or WRITE. Where the guard is false they
      are 0.
  22. Register form: blocks take no parameters.
  23. Register form: some definition reaches every use on some way.
  24. Registers that are counted are in register form; each bank has as many as there are values of it.

Tied registers
  25. Where results are tied, they have the banks of the operands at their places, which are registers. In register
      form result i is operand i, and no two are the same.
  26. SSA form: registers in flight (``ptxc.ir.flight``) are taken by tied operands and edges alone, and none is taken
      twice in a block. The registers that ``wgmma.mma_async`` takes come from ``wgmma.fence`` or another such.

What needs a control-flow graph (10, 20, 23) is checked where 3 to 9 hold. Whether the target has an instruction is
no question of form: ``ptxc.ir.opcodes.requirements`` knows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ptxc.errors import CompileError, InternalError
from ptxc.ir import cfg, types
from ptxc.ir.flight import flight_violations
from ptxc.ir.forms import Slot, count_of, form_of
from ptxc.ir.kernel import Block, Edge, Guard, Instr, Kernel, Param, Shared
from ptxc.ir.opcodes import BRA, END, JOINT, MOV, READ, SYNC, TILE_GUARD, WRITE, takes_constants
from ptxc.ir.text import NAME, format_kernel, format_operand
from ptxc.ir.types import B32, B64, PRED, Type
from ptxc.ir.uses import uses
from ptxc.ir.values import SPECIAL, Const, Mem, Operand, Sym, Value


class Place(NamedTuple):
    """A line of the text form: the block's index, -1 for the kernel's heading, and the instruction's.

    Line -1 is the block's heading. In the kernel's heading line 0 is the kernel's, then parameters, arrays and
    registers follow.
    """

    block: int
    line: int


class Violation(NamedTuple):
    """A broken invariant, by its number in the module's head."""

    place: Place
    invariant: int
    message: str


def verify(kernel: Kernel) -> list[Violation]:
    """Every violation of the invariants, in the order of the text form."""
    verifier = _Verifier(kernel)
    verifier.interface()
    for index, block in enumerate(kernel.blocks):
        verifier.block(index, block)
    verifier.registers()
    if not any(3 <= violation.invariant <= 9 for violation in verifier.found):
        verifier.flow()
    return sorted(verifier.found)


def check(kernel: Kernel, stage: str = "", error: type[CompileError] = InternalError) -> None:
    """Raise ``error`` if the kernel is not well formed; ``stage`` says after what it was looked at.

    The error is one line about the first violation. Its note is the whole IR with every violation.
    """
    violations = verify(kernel)
    if not violations:
        return
    first = violations[0]
    line = next((line.strip() for place, line in _lines(kernel) if place == first.place), "")
    what = f"the verifier refuses the IR{f' after {stage}' if stage else ''}: {first.message}, in {line!r}"
    if len(violations) > 1:
        what += f" (and {len(violations) - 1} more)"
    fault = error(what, kernel=kernel.name)
    fault.add_note(render(kernel, violations))
    raise fault


def render(kernel: Kernel, violations: list[Violation]) -> str:
    """The kernel's text with a line ``^ error: …`` for each violation under the line at fault."""
    text = []
    for place, line in _lines(kernel):
        text.append(line)
        indent = " " * (len(line) - len(line.lstrip()))
        text += [f"{indent}^ error: {v.message} (invariant {v.invariant})" for v in violations if v.place == place]
    return "\n".join(text) + "\n"


def _lines(kernel: Kernel) -> Iterator[tuple[Place | None, str]]:
    """The lines of the text form, with their places where they have one."""
    block, number = -1, 0
    for line in format_kernel(kernel).splitlines():
        if not line:
            block, number = block + 1, -1
            yield None, line
        elif line.startswith("  ;"):
            yield None, line
        else:
            yield Place(block, number), line
            number += 1


# ------------------------------------------------------------------------------------------------- the verifier

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_$]*|[_$][A-Za-z0-9_$]+").fullmatch
_TARGET = re.compile(r"sm_\d+[a-z]?").fullmatch
_NAME = re.compile(NAME).fullmatch


class _Verifier:
    """Collects one kernel's violations. ``at`` is the place that is being looked at."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.found: list[Violation] = []
        self.at = (-1, 0)
        self.blocks = set(kernel.blocks)
        self.params = {param.name: param for param in kernel.params}
        self.arrays = {array.name for array in kernel.shared}
        #: The blocks and instructions that were looked at.
        self.seen: set[Block | Instr] = set()
        self.labels: set[str] = set()
        #: Whether the tile's guard was seen.
        self.guarded = False
        #: What is defined, by name.
        self.values: dict[str, Value] = {}

    def report(self, invariant: int, message: str) -> None:
        self.found.append(Violation(Place(*self.at), invariant, message))

    # ------------------------------------------------------------------------------------------- interface

    def interface(self) -> None:
        kernel = self.kernel
        if not _TARGET(kernel.target):
            self.report(2, f"there is no target {kernel.target!r}")
        if not 1 <= kernel.threads <= 1024:
            self.report(2, f"a CTA has 1 to 1024 threads, not {kernel.threads}")
        if not 0 <= kernel.ctas <= 32:
            self.report(2, f"1 to 32 CTAs fit a multiprocessor, not {kernel.ctas}")
        if not kernel.blocks:
            self.report(3, "the kernel has no block")
        lines: tuple[Kernel | Param | Shared, ...] = (kernel, *kernel.params, *kernel.shared)
        names: set[str] = set()
        for line, named in enumerate(lines):
            self.at = (-1, line)
            if not _IDENTIFIER(named.name):
                self.report(1, f"{named.name!r} is no PTX identifier")
            if named.name in names:
                self.report(1, f"the name {named.name} stands twice")
            names.add(named.name)
            if isinstance(named, Param):
                self.param(named)
            elif isinstance(named, Shared):
                self.array(named)

    def param(self, param: Param) -> None:
        if param.type not in ("u32", "u64"):
            self.report(2, f"a parameter is u32 or u64, not {param.type}")
        if param.align and not _is_power_of_two(param.align):
            self.report(2, f"the alignment {param.align} is no power of two")

    def array(self, array: Shared) -> None:
        if array.size < 0:
            self.report(2, f"the size {array.size} is negative")
        if not _is_power_of_two(array.align):
            self.report(2, f"the alignment {array.align} is no power of two")
        if array.size == 0 and array is not next(other for other in self.kernel.shared if other.size == 0):
            self.report(2, "another array is the dynamic pool")

    # -------------------------------------------------------------------------------------- blocks and edges

    def block(self, index: int, block: Block) -> None:
        """Look at a block's heading and at each of its instructions alone."""
        self.at = (index, -1)
        self.heading(block)
        last = len(block.instrs) - 1
        for line, instr in enumerate(block.instrs):
            self.at = (index, line)
            if instr.op.effect == END and line != last:
                self.report(5, f"{instr.op} stands before the end of the block")
            self.instr(instr)
        if not block.instrs or block.terminator.op.effect != END:
            self.report(5, "the block does not end with a branch or a return")

    def heading(self, block: Block) -> None:
        if block in self.seen:
            self.report(4, f"the block {block.name} stands in two places")
        elif block.name in self.labels:
            self.report(3, f"the name {block.name} stands twice")
        self.seen.add(block)
        self.labels.add(block.name)
        if not _NAME(block.name):
            self.report(3, f"{block.name!r} is no name")
        if block.collective not in ("", "warp", "warpgroup", "cta"):
            self.report(3, f"there is no collective mark {block.collective!r}")
        if block.params and block is self.kernel.blocks[0]:
            self.report(9, "the entry block takes no parameters")
        if block.params and not self.kernel.ssa:
            self.report(22, "in register form blocks take no parameters")
        for value in block.params:
            self.define(value)

    def targets(self, instr: Instr) -> None:
        wanted = 1 + len(instr.operands) if instr.op is BRA else 0
        if len(instr.targets) != wanted:
            self.report(6, f"{instr.op} has {count_of(wanted, wanted, 'target')} here, not {len(instr.targets)}")
        for edge in instr.targets:
            if edge.block not in self.blocks:
                self.report(7, f"{edge.block.name} is no block of this kernel")
            elif edge.block is self.kernel.blocks[0]:
                self.report(9, "no edge leads to the entry block")
            self.edge(edge)

    def edge(self, edge: Edge) -> None:
        params = edge.block.params
        if len(edge.args) != len(params):
            self.report(
                8, f"{edge.block.name} takes {count_of(len(params), len(params), 'value')}, not {len(edge.args)}"
            )
        for arg, param in zip(edge.args, params):
            if not isinstance(arg, Value | Const) or arg.type is not param.type:
                self.report(8, f"{_describe(arg)} where {edge.block.name} takes {param.type}")
            elif isinstance(arg, Const):
                self.constant(arg)

    # ----------------------------------------------------------------------------------------- instructions

    def instr(self, instr: Instr) -> None:
        if instr in self.seen:
            self.report(4, "the instruction stands in two places")
        self.seen.add(instr)
        if instr.op is TILE_GUARD:
            if self.guarded:
                self.report(9, "the tile has a guard already")
            self.guarded = True
        form = form_of(instr.op, instr.mods, len(instr.results), len(instr.operands))
        for invariant, fault in form.faults:
            self.report(invariant, fault)
        if instr.op.tied:
            self.ties(instr)
        for value, wanted in zip(instr.results, form.results):
            if value.type is not wanted and wanted is not None:
                self.report(13, f"{_describe(value)} where {instr.op} gives {wanted}")
        for operand, slot in zip(instr.operands, form.operands):
            if not isinstance(operand, Value) or operand.type is not slot.bank:
                self.operand(instr, operand, slot)
        if instr.guard is not None:
            self.guard(instr, instr.guard)
        if instr.targets or instr.op is BRA:
            self.targets(instr)
        for value in instr.results:
            self.define(value)

    def ties(self, instr: Instr) -> None:
        for result, operand in zip(instr.results, instr.operands):
            if not isinstance(operand, Value) or operand.type is not result.type:
                self.report(25, f"{_describe(operand)} where {result} of {result.type} is tied to it")
            elif operand is not result and not self.kernel.ssa:
                self.report(25, f"{result} is tied to {operand}, which is another register")
        if not self.kernel.ssa and len({*instr.results}) < len(instr.results):
            self.report(25, f"{instr.op} has one register for two results")

    def operand(self, instr: Instr, operand: Operand, slot: Slot) -> None:
        """Look at an operand that is no register of the bank that the instruction takes."""
        if isinstance(operand, Const) and operand.type is (B32 if slot.letter == "I" else slot.bank):
            self.constant(operand)
            if slot.letter != "I" and not takes_constants(instr.op, instr.mods):
                self.report(13, f"a constant where {'.'.join((instr.op.name, *instr.mods))} takes a register")
        elif slot.letter == "X":
            pass  # a register of any bank: what is none is no tie
        elif isinstance(operand, Mem) and slot.letter == "M":
            self.address(instr, operand, slot.space)
        elif isinstance(operand, Sym) and slot.letter == "A":
            self.symbol(instr, operand, slot.bank)
        else:
            self.report(13, f"{_describe(operand)} where {instr.op} takes {slot}")

    def constant(self, constant: Const) -> None:
        bank, bits = constant
        least = 0 if bank.is_float else -(1 << (bank.bits - 1))
        if not 0 <= bits - least < 1 << bank.bits:
            self.report(14, f"the constant {bits} is not normalised to {bank}")

    def address(self, instr: Instr, address: Mem, space: str) -> None:
        base = address.base
        if not -(1 << 31) <= address.offset < 1 << 31:
            self.report(15, f"the offset {address.offset} takes more than 32 bits")
        if isinstance(base, Value):
            if space == "param" or (base.type is not B64 and not (base.type is B32 and space == "shared")):
                self.report(15, f"{_describe(base)}, no base of {space or 'generic'} addresses")
        elif space == "param" and base.name in self.params:
            width = types.BYTES[instr.mods[-1]] * len(instr.results)
            if address.offset or width != types.BYTES.get(self.params[base.name].type):
                self.report(15, f"the parameter {base.name} is not loaded whole")
        elif space != "shared" or base.name not in self.arrays:
            self.report(16, f"{base.name} names nothing in {space or 'generic'} space")

    def symbol(self, instr: Instr, symbol: Sym, bank: Type | None) -> None:
        name = symbol.name
        if name in self.arrays:
            banks = [B32, B64]
        elif instr.op is MOV and name[0] == "%" and name[1:] in SPECIAL:
            banks = [B32]
        else:
            self.report(16, f"{name} names nothing that {instr.op} takes")
            return
        if bank not in banks:
            self.report(16, f"{name} is {' or '.join(map(str, banks))} where {instr.op} takes {bank}")

    def guard(self, instr: Instr, guard: Guard) -> None:
        if guard.predicate.type is not PRED:
            self.report(17, f"{_describe(guard.predicate)}, no guard")
        if instr.op.effect in (END, SYNC, JOINT):
            self.report(17, f"{instr.op} takes no guard")
        elif self.kernel.ssa and instr.results and instr.op.effect not in (READ, WRITE):
            self.report(21, f"{instr.op} under a guard has no result in SSA form")

    # ------------------------------------------------------------------------------------------------ values

    def define(self, value: Value) -> None:
        known = self.values.get(value.name)
        if known is None:
            self.values[value.name] = value
            if not _NAME(value.name) or value.name in SPECIAL:
                self.report(18, f"no value can be called {value.name!r}")
        elif known is not value:
            self.report(18, f"another value is called {value} too")
        elif self.kernel.ssa:
            self.report(19, f"{value} is defined twice")

    def registers(self) -> None:
        counts = Counter(value.type for value in self.values.values())
        first = 1 + len(self.kernel.params) + len(self.kernel.shared)
        for line, (kind, count) in enumerate(self.kernel.registers.items(), first):
            self.at = (-1, line)
            if self.kernel.ssa:
                self.report(24, "registers are counted in register form")
            if count != counts[kind]:
                self.report(24, f"{kind} has {count_of(counts[kind], counts[kind], 'register')}, not {count}")

    def flow(self) -> None:
        """Look at what the control-flow graph decides."""
        index = {block: number for number, block in enumerate(self.kernel.blocks)}
        reachable = cfg.reverse_postorder(self.kernel)
        for block in index.keys() - set(reachable):
            self.at = (index[block], -1)
            self.report(10, f"nothing leads to {block.name}")
        if self.kernel.ssa:
            self.dominance(index)
            self.flights(index)
        else:
            self.reaching(index, reachable)

    def dominance(self, index: dict[Block, int]) -> None:
        """Walk the dominator tree with the set of values whose definitions dominate the place of the walk."""
        tree = cfg.dominator_tree(self.kernel)
        visible: set[Value] = set()
        # A list stands for leaving the block that defines its values.
        pending: list[Block | list[Value]] = [self.kernel.blocks[0]]
        while pending:
            block = pending.pop()
            if isinstance(block, list):
                visible.difference_update(block)
                continue
            scope = block.params.copy()
            visible.update(scope)
            for line, instr in enumerate(block.instrs):
                for value in uses(instr):
                    if value not in visible:
                        self.at = (index[block], line)
                        self.undefined(20, value, f"the definition of {value} does not dominate this use")
                visible.update(instr.results)
                scope += instr.results
            pending.append(scope)
            pending += tree[block]

    def flights(self, index: dict[Block, int]) -> None:
        for block, line, message in flight_violations(self.kernel):
            self.at = (index[block], line)
            self.report(26, message)

    def reaching(self, index: dict[Block, int], reachable: list[Block]) -> None:
        """Find which definitions reach the uses that none in their own block precedes."""
        exposed: list[tuple[Block, int, Value]] = []
        defined: dict[Block, set[Value]] = {}
        for block in reachable:
            own = defined[block] = set()
            for line, instr in enumerate(block.instrs):
                exposed += [(block, line, value) for value in uses(instr) if value not in own]
                own.update(instr.results)
        # Sets of values as the bits of a number: the lattice is small and its steps are many.
        bits = {value: 1 << number for number, value in enumerate(dict.fromkeys(value for _, _, value in exposed))}
        given = {block: sum(bits.get(value, 0) for value in own) for block, own in defined.items()}
        reach = dict.fromkeys(reachable, 0)
        changed = True
        while changed:
            changed = False
            for block in reachable:
                out = reach[block] | given[block]
                for after in block.successors():
                    if out & ~reach[after]:
                        reach[after] |= out
                        changed = True
        for block, line, value in exposed:
            if not reach[block] & bits[value]:
                self.at = (index[block], line)
                self.undefined(23, value, f"no definition of {value} reaches this use")

    def undefined(self, invariant: int, value: Value, message: str) -> None:
        known = self.values.get(value.name) is value
        self.report(invariant, message if known else f"nothing in this kernel defines {value}")


def _describe(operand: Operand) -> str:
    text = format_operand(operand)
    return f"{text} is {operand.type}" if isinstance(operand, Value | Const) else f"{text} stands"


def _is_power_of_two(number: int) -> bool:
    return number > 0 and not number & (number - 1)
