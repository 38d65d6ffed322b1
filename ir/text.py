"""The text form of the IR: what dumps, goldens, tests and bug reports contain. ``docs/ir.md`` describes it.

:func:`format_kernel` and :func:`parse_kernel` are inverse to each other, byte for byte; but the peaks of registers
are computed for the text, and not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ptxc.errors import InputError
from ptxc.ir import types
from ptxc.ir.kernel import Block, Edge, Guard, Instr, Kernel, Param, Shared
from ptxc.ir.opcodes import OPCODES, Opcode, signature
from ptxc.ir.peaks import peaks
from ptxc.ir.types import B32, Type
from ptxc.ir.values import SPECIAL, Const, Mem, Operand, Sym, Value, integer

# ---------------------------------------------------------------------------------------------------- printing


def format_kernel(kernel: Kernel) -> str:
    """The kernel as text, ending in a newline."""
    lines = [f"kernel {kernel.name} target {kernel.target} threads {kernel.threads}"]
    if kernel.ctas:
        lines[0] += f" ctas {kernel.ctas}"
    if not kernel.ssa:
        lines[0] += " registers"
    lines += [
        f"  param {param.name}: {param.type}" + (f" align {param.align}" if param.align else "")
        for param in kernel.params
    ]
    lines += [f"  shared {shared.name}: {shared.size} align {shared.align}" for shared in kernel.shared]
    lines += _registers(kernel)
    for block in kernel.blocks:
        lines.append("")
        lines += format_block(block)
    return "\n".join(lines) + "\n"


def _registers(kernel: Kernel) -> list[str]:
    """The lines that say how many registers there are, and how many are live at once if that can be told."""
    blocks = {*kernel.blocks}
    if not kernel.registers or not all(block.instrs and blocks.issuperset(block.successors()) for block in blocks):
        return [f"  registers {bank.name}: {count}" for bank, count in kernel.registers.items()]
    live = peaks(kernel)
    return [f"  registers {bank.name}: {count} peak {live[bank]}" for bank, count in kernel.registers.items()]


def format_block(block: Block) -> list[str]:
    """The block's lines: its heading, then its instructions under the statements that they come from."""
    params = ", ".join(f"%{value.name}:{value.type.name}" for value in block.params)
    heading = f"{block.name}({params})" if params else block.name
    marks = (f" collective {block.collective}" if block.collective else "") + (" unrolled" if block.unrolled else "")
    lines = [f"{heading}:{marks}"]
    loc = ""
    for instr in block.instrs:
        text = " ".join(str(instr.loc).split())
        if text != loc:
            lines.append(f"  ; {text}".rstrip())
            loc = text
        lines.append(f"    {format_instr(instr)}")
    return lines


def format_instr(instr: Instr) -> str:
    """One instruction on one line."""
    text = ".".join((instr.op.name, *instr.mods))
    parts = [format_operand(operand) for operand in instr.operands]
    parts += [format_edge(edge) for edge in instr.targets]
    if parts:
        text = f"{text} {', '.join(parts)}"
    if instr.guard is not None:
        text = f"@{'!' if instr.guard.negated else ''}%{instr.guard.predicate.name} {text}"
    if instr.results:
        results = ", ".join(f"%{value.name}:{value.type.name}" for value in instr.results)
        text = f"{results} = {text}"
    return text


def format_operand(operand: Operand) -> str:
    """An operand as the text form writes it."""
    if isinstance(operand, Value):
        return f"%{operand.name}"
    if isinstance(operand, Const):
        if operand.type is types.F32:
            return f"0f{operand.bits:08X}"
        if operand.type is types.F64:
            return f"0d{operand.bits:016X}"
        return str(operand.bits)
    if isinstance(operand, Sym):
        return operand.name
    base = operand.base.name if isinstance(operand.base, Sym) else f"%{operand.base.name}"
    return f"[{base}{operand.offset:+d}]" if operand.offset else f"[{base}]"


def format_edge(edge: Edge) -> str:
    """A branch target with the values it passes."""
    return f"{edge.block.name}({', '.join(map(format_operand, edge.args))})" if edge.args else edge.block.name


# ----------------------------------------------------------------------------------------------------- parsing

