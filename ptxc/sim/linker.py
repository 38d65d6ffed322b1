"""Syntax tree -> program of one entry: scopes resolved, variables placed, calls inlined.

A call becomes a copy of its function, with registers and variables of its own, because threads that are apart in
different calls then need nothing but a program counter. ``.param`` variables of a call are the callee's parameters
themselves. A recursive call has no such copy and is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ptxc.errors import InputError, UnsupportedError
from ptxc.sim import program as linked
from ptxc.sim import syntax as ast
from ptxc.sim.program import WINDOWS, Extent, Instruction, Label, Memory, Program, Register
from ptxc.sim.scalar import TYPES, PtxType
from ptxc.sim.special import SPECIAL_REGISTERS

GUARD_GAP = 64
"""Bytes left free after each shared and local variable, so that running over its end is seen."""

_COMPONENTS = "xyzw"
_NUMBERED = re.compile(r"(.*?)(\d+)$")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable's place: an address in ``space``; functions have the space ``function``."""

    space: str
    address: int


Binding = Register | linked.Vector | Symbol | Label | linked.LabelTable


@dataclass(slots=True)
class _Scope:
    """The names that one pair of braces declares, and the braces around it."""

    parent: _Scope | None
    names: dict[str, Binding] = field(default_factory=dict)
    families: dict[str, tuple[int, PtxType]] = field(default_factory=dict)


def link(module: ast.Module, entry: str, symbols: dict[str, Symbol]) -> Program:
    """The program of ``entry``; ``symbols`` are the module's global and const variables and its functions.

    Raises InputError for a name that is not declared, UnsupportedError for what cannot be linked.
    """
    function = module.functions.get(entry)
    if function is None or not function.entry or function.body is None:
        raise InputError(f"PTX has no entry {entry!r}", hint=f"it has {', '.join(sorted(module.functions))}")
    return _Linker(module, function, symbols).run()


