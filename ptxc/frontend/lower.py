"""Kernel IR to IR: one entry function out of one ``KernelOp``.

:class:`Lowering` holds the state of the walk; what each statement means is in the modules beside this one, found
through :data:`STATEMENTS` (which `ptxc ops` lists).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from emmy.compiler.ir.kernel.ir import KernelOp

from ptxc.errors import CompileError, InputError, UnsupportedError
from ptxc.frontend.dtypes import I64_T, ElementType
from ptxc.frontend.expressions import Expressions
from ptxc.frontend.fragments.flights import Flights
from ptxc.frontend.fragments.registers import Fragment
from ptxc.frontend.linear import INT_MAX, Linear
from ptxc.frontend.math import Arithmetic
from ptxc.frontend.memory import POOL, Memory
from ptxc.frontend.scope import Names, Typed
from ptxc.frontend.signature import Signature
from ptxc.frontend.statements import STATEMENTS
from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Block, Kernel, Param, Shared
from ptxc.ir.types import B32, B64
from ptxc.ir.values import FALSE, TRUE, Mem, Operand, Sym, Value

#: What some parameters' memory is aligned to; that of pointers to pointers is to 8 bytes.
_ALIGN = {"zero": 4, "tensor_map": 64}


class Loc:
    """Where an instruction comes from: a statement and its place. Its text is made only when someone reads it."""

    __slots__ = ("_text", "path", "stmt")

    def __init__(self, path: str, stmt: Any) -> None:
        self.path = path
        self.stmt = stmt
        self._text = ""

    def __str__(self) -> str:
        if not self._text:
            self._text = f"{self.path} {describe(self.stmt)}"
        return self._text


def describe(stmt: Any) -> str:
    """A statement on one line, as Emmy's own listing shows it."""
    try:
        line = stmt.pretty()[0]
    except Exception:  # Emmy's printing of a statement with odd fields may fail; its name will do.
        line = type(stmt).__name__
    line = " ".join(line.split())
    return line if len(line) <= 100 else line[:97] + "..."