#: How blocks and values may be called.
NAME = r"[A-Za-z_$][\w.$]*"
_INT = r"\d{1,20}"
_HEADER = re.compile(rf"kernel ({NAME}) target (sm_\w+) threads ({_INT})(?: ctas ({_INT}))?( registers)?$")
_PARAM = re.compile(rf"  param ({NAME}): (u32|u64)(?: align ({_INT}))?$")
_SHARED = re.compile(rf"  shared ({NAME}): ({_INT}) align ({_INT})$")
_REGISTERS = re.compile(rf"  registers (\w+): ({_INT})(?: peak {_INT})?$")
_BLOCK = re.compile(rf"({NAME})(?:\((.*)\))?:(?: collective (\w+))?( unrolled)?$")
_INSTR = re.compile(
    rf"    (?:(?P<results>%[^=]*) = )?(?:@(?P<not>!?)%(?P<guard>{NAME}) )?"
    r"(?P<op>[a-z](?:[\w.=]|::)*)(?: (?P<operands>.*))?$"
)
_OPERAND = re.compile(
    rf"(?:%(?P<value>{NAME})|0f(?P<f32>[0-9A-F]{{8}})|0d(?P<f64>[0-9A-F]{{16}})|(?P<int>-?{_INT})"
    rf"|\[(?P<base>%?{NAME})(?P<offset>[+-]{_INT})?\]|(?P<sym>{NAME}))(?P<args>\(.*?\))?(?:, |$)"
)


