"""Prints a kernel whose registers are assigned as PTX text (PTX ISA, "Syntax", "Directives").

Each value is a register of its bank, numbered in order of first appearance; blocks are labels in layout order, and a
branch to the next block is not written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ptxc.errors import TargetError
from ptxc.ir import opcodes
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.opcodes import requirements
from ptxc.ir.types import BANKS, F32, F64, Type
from ptxc.ir.values import Const, Operand, Sym, Value
from ptxc.target import PtxVersion, Target


def needed_version(kernels: Iterable[Kernel], target: Target) -> PtxVersion:
    """The lowest PTX version that has every instruction of ``kernels``, and knows the target.

    Raises TargetError, with the statement, for an instruction that the target lacks.
    """
    version = target.ptx
    for kernel in kernels:
        seen = set()
        for instr in kernel.instrs():
            form = (instr.op, instr.mods)
            if form in seen:
                continue
            seen.add(form)
            need = requirements(*form)
            if not target.has(need):
                raise TargetError(
                    f"{target} has no {'.'.join((instr.op.name, *instr.mods))}, which sm_{need.sm} brought",
                    kernel=kernel.name,
                    statement=str(instr.loc),
                    hint=f"compile for sm_{need.sm} or newer, or choose a schedule without it",
                )
            version = max(version, PtxVersion(*need.ptx))
    return version


def print_module(kernels: Iterable[Kernel], target: Target, version: PtxVersion) -> str:
    """The PTX text of a module with these kernels as its entries."""
    header = f".version {version}\n.target {target}\n.address_size 64\n"
    return header + "".join(f"\n{_Entry(kernel).text()}" for kernel in kernels)


class _Entry:
    """Prints one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.registers: dict[Value, str] = {}
        self.counts: dict[Type, int] = dict.fromkeys(BANKS, 0)
        self.labels = {
            block: f"$L{index}_{re.sub('[^A-Za-z0-9_]', '_', block.name)}" for index, block in enumerate(kernel.blocks)
        }
        self.targeted: set[Block] = set()

    def text(self) -> str:
        kernel = self.kernel
        body = self.body()
        lines = [f".visible .entry {kernel.name}("]
        for index, param in enumerate(kernel.params):
            pointer = f" .ptr .global .align {param.align}" if param.align else ""
            comma = "," if index + 1 < len(kernel.params) else ""
            lines.append(f"    .param .{param.type}{pointer} {param.name}{comma}")
        lines += [")", f".maxntid {kernel.threads}", "{"]
        for bank in BANKS:
            if self.counts[bank]:
                lines.append(f"    .reg .{bank.name} %{bank.prefix}<{self.counts[bank]}>;")
        for shared in kernel.shared:
            if shared.size:
                lines.append(f"    .shared .align {shared.align} .b8 {shared.name}[{shared.size}];")
        lines += body
        lines.append("}")
        pools = [f".extern .shared .align {s.align} .b8 {s.name}[];\n" for s in kernel.shared if not s.size]
        return "".join(pools) + "\n".join(lines) + "\n"

    def body(self) -> list[str]:
        blocks = self.kernel.blocks
        chunks: list[tuple[Block, list[str]]] = []
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            lines = [self.instr(instr) for instr in block.instrs[:-1]]
            lines += self.terminator(block.instrs[-1], following)
            chunks.append((block, lines))
        body = []
        for block, lines in chunks:
            if block in self.targeted:
                body.append(f"{self.labels[block]}:")
            body += lines
        return body

    # --------------------------------------------------------------------------------------------- instructions

    def instr(self, instr: Instr) -> str:
        operands = instr.operands
        results = [self.register(value) for value in instr.results]
        name, parts = _SPELLINGS[instr.op](self, instr, results) if instr.op in _SPELLINGS else (
            ".".join((instr.op.name, *instr.mods)), results + [self.operand(operand) for operand in operands]
        )  # fmt: skip
        text = f"{name} {', '.join(parts)};" if parts else f"{name};"
        if instr.guard is not None:
            text = f"@{'!' if instr.guard.negated else ''}{self.register(instr.guard.predicate)} {text}"
        return f"    {text}"

    def terminator(self, instr: Instr, following: Block | None) -> list[str]:
        if instr.op is opcodes.RET:
            return ["    ret;"]
        if len(instr.targets) == 1:
            return self.jump("", instr.targets[0].block, following)
        (predicate,) = instr.operands
        then, otherwise = (edge.block for edge in instr.targets)
        register = self.operand(predicate)
        if then is following:
            return self.jump(f"@!{register} ", otherwise, following)
        return self.jump(f"@{register} ", then, following) + self.jump("", otherwise, following)

    def jump(self, guard: str, block: Block, following: Block | None) -> list[str]:
        if block is following:
            return []
        self.targeted.add(block)
        return [f"    {guard}bra {self.labels[block]};"]

    # ------------------------------------------------------------------------------------------------- operands

    def register(self, value: Value) -> str:
        name = self.registers.get(value)
        if name is None:
            bank = value.type
            name = self.registers[value] = f"%{bank.prefix}{self.counts[bank]}"
            self.counts[bank] += 1
        return name

    def operand(self, operand: Operand) -> str:
        if isinstance(operand, Value):
            return self.registers.get(operand) or self.register(operand)
        if isinstance(operand, Const):
            if operand.type is F32:
                return f"0f{operand.bits:08X}"
            if operand.type is F64:
                return f"0d{operand.bits:016X}"
            return str(operand.bits)
        if isinstance(operand, Sym):
            return operand.name
        base = operand.base.name if isinstance(operand.base, Sym) else self.register(operand.base)
        return f"[{base}+{operand.offset}]" if operand.offset else f"[{base}]"

    # --------------------------------------------------------------------- instructions that PTX spells otherwise

    def vector(self, registers: list[str]) -> str:
        return registers[0] if len(registers) == 1 else f"{{{', '.join(registers)}}}"

    def _ld(self, instr: Instr, results: list[str]) -> tuple[str, list[str]]:
        return ".".join((instr.op.name, *instr.mods)), [self.vector(results), self.operand(instr.operands[0])]

    def _st(self, instr: Instr, results: list[str]) -> tuple[str, list[str]]:
        address, *values = map(self.operand, instr.operands)
        return ".".join((instr.op.name, *instr.mods)), [address, self.vector(values)]

    def _pack(self, instr: Instr, results: list[str]) -> tuple[str, list[str]]:
        return "mov.b32", [results[0], self.vector([self.operand(operand) for operand in instr.operands])]

    def _unpack(self, instr: Instr, results: list[str]) -> tuple[str, list[str]]:
        return "mov.b32", [self.vector(results), self.operand(instr.operands[0])]

    def _bitcast(self, instr: Instr, results: list[str]) -> tuple[str, list[str]]:
        return f"mov.b{instr.results[0].type.bits}", [results[0], self.operand(instr.operands[0])]

    def _shfl(self, instr: Instr, results: list[str]) -> tuple[str, list[str]]:
        operands = [self.operand(operand) for operand in instr.operands]
        return ".".join((instr.op.name, *instr.mods)), ["|".join(results), *operands]


_SPELLINGS = {
    opcodes.LD: _Entry._ld,
    opcodes.ST: _Entry._st,
    opcodes.PACK: _Entry._pack,
    opcodes.UNPACK: _Entry._unpack,
    opcodes.BITCAST: _Entry._bitcast,
    opcodes.SHFL: _Entry._shfl,
}
