"""Prints a kernel whose registers are assigned as PTX text (PTX ISA, "Syntax", "Directives").

Each value is a register of its bank, numbered in order of first appearance; blocks are labels in layout order, and a
branch to the next block is not written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from ptxc.errors import InputError, TargetError
from ptxc.ir import opcodes
from ptxc.ir.fragments import WGMMA_A, mma_groups
from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.opcodes import Opcode, requirements
from ptxc.ir.types import BANKS, F32, F64, Type
from ptxc.ir.values import TRUE, Const, Operand, Sym, Value
from ptxc.target import PtxVersion, Target, lowest_version


def suited_target(kernel: Kernel, target: Target) -> Target:
    """The target that ``kernel``, compiled for ``target``, is printed for: see :meth:`Target.with_features`."""
    return target.with_features(lambda: [requirements(op, mods) for op, mods in _forms(kernel)])


def _forms(kernel: Kernel) -> dict[tuple[Opcode, tuple[str, ...]], None]:
    """The forms of the kernel's instructions that some target or PTX version lacks, in order of appearance."""
    return {
        (instr.op, instr.mods): None for block in kernel.blocks for instr in block.instrs if not instr.op.everywhere
    }


def needed_version(kernels: Iterable[Kernel], target: Target) -> PtxVersion:
    """The lowest PTX version that has every instruction of ``kernels``, and knows the target.

    Raises TargetError, with the statement, for an instruction that the target lacks; InputError for one that PTX
    lacks, which is left where the passes began too late.
    """
    needs = []
    for kernel in kernels:
        for op, mods in _forms(kernel):
            if op in (opcodes.TILE_COORDS, opcodes.TILE_GUARD) and not kernel.ssa:
                raise InputError(
                    f"PTX has no {op}", kernel=kernel.name, hint="start at the pass 'collectives', which others follow"
                )
            need = requirements(op, mods)
            if not target.has(need):
                first = next(instr for instr in kernel.instrs() if (instr.op, instr.mods) == (op, mods))
                only = " or ".join(need.only)
                raise TargetError(
                    f"{target} has no {_mnemonic(op, mods)}, which "
                    + (f"only {only} {'has' if len(need.only) == 1 else 'have'}" if only else f"sm_{need.sm} brought"),
                    kernel=kernel.name,
                    statement=str(first.loc),
                    hint=f"compile for {only or f'sm_{need.sm} or newer'}, or choose a schedule without it",
                )
            needs.append(need)
    return lowest_version(target, needs)


def print_module(kernels: Iterable[Kernel], target: Target, version: PtxVersion) -> str:
    """The PTX text of a module with these kernels as its entries."""
    return _header(target, version) + "".join(f"\n{_Entry(kernel).text()}" for kernel in kernels)


def join_modules(texts: Iterable[str], target: Target, version: PtxVersion) -> str:
    """One module with the entries of several, texts of :func:`print_module`."""
    return _header(target, version) + "".join(text.partition(_ADDRESSES)[2] for text in texts)


#: The last line of a module's header.
_ADDRESSES = ".address_size 64\n"


def _header(target: Target, version: PtxVersion) -> str:
    return f".version {version}\n.target {target}\n{_ADDRESSES}"