class _Linker:
    def __init__(self, module: ast.Module, entry: ast.Function, symbols: dict[str, Symbol]) -> None:
        self._module = module
        self._entry = entry
        self._program = Program(entry.name, limits=entry.limits)
        self._root = _Scope(None, dict(symbols))
        self._calls: list[str] = []
        self._local_end = 0
        self._shared: dict[int, Symbol] = {}

    def run(self) -> Program:
        self._place_shared()
        for variable in self._module.variables:
            if variable.space == "shared":
                self._root.names[variable.name] = self._shared[id(variable)]
        scope = _Scope(self._root)
        self._place_parameters(scope)
        assert self._entry.body is not None
        self._emit_scope(self._entry.body, scope, None)
        self._emit(Instruction(self._entry.line, "exit", (), ()))
        return self._program

    # Declarations

    def _place_parameters(self, scope: _Scope) -> None:
        end = 0
        for parameter in self._entry.parameters:
            if not isinstance(parameter, ast.Variable):
                raise InputError(f"PTX line {self._entry.line}: an entry's parameters are .param variables")
            kind = TYPES[parameter.type]
            end = _align(end, parameter.align)
            size = kind.size * (parameter.count or 0)
            self._program.parameters.append(linked.Parameter(parameter.name, kind, end, size, parameter.count != 1))
            scope.names[parameter.name] = Symbol("param", end)
            end += size

    def _place_shared(self) -> None:
        """Give every shared variable that the entry may see its address, once however often it is inlined.

        Arrays of unknown size all start where the launch's dynamic pool does, behind every other variable.
        """
        bodies = [f.body for f in self._module.functions.values() if f.body and not f.entry]
        assert self._entry.body is not None
        found = [v for v in self._module.variables if v.space == "shared"]
        for body in (self._entry.body, *bodies):
            found += _shared_variables(body)
        end = 0
        for variable in found:
            if variable.count is not None:
                start = _align(end, variable.align)
                end = start + TYPES[variable.type].size * variable.count
                self._program.shared.append(Extent(variable.name, start, end))
                self._shared[id(variable)] = Symbol("shared", start)
                end += GUARD_GAP
        self._program.dynamic_shared = _align(end, 1024)
        for variable in found:
            self._shared.setdefault(id(variable), Symbol("shared", self._program.dynamic_shared))

    def _declare_local(self, variable: ast.Variable) -> Symbol:
        start = _align(self._local_end, max(variable.align, 16))
        end = start + TYPES[variable.type].size * (variable.count or 0)
        self._program.local.append(Extent(variable.name, start, end))
        self._local_end = end + GUARD_GAP
        return Symbol("local", start)

    def _new_register(self, kind: PtxType, name: str) -> Register:
        register = Register(len(self._program.registers), kind, name)
        self._program.registers.append(register)
        return register

    def _declare_registers(self, scope: _Scope, item: ast.Registers) -> None:
        kind = TYPES[item.type]
        if item.vector > 1:
            parts = [self._new_register(kind, f"{item.name}.{c}") for c in _COMPONENTS[: item.vector]]
            scope.names[item.name] = linked.Vector(tuple(parts))
            scope.names.update((part.name, part) for part in parts)
        elif item.count is None:
            scope.names[item.name] = self._new_register(kind, item.name)
        else:
            scope.families[item.name] = (item.count, kind)

    def _declare(self, scope: _Scope, body: ast.Scope) -> None:
        """Everything that ``body`` declares, labels included, so that uses may come before them."""
        tables = []
        for item in body.items:
            match item:
                case ast.Registers():
                    self._declare_registers(scope, item)
                case ast.Variable(space="shared"):
                    scope.names[item.name] = self._shared[id(item)]
                case ast.Variable(space="local" | "param"):
                    scope.names[item.name] = self._declare_local(item)
                case ast.Variable():
                    raise UnsupportedError(
                        f"PTX line {item.line}: .{item.space} variables inside a function are not supported"
                    )
                case ast.Label():
                    scope.names[item.name] = Label(item.name)
                case ast.LabelList():
                    tables.append(item)
                case _:
                    pass
        for table in tables:
            labels = [self._lookup(scope, name, 0) for name in table.targets]
            if all(isinstance(label, Label) for label in labels):
                scope.names[table.name] = linked.LabelTable(tuple(x for x in labels if isinstance(x, Label)))

    # Names

    def _lookup(self, scope: _Scope, name: str, line: int) -> Binding:
        at: _Scope | None = scope
        while at is not None:
            found = at.names.get(name)
            if found is not None:
                return found
            numbered = _NUMBERED.match(name)
            if numbered and numbered[1] in at.families and int(numbered[2]) < at.families[numbered[1]][0]:
                register = self._new_register(at.families[numbered[1]][1], name)
                at.names[name] = register
                return register
            at = at.parent
        raise InputError(f"PTX line {line}: {name!r} is not declared")

    def _operand(self, scope: _Scope, operand: ast.Operand, line: int) -> linked.Operand:
        match operand:
            case ast.Number(value, bits):
                return linked.Immediate(value, bits)
            case ast.Name("_"):
                return linked.Sink()
            case ast.Name("WARP_SZ"):
                return linked.Immediate(32)
            case ast.Name(text) if text.startswith("%") and text[1:] in SPECIAL_REGISTERS:
                return linked.Special(text[1:])
            case ast.Name(text):
                found = self._lookup(scope, text, line)
                return linked.Immediate(found.address) if isinstance(found, Symbol) else found
            case ast.SymbolOffset(symbol, offset):
                found = self._lookup(scope, symbol.text, line)
                if not isinstance(found, Symbol):
                    raise InputError(f"PTX line {line}: {symbol.text!r} is not a variable")
                return linked.Immediate(found.address + offset)
            case ast.Vector(elements):
                return linked.Vector(tuple(self._operand(scope, e, line) for e in elements))
            case ast.Pair(first, second):
                return linked.Pair(self._operand(scope, first, line), self._operand(scope, second, line))
            case ast.Negated(name):
                return linked.Negated(self._register(scope, name.text, line))
            case ast.Address():
                return self._memory(scope, operand, line)
            case ast.Arguments():
                raise InputError(f"PTX line {line}: unexpected parenthesis")

    def _register(self, scope: _Scope, name: str, line: int) -> Register:
        found = self._lookup(scope, name, line)
        if not isinstance(found, Register):
            raise InputError(f"PTX line {line}: {name!r} is not a register")
        return found

    def _memory(self, scope: _Scope, address: ast.Address, line: int) -> Memory:
        index = tuple(self._operand(scope, part, line) for part in address.index)
        if address.base is None:
            return Memory(None, address.offset, "", index)
        found = self._lookup(scope, address.base.text, line)
        if isinstance(found, Symbol):
            return Memory(None, found.address + address.offset, found.space, index)
        if isinstance(found, Register):
            return Memory(found, address.offset, "", index)
        raise InputError(f"PTX line {line}: {address.base.text!r} is not an address")

    # Code

    def _emit(self, instruction: Instruction) -> None:
        self._program.instructions.append(instruction)

    def _place(self, label: Label) -> None:
        label.index = len(self._program.instructions)

    def _emit_scope(self, body: ast.Scope, scope: _Scope, after: Label | None) -> None:
        """``after`` is where ``ret`` goes: behind an inlined call, or, in the entry, nowhere (None)."""
        self._declare(scope, body)
        for item in body.items:
            match item:
                case ast.Scope():
                    self._emit_scope(item, _Scope(scope), after)
                case ast.Label():
                    label = scope.names[item.name]
                    assert isinstance(label, Label)
                    self._place(label)
                case ast.Instruction(opcode="call"):
                    self._emit_call(item, scope)
                case ast.Instruction(opcode="ret"):
                    target = () if after is None else (after,)
                    opcode = "exit" if after is None else "bra"
                    self._emit(Instruction(item.line, opcode, (), target, self._guard(scope, item)))
                case ast.Instruction():
                    operands = tuple(self._operand(scope, o, item.line) for o in item.operands)
                    guard = self._guard(scope, item)
                    self._emit(Instruction(item.line, item.opcode, item.modifiers, operands, guard))
                case _:
                    pass

    def _guard(self, scope: _Scope, item: ast.Instruction) -> Register | linked.Negated | None:
        if item.guard is None:
            return None
        register = self._register(scope, item.guard.name, item.line)
        return linked.Negated(register) if item.guard.negated else register

    def _emit_call(self, item: ast.Instruction, scope: _Scope) -> None:
        operands = list(item.operands)
        returns = _take_arguments(operands)
        callee = operands.pop(0)
        arguments = _take_arguments(operands)
        if not isinstance(callee, ast.Name):
            raise InputError(f"PTX line {item.line}: call names no function")
        name = self._module.aliases.get(callee.text, callee.text)
        function = self._module.functions.get(name)
        if function is None or function.body is None:
            raise UnsupportedError(f"PTX line {item.line}: call of {name!r}, which has no body here")
        if name in self._calls:
            raise UnsupportedError(f"PTX line {item.line}: recursive call of {name!r}")
        if len(arguments) != len(function.parameters) or len(returns) != len(function.returns):
            raise InputError(f"PTX line {item.line}: {name!r} is called with another number of arguments")
        after = Label(f"after {name}")
        guard = self._guard(scope, item)
        if guard is not None:
            inverse = guard.register if isinstance(guard, linked.Negated) else linked.Negated(guard)
            self._emit(Instruction(item.line, "bra", (), (after,), inverse))
        self._inline(function, scope, item.line, arguments, returns, after)

    def _inline(
        self,
        function: ast.Function,
        scope: _Scope,
        line: int,
        arguments: tuple[ast.Operand, ...],
        returns: tuple[ast.Operand, ...],
        after: Label,
    ) -> None:
        inner = _Scope(self._root)
        for formal, actual in zip(function.parameters, arguments, strict=True):
            bound = self._bind_formal(inner, scope, formal, actual, line)
            if bound is not None:
                self._copy(bound, self._operand(scope, actual, line), line)
        results = []
        for formal, actual in zip(function.returns, returns, strict=True):
            bound = self._bind_formal(inner, scope, formal, actual, line)
            if bound is not None:
                results.append((self._operand(scope, actual, line), bound))
        assert function.body is not None
        self._calls.append(function.name)
        done = Label(f"end of {function.name}")
        self._emit_scope(function.body, inner, done)
        self._calls.pop()
        self._place(done)
        for target, value in results:
            self._copy(target, value, line)
        self._place(after)

    def _bind_formal(
        self,
        inner: _Scope,
        outer: _Scope,
        formal: ast.Variable | ast.Registers,
        actual: ast.Operand,
        line: int,
    ) -> linked.Operand | None:
        """Declare a parameter inside the callee. None if it is the caller's variable, else what to copy."""
        if isinstance(formal, ast.Registers):
            self._declare_registers(inner, formal)
            return self._register(inner, formal.name, line)
        if isinstance(actual, ast.Name) and actual.text != "_" and not actual.text.startswith("%"):
            found = self._lookup(outer, actual.text, line)
            if isinstance(found, Symbol) and found.space == "local":
                inner.names[formal.name] = found
                return None
        symbol = self._declare_local(formal)
        inner.names[formal.name] = symbol
        return Memory(None, symbol.address, "local")

    def _copy(self, target: linked.Operand, value: linked.Operand, line: int) -> None:
        match target, value:
            case linked.Sink(), _:
                pass
            case Memory(), Register(type=kind):
                self._emit(Instruction(line, "st", ("local", f"b{kind.bits}"), (target, value)))
            case Register(type=kind), Memory():
                self._emit(Instruction(line, "ld", ("local", f"b{kind.bits}"), (target, value)))
            case Register(type=kind), _:
                self._emit(Instruction(line, "mov", (kind.name,), (target, value)))
            case _:
                raise UnsupportedError(f"PTX line {line}: this form of argument is not supported")


def _take_arguments(operands: list[ast.Operand]) -> tuple[ast.Operand, ...]:
    """The parenthesised list that ``operands`` begin with, taken off; empty if there is none."""
    if operands and isinstance(operands[0], ast.Arguments):
        first = operands.pop(0)
        assert isinstance(first, ast.Arguments)
        return first.elements
    return ()


def _shared_variables(body: ast.Scope) -> list[ast.Variable]:
    found: list[ast.Variable] = []
    for item in body.items:
        if isinstance(item, ast.Scope):
            found += _shared_variables(item)
        elif isinstance(item, ast.Variable) and item.space == "shared":
            found.append(item)
    return found


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def function_address(position: int) -> int:
    """The address of a module's ``position``-th function."""
    return WINDOWS["function"] + 16 * position