class Lowering:
    """The state of one kernel's lowering."""

    def __init__(self, signature: Signature, target: str, arithmetic: Arithmetic) -> None:
        self.signature = signature
        self.arithmetic = arithmetic
        self.kernel = Kernel(signature.name, target, signature.threads)
        entry = Block(self.kernel.fresh("entry"))
        self.kernel.blocks.append(entry)
        self.builder = Builder(self.kernel, entry)
        self.names = Names()
        self.memory = Memory(self.builder, signature)
        self.expressions = Expressions(self.builder, self.names, arithmetic, self.memory.flat_index, signature.threads)
        self.memory.expressions = self.expressions
        #: The kernel's last statement.
        self.last: Any = None
        #: How often the statements being lowered are written, since loops around them are unrolled.
        self.copies = 1
        #: The places of a body's statements, by its path: loops are unrolled, so many bodies are lowered again.
        self.places: dict[str, list[Loc]] = {}
        #: Statements in a body, and outer names that it assigns, by the body's identity.
        self.costs: dict[int, tuple[int, bool]] = {}
        self.assigned: dict[int, tuple[str, ...]] = {}
        #: The bodies of loops, by identity, whose loads are to be kept for the loop around.
        self.kept: set[int] = set()
        #: What is known of the fragments declared so far.
        self.fragments: dict[str, Fragment] = {}
        #: How many members each family of fragments has.
        self.families: dict[str, int] = {}
        #: The names of their registers, by the name that says which of a family it is, if they are one.
        self.members: dict[str, tuple[str, ...]] = {}
        #: What descriptors of matrices in shared memory describe: the type of its elements.
        self.matrices: dict[str, ElementType] = {}
        #: The registers of fragments that a product holds.
        self.flights = Flights(self.builder, self.names)
        #: The names that registers of products have, when so many fragments are known.
        self.held: tuple[int, dict[str, None]] = (-1, {})

    # --------------------------------------------------------------------------------------------- statements

    def body(self, stmts: Iterable[Any], path: str) -> None:
        """Lower the statements of the body ``path`` in order."""
        places = self.places.get(path)
        if places is None:
            places = self.places[path] = [Loc(f"{path}[{index}]", stmt) for index, stmt in enumerate(stmts)]
        builder = self.builder
        for loc in places:
            stmt = loc.stmt
            lower = STATEMENTS.get(type(stmt))
            try:
                if lower is None:
                    raise UnsupportedError(f"{type(stmt).__name__} is not supported yet", hint="see `ptxc ops`")
                builder.loc = loc
                lower(self, stmt, loc.path)
            except CompileError as error:
                if not error.statement:
                    error.at(statement=f"{loc.path} {describe(stmt)}")
                raise

    def coordinate(self, name: str, value: Linear) -> None:
        """Declare the variable of an axis or a loop."""
        if name in self.signature.runtime:
            raise InputError(f"{name!r} is called like a size that the launch gives", hint="rename the axis")
        self.declare(name, value)

    def scoped(self, stmts: Iterable[Any], path: str, binding: dict[str, Linear] | None = None) -> None:
        """Lower statements in a scope of their own, which begins with the names of ``binding``."""
        with self.scope():
            for name, value in (binding or {}).items():
                self.coordinate(name, value)
            self.body(stmts, path)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A C scope: names declared in it are unknown after it."""
        self.names.push()
        yield
        self.names.pop()

    @contextmanager
    def region(self) -> Iterator[None]:
        """Blocks that control may pass by: registers written in them are unknown after them."""
        self.expressions.enter()
        yield
        self.expressions.leave()

    def when(self, predicate: Operand, write: Callable[[], None]) -> None:
        """Run what ``write`` writes where ``predicate`` holds. It may assign no name that is declared outside."""
        if predicate == FALSE:
            return
        if predicate == TRUE:
            with self.scope():
                write()
            return
        builder = self.builder
        then, join = builder.new_block("then"), builder.new_block("join")
        builder.branch_if(predicate, then, join)
        builder.start(then)
        with self.scope(), self.region():
            write()
        builder.branch(join)
        builder.start(join)

    # ----------------------------------------------------------------------------------------------- interface

    def prologue(self) -> None:
        """The parameters, the shared arrays, and what runs before the first statement."""
        signature, builder = self.signature, self.builder
        if self.arithmetic.sm >= 90:
            # Programmatic dependent launch: wait for the grid ahead before touching memory.
            builder.effect(opcodes.GRID_WAIT, ("wait",))
        for parameter in signature.parameters:
            if parameter.is_pointer:
                plain = parameter.role in ("input", "output") and parameter.buffer in signature.buffers
                align = self._element_of(parameter.buffer).nbytes if plain else _ALIGN.get(parameter.role, 8)
                self.kernel.params.append(Param(parameter.name, "u64", align))
            else:
                self.kernel.params.append(Param(parameter.name, "u32"))
            self.kernel.reserve(parameter.name)
        for parameter in signature.parameters:
            self._receive(parameter.name, parameter.role, parameter.buffer)
        for name, page in signature.paged.items():
            if page.whole:
                self.memory.pointers[name] = self._pointer_at(self.memory.pointers[name])
            elif page.start is not None:
                self._start(page.start)
        for name in signature.indirect:
            self._indirect(name)
        self._shared()

    def _element_of(self, buffer: str) -> ElementType:
        try:
            return self.memory.type_of(buffer)
        except CompileError as error:
            error.at(statement=f"buffer {buffer}")
            raise

    def _receive(self, name: str, role: str, buffer: str) -> None:
        """Load one parameter."""
        builder = self.builder
        if role == "runtime":
            value = builder.emit(opcodes.LD, ("param", "u32"), B32, (Mem(Sym(name)),), name)
            serial = dict(self.signature.serial)
            self.expressions.note(value, self._least(name), serial[name] - 1 if name in serial else INT_MAX)
            self.names.declare(name, self.expressions.registers.linear(value))
        elif role in ("table", "selector", "slot"):
            return
        elif role == "tensor_map":
            # cp.async.bulk.tensor takes a generic address.
            self.memory.tensor_maps[name] = builder.emit(opcodes.LD, ("param", "u64"), B64, (Mem(Sym(name)),), name)
        else:
            self.memory.pointers[buffer] = self._pointer(name)

    def _least(self, name: str) -> int:
        """The least value of a runtime integer that a thread sees: where 0 makes the tile empty, no thread runs."""
        extents: list[Any] = [axis.extent.expr for axis in self.signature.tile.axes if not axis.extent.is_static]
        try:
            return int(any(extent.free_vars() == {name} and extent.eval({name: 0}) < 1 for extent in extents))
        except (ArithmeticError, NotImplementedError, TypeError):  # it divides by 0, or only a GPU can evaluate it
            return 0

    def _pointer(self, name: str) -> Value:
        """A pointer parameter, as an address of global memory."""
        generic = self.builder.emit(opcodes.LD, ("param", "u64"), B64, (Mem(Sym(name)),), name)
        return self.builder.emit(opcodes.CVTA, ("to", "global", "u64"), B64, (generic,), name)

    def _pointer_at(self, address: Value, offset: int = 0) -> Value:
        """The pointer that lies in global memory at ``address``."""
        generic = self.builder.emit(opcodes.LD, ("global", "u64"), B64, (Mem(address, offset),), "base")
        return self.builder.emit(opcodes.CVTA, ("to", "global", "u64"), B64, (generic,), "base")

    def _start(self, name: str) -> None:
        """The position in device memory at which a paged write begins: an i64 scalar, used as an int."""
        if name in self.memory.starts:
            return
        buffer = self.signature.buffers.get(name)
        if buffer is not None and (buffer.dtype != I64_T.name or any(size != 1 for size in buffer.shape)):
            raise InputError(
                f"the paged start {name!r} is no i64 scalar", hint="it is the position that the kernel reads"
            )
        pointer = self.memory.pointers[name]
        wide = self.builder.emit(opcodes.LD, ("global", "u64"), B64, (Mem(pointer),), name)
        position = self.builder.cvt("u32.u64", wide, f"{name}.at")
        self.expressions.note(position, 0, INT_MAX)
        self.memory.starts[name] = self.expressions.registers.linear(position)

    def _indirect(self, name: str) -> None:
        """An indirect input's base: ``table[selector[slot]]``."""
        builder = self.builder
        slot = builder.emit(opcodes.LD, ("param", "u32"), B32, (Mem(Sym(f"{name}__slot")),), "slot")
        at = builder.emit(opcodes.MAD, ("wide", "s32"), B64, (slot, builder.int32(4), self._pointer(f"{name}__sel")))
        chosen = builder.emit(opcodes.LD, ("global", "u32"), B32, (Mem(at),), "chosen")
        table = self._pointer(f"{name}__table")
        entry = builder.emit(opcodes.MAD, ("wide", "s32"), B64, (chosen, builder.int32(8), table))
        self.memory.pointers[name] = self._pointer_at(entry)

    def _shared(self) -> None:
        signature, kernel = self.signature, self.kernel
        taken = {kernel.name, *(param.name for param in kernel.params)}
        for name in (*signature.shared, *((POOL,) if signature.pool else ())):
            if name in taken:
                raise InputError(f"the kernel or a buffer is called {name!r} like a shared array", hint="rename one")
        if signature.pool:
            align = max(16, *(max(self.memory.type_of(s.name).nbytes, s.align) for s in signature.shared.values()))
            kernel.shared.append(Shared(POOL, 0, align))
            kernel.reserve(POOL)
            return
        for array in signature.shared.values():
            type = self.memory.type_of(array.name)
            count = 1
            for extent in array.extents:
                count *= extent
            kernel.shared.append(Shared(array.name, count * type.nbytes, max(type.nbytes, array.align or 0)))
            kernel.reserve(array.name)

    # -------------------------------------------------------------------------------------------------- values

    def value(self, name: str) -> Typed:
        """The value of a name, a register of its C type where it is an index."""
        entry = self.names.entries.get(name)
        if type(entry) is Typed:
            return entry
        if isinstance(entry, Linear):
            return self.expressions.as_typed(entry)
        return self.names.typed(name)

    def declare(self, name: str, entry: Typed | Linear) -> None:
        """Bind a name in the innermost scope."""
        if not (name.isidentifier() and name.isascii()):
            raise InputError(f"{name!r} is no name", hint="names are letters, digits and underscores")
        self.names.declare(name, entry)

    def assign(self, name: str, value: Typed) -> None:
        """Give a declared name a new value; expressions that read the old one are not remembered."""
        declared = self.names.typed(name).type
        if declared is not value.type:
            raise InputError(
                f"{name!r} is {declared.name} and is assigned {value.type.name}", hint="declare it as that"
            )
        self.names.assign(name, value)


def lower(op: KernelOp, signature: Signature, target: str, arithmetic: Arithmetic) -> Kernel:
    """Lower one kernel to IR in SSA form.

    Raises InputError, UnsupportedError or TargetError with the statement's place.
    """
    lowering = Lowering(signature, target, arithmetic)
    lowering.prologue()
    lowering.last = op.body[-1]
    lowering.body(op.body, "body")
    lowering.builder.loc = ""
    lowering.builder.ret()
    if signature.held:
        _check_flights(lowering.kernel)
    # The parts of the lowering hold each other: apart, they go at once and leave the garbage collector nothing.
    del lowering.memory.expressions
    return lowering.kernel


def _check_flights(kernel: Kernel) -> None:
    """Raise InputError where registers are used while wgmma holds them, which control may bring round a loop."""
    from ptxc.ir.flight import flight_violations

    for block, line, what in flight_violations(kernel):
        hint = "wait for the products before their registers are used or change places"
        raise InputError(what, statement=str(block.instrs[line].loc), hint=hint)