class _Entry:
    """Prints one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.texts: dict[Operand, str] = {}
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
        lines += [")", f".maxntid {kernel.threads}"]
        if kernel.ctas:
            lines.append(f".minnctapersm {kernel.ctas}")
        lines.append("{")
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
            lines = self.instrs(block.instrs[:-1])
            lines += self.terminator(block.instrs[-1], following)
            chunks.append((block, lines))
        body = []
        for block, lines in chunks:
            if block in self.targeted:
                body.append(f"{self.labels[block]}:")
                if block.unrolled:
                    body.append('    .pragma "nounroll";')
            body += lines
        return body

    # --------------------------------------------------------------------------------------------- instructions

    def instrs(self, instrs: Sequence[Instr]) -> list[str]:
        """The lines of instructions none of which ends a block."""
        texts, counts = self.texts, self.counts
        lines: list[str] = []
        for instr in instrs:
            op = instr.op
            mnemonic = op.mnemonics.get(instr.mods) or _mnemonic(op, instr.mods)
            results: list[str] = []
            for value in instr.results:
                register = texts.get(value)
                if register is None:
                    # The next register of its bank: nearly all are met here.
                    bank = value.type
                    number = counts[bank]
                    counts[bank] = number + 1
                    register = texts[value] = f"%{bank.prefix}{number}"
                results.append(register)
            operands = [texts.get(operand) or self.operand(operand) for operand in instr.operands]
            spelling = _SPELLINGS.get(op)
            if spelling is not None:
                text = spelling(instr, mnemonic, results, operands)
            elif results or operands:
                text = f"{mnemonic} {', '.join(results + operands)}"
            else:
                text = mnemonic
            if instr.guard is not None:
                text = f"@{'!' if instr.guard.negated else ''}{self.operand(instr.guard.predicate)} {text}"
            lines.append(f"    {text};")
        return lines

    def terminator(self, instr: Instr, following: Block | None) -> list[str]:
        if instr.op is opcodes.RET:
            return ["    ret;"]
        if len(instr.targets) == 1:
            return self.jump("", instr.targets[0].block, following)
        (predicate,) = instr.operands
        then, otherwise = (edge.block for edge in instr.targets)
        if isinstance(predicate, Const):
            # A branch that is decided: PTX guards by registers alone.
            return self.jump("", then if predicate == TRUE else otherwise, following)
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

    def operand(self, operand: Operand) -> str:
        """The text of an operand, which is remembered."""
        text = self.texts.get(operand)
        if text is not None:
            return text
        if isinstance(operand, Value):
            number = self.counts[operand.type]
            self.counts[operand.type] = number + 1
            text = f"%{operand.type.prefix}{number}"
        elif isinstance(operand, Const):
            if operand.type is F32:
                text = f"0f{operand.bits:08X}"
            elif operand.type is F64:
                text = f"0d{operand.bits:016X}"
            else:
                text = str(operand.bits)
        elif isinstance(operand, Sym):
            text = operand.name
        else:
            base = self.operand(operand.base)
            text = f"[{base}+{operand.offset}]" if operand.offset else f"[{base}]"
        self.texts[operand] = text
        return text


def _mnemonic(op: Opcode, mods: tuple[str, ...]) -> str:
    mnemonic = op.mnemonics[mods] = ".".join((op.name, *mods))
    return mnemonic


# ------------------------------------------------------------------------- instructions that PTX spells otherwise


def _vector(registers: list[str]) -> str:
    return registers[0] if len(registers) == 1 else f"{{{', '.join(registers)}}}"


def _ld(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    return f"{mnemonic} {_vector(results)}, {operands[0]}"


def _st(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    return f"{mnemonic} {operands[0]}, {_vector(operands[1:])}"


def _pack(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    return f"mov.b32 {results[0]}, {_vector(operands)}"


def _unpack(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    return f"mov.b32 {_vector(results)}, {operands[0]}"


def _bitcast(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    return f"mov.b{instr.results[0].type.bits} {results[0]}, {operands[0]}"


def _shfl(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    return f"{mnemonic} {', '.join(('|'.join(results), *operands))}"


def _ldmatrix(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    # A single matrix is a vector of one, in braces too.
    return f"{mnemonic} {{{', '.join(results)}}}, {operands[0]}"


def _mma(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    """Groups in braces; the numbers of the byte and of the thread that supply scales are one group."""
    groups = mma_groups(instr.mods)
    parts = [f"{{{', '.join(results)}}}"]
    rest = iter(operands)
    for count, _ in groups.operands[:3]:
        parts.append(f"{{{', '.join(islice(rest, count))}}}")
    for scale in rest:
        parts += [scale, f"{{{next(rest)}, {next(rest)}}}"]
    return f"{mnemonic} {', '.join(parts)}"


def _bulk_tensor(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    """The tensor map and the coordinates are one operand."""
    destination, tensor_map, *coordinates, barrier = operands
    source = f"[{tensor_map}, {{{', '.join(coordinates)}}}]"
    return f"{mnemonic} {destination}, {source}, {barrier}"


def _wgmma(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    """The accumulators once, as they are results and operands; the registers of A are a group."""
    # Both are spelled alike.
    mnemonic = _mnemonic(opcodes.WGMMA, instr.mods)
    if instr.op is opcodes.WGMMA:
        accumulators, rest = results, operands[len(results) :]
    else:
        accumulators = results[:-WGMMA_A]
        rest = [f"{{{', '.join(results[-WGMMA_A:])}}}", *operands[len(results) :]]
    return f"{mnemonic} {{{', '.join(accumulators)}}}, {', '.join(rest)}"


def _wgmma_fence(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    return mnemonic


def _wgmma_wait(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    return f"{mnemonic} {operands[-1]}"


def _pair_cvt(instr: Instr, mnemonic: str, results: list[str], operands: list[str]) -> str:
    return f"{'.'.join(('cvt', *instr.mods))} {', '.join(results + operands)}"


_SPELLINGS: dict[Opcode, Callable[[Instr, str, list[str], list[str]], str]] = {
    opcodes.LD: _ld,
    opcodes.ST: _st,
    opcodes.PACK: _pack,
    opcodes.UNPACK: _unpack,
    opcodes.BITCAST: _bitcast,
    opcodes.SHFL: _shfl,
    opcodes.LDMATRIX: _ldmatrix,
    opcodes.MMA: _mma,
    opcodes.BULK_TENSOR: _bulk_tensor,
    opcodes.WGMMA: _wgmma,
    opcodes.WGMMA_RS: _wgmma,
    opcodes.WGMMA_FENCE: _wgmma_fence,
    opcodes.WGMMA_WAIT: _wgmma_wait,
    opcodes.PACK_CVT: _pair_cvt,
    opcodes.PAIR_CVT: _pair_cvt,
}