class _Parser:
    """Reads one kernel. Branches may name blocks that come later, so edges are resolved at the end."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines = text.split("\n")
        self.number = 0
        self.values: dict[str, Value] = {}
        self.defined: set[str] = set()
        self.blocks: dict[str, Block] = {}
        self.edges: list[tuple[int, Instr, list[tuple[str, list[str]]]]] = []

    def error(self, what: str) -> InputError:
        return InputError(
            what, file=self.name, statement=f"line {self.number}", hint="docs/ir.md describes the text form"
        )

    def take(self) -> Iterator[str]:
        """The lines that mean something, without comments. A location keeps its ``//``: Emmy divides with it."""
        for number, line in enumerate(self.lines, 1):
            self.number = number
            line = (line if line.startswith("  ;") else line.split("//", 1)[0]).rstrip()
            if line:
                yield line

    def parse(self) -> Kernel:
        lines = self.take()
        header = _HEADER.match(next(lines, ""))
        if header is None:
            raise self.error("expected 'kernel NAME target sm_NN threads N'")
        kernel = Kernel(header[1], header[2], int(header[3]))
        kernel.ctas = int(header[4] or 0)
        kernel.ssa = header[5] is None
        block: Block | None = None
        loc = ""
        for line in lines:
            if line.startswith("    ") and block is not None:
                block.instrs.append(self.instr(line, loc))
            elif line.startswith("  ;") and block is not None:
                loc = line[4:]
            elif (match := _BLOCK.match(line)) is not None:
                block = self.block(match)
                kernel.blocks.append(block)
                loc = ""
            elif block is None and (match := _PARAM.match(line)) is not None:
                kernel.params.append(Param(match[1], match[2], int(match[3] or 0)))
            elif block is None and (match := _SHARED.match(line)) is not None:
                kernel.shared.append(Shared(match[1], int(match[2]), int(match[3])))
            elif block is None and (match := _REGISTERS.match(line)) is not None and match[1] in types.BY_NAME:
                kernel.registers[types.BY_NAME[match[1]]] = int(match[2])
            else:
                raise self.error(f"cannot read {line.strip()!r}")
        self.resolve()
        for taken in (*self.values, *self.blocks):
            kernel.reserve(taken)
        return kernel

    def block(self, match: re.Match[str]) -> Block:
        name = match[1]
        if name in self.blocks:
            raise self.error(f"block {name} stands twice")
        block = self.blocks[name] = Block(name)
        block.collective = match[3] or ""
        block.unrolled = bool(match[4])
        block.params = [self.define(text) for text in match[2].split(", ")] if match[2] else []
        return block

    def define(self, text: str) -> Value:
        match = re.match(rf"%({NAME}):(\w+)$", text)
        if match is None or match[2] not in types.BY_NAME:
            raise self.error(f"cannot read the value {text!r}; a definition is %name:type")
        value = self.value(match[1])
        bank = types.BY_NAME[match[2]]
        if value.name in self.defined and value.type is not bank:
            raise self.error(f"%{value.name} is {value.type} in another place")
        self.defined.add(value.name)
        value.type = bank
        return value

    def value(self, name: str) -> Value:
        # A use may precede its definition in the text (a loop): the definition sets the type.
        value = self.values.get(name)
        if value is None:
            value = self.values[name] = Value(B32, name)
        return value

    def instr(self, line: str, loc: str) -> Instr:
        match = _INSTR.match(line)
        if match is None:
            raise self.error(f"cannot read the instruction {line.strip()!r}")
        op, mods = self.opcode(match["op"])
        results = tuple(self.define(text) for text in match["results"].split(", ")) if match["results"] else ()
        guard = Guard(self.value(match["guard"]), bool(match["not"])) if match["guard"] else None
        try:
            form = signature(op, mods)
        except KeyError:
            raise self.error(f"the modifiers of {match['op']} name no type that it takes") from None
        banks = form.operands if form is not None else ()
        instr = Instr(op, mods, results, guard=guard, loc=loc)
        operands: list[Operand] = []
        targets: list[tuple[str, list[str]]] = []
        for part in self.split(match["operands"] or ""):
            if op.effect == "END" and part["sym"]:
                args = part["args"]
                targets.append((part["sym"], args[1:-1].split(", ") if args else []))
            else:
                index = len(operands)
                operands.append(self.operand(part, (banks[index] if index < len(banks) else None) or B32))
        instr.operands = tuple(operands)
        if targets:
            self.edges.append((self.number, instr, targets))
        return instr

    def opcode(self, text: str) -> tuple[Opcode, tuple[str, ...]]:
        words = text.split(".")
        for count in (4, 3, 2, 1):
            op = OPCODES.get(".".join(words[:count]))
            if op is not None:
                return op, tuple(words[count:])
        raise self.error(f"there is no instruction {text!r}")

    def split(self, text: str) -> Iterator[re.Match[str]]:
        position = 0
        while position < len(text):
            match = _OPERAND.match(text, position)
            if match is None:
                raise self.error(f"cannot read the operand {text[position:]!r}")
            yield match
            position = match.end()

    def operand(self, match: re.Match[str], bank: Type) -> Operand:
        if match["args"] is not None:
            raise self.error(f"only a branch target takes values: {match[0]!r}")
        if match["value"] is not None:
            name = match["value"]
            return Sym(f"%{name}") if name in SPECIAL else self.value(name)
        if match["f32"] is not None:
            return Const(types.F32, int(match["f32"], 16))
        if match["f64"] is not None:
            return Const(types.F64, int(match["f64"], 16))
        if match["int"] is not None:
            if bank.is_float:
                raise self.error(f"{match['int']} stands for a constant of {bank}, which is written as its bits")
            return integer(bank, int(match["int"]))
        if match["base"] is not None:
            base = match["base"]
            register = self.value(base[1:]) if base.startswith("%") else Sym(base)
            return Mem(register, int(match["offset"] or 0))
        return Sym(match["sym"])

    def resolve(self) -> None:
        for number, instr, targets in self.edges:
            self.number = number
            edges = []
            for name, texts in targets:
                block = self.blocks.get(name)
                if block is None:
                    raise self.error(f"there is no block {name}")
                if len(texts) != len(block.params):
                    raise self.error(f"{name} takes {len(block.params)} values, not {len(texts)}")
                matches = [_OPERAND.match(text) for text in texts]
                if None in matches:
                    raise self.error(f"cannot read what {name} is passed")
                args = (self.operand(m, p.type) for m, p in zip(matches, block.params) if m is not None)
                edges.append(Edge(block, tuple(args)))
            instr.targets = tuple(edges)


def parse_kernel(text: str, name: str = "") -> Kernel:
    """Read a kernel's text form. ``name`` is the file it came from, for errors.

    Raises InputError, with the line, for text that is not a kernel. Whether the kernel makes sense is the
    verifier's question (:mod:`ptxc.ir.verify`).
    """
    return _Parser(text, name).parse()
