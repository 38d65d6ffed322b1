"""Which registers a fragment has."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from emmy.compiler.ir.kernel.ir import RegFragment

from ptxc.errors import InputError
from ptxc.frontend.dtypes import F32_T, ElementType, element_type
from ptxc.frontend.scope import Typed
from ptxc.ir import opcodes
from ptxc.ir.types import F32
from ptxc.ir.values import Const, Operand, Value, integer, real

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

_LANES = 32
#: No fragment has more registers (m8n8k4's accumulators).
_MOST = 8


class Fragment(NamedTuple):
    """What is known of a fragment, or of each member of a family of them."""

    #: Registers of a lane.
    registers: int
    #: What a register holds: an f32, or several packed elements as a u32.
    register: ElementType
    #: Emmy's name of the elements' type.
    dtype: str


def declare(k: Lowering, stmt: RegFragment, path: str) -> None:
    """A fragment's registers; those of an accumulator are zero, others undefined (zero here) until they are loaded."""
    count = _register_count(stmt)
    register = F32_T if stmt.role == "c" and stmt.dtype.nbytes != 2 else element_type("u32")
    zero = real(F32, 0.0) if register is F32_T else integer(register.bank, 0)
    k.fragments[stmt.name] = Fragment(count, register, stmt.dtype.name)
    k.families[stmt.name] = stmt.count
    members = [f"{stmt.name}[{member}]" for member in range(stmt.count)] if stmt.count > 1 else [stmt.name]
    for member in members:
        for name in register_names(member, count):
            if name in k.flights.state:
                what = f"the fragment {stmt.name!r} is declared again while wgmma may hold it"
                raise InputError(what, hint="wait for the product in the scope of its fragments")
            k.names.declare(name, Typed(zero, register))


def _register_count(stmt: RegFragment) -> int:
    """Registers of a lane: a warp's share of the tile, with as many elements in each as fit 32 bits.

    0 is one register that is no array (the scales of fp4).
    """
    if stmt.nregs is not None:
        return int(stmt.nregs)
    m, n, k = stmt.shape
    elements = {"a": m * k, "b": k * n, "c": m * n}.get(stmt.role)
    if elements is None:
        raise InputError(f"a fragment of the role {stmt.role!r}", hint="a fragment is a, b or c")
    packed = 4 // stmt.dtype.nbytes if stmt.role != "c" or stmt.dtype.nbytes == 2 else 1
    return elements // (_LANES * packed)


@lru_cache(4096)
def register_names(member: str, count: int) -> tuple[str, ...]:
    """The names of the registers of a fragment, or of a member of a family."""
    return tuple(f"{member}[{at}]" for at in range(count)) if count else (member,)


def stem(name: str) -> str:
    """The name of a fragment, or of the family that it is a member of, without subscripts."""
    return name.partition("[")[0]


def possible_names(k: Lowering, name: str) -> list[str]:
    """All names that registers of the fragment ``name`` can have, wherever it is declared."""
    family, bracket, subscript = name.partition("[")
    known = k.fragments.get(family)
    counts = range(_MOST) if known is None else range(known.registers)
    members = [name]
    if bracket and not subscript[:-1].isdigit():
        members = [f"{family}[{member}]" for member in range(k.families.get(family, 1))]
    return [register for member in members for register in (member, *(f"{member}[{at}]" for at in counts))]


def selects_fragments(k: Lowering, body: Any, var: str) -> bool:
    """Whether statements in ``body`` choose a member of a family of fragments by ``var``."""
    if all(count == 1 for count in k.families.values()):
        return False
    subscript = f"[{var}]"
    return any(
        name.endswith(subscript) or any(selects_fragments(k, inner, var) for inner in stmt.nested())
        for stmt in body
        for name in (*stmt.deps(), *stmt.defines(), "")
    )


def fragment(k: Lowering, name: str) -> Fragment:
    """What is known of the fragment ``name``, or of the family that it is a member of. Raises InputError."""
    found = k.fragments.get(name) or k.fragments.get(stem(name))
    if found is None:
        raise InputError(f"there is no fragment {name!r}", hint="a RegFragment before this statement declares it")
    return found


def names(k: Lowering, name: str) -> tuple[str, ...]:
    """The names of the registers of the fragment ``name``, which is to be read or written.

    Raises InputError for an unknown one, and for one that a product holds.
    """
    found = names_in_flight(k, name)
    if k.flights.state and any(k.flights.state.get(register) for register in found):
        raise InputError(f"the fragment {name!r} is held by wgmma", hint="a WgmmaWait before this statement ends that")
    return found


def names_in_flight(k: Lowering, name: str) -> tuple[str, ...]:
    """The same for a fragment that a product may hold."""
    return register_names(member_of(k, name) if "[" in name else name, fragment(k, name).registers)


def member_of(k: Lowering, name: str) -> str:
    """``name`` with its subscript, which may be the variable of a loop that is unrolled, as a number."""
    family, bracket, subscript = name.partition("[")
    if not bracket or subscript[:-1].isdigit():
        return name
    index = k.expressions.integer_of(subscript[:-1])
    if index.terms:
        raise InputError(f"{name!r} depends on a loop that runs", hint="registers have no address; unroll the loop")
    return f"{family}[{index.constant}]"


def read(k: Lowering, name: str) -> list[Typed]:
    """What the registers of the fragment ``name`` hold."""
    return [k.names.typed(register) for register in names(k, name)]


def operands(k: Lowering, name: str) -> list[Value]:
    """The registers of the fragment ``name`` as operands of a tensor core's instruction, which takes no constants."""
    return [as_register(k, value.operand) for value in read(k, name)]


def as_register(k: Lowering, operand: Operand) -> Value:
    """An operand in a register."""
    if isinstance(operand, Const):
        return k.builder.emit(opcodes.MOV, (operand.type.name,), operand.type, (operand,), "frag")
    assert isinstance(operand, Value)
    return operand


def assign(k: Lowering, name: str, values: list[Operand]) -> None:
    """Let the registers of the fragment ``name`` hold ``values``."""
    register = fragment(k, name).register
    for each, value in zip(names(k, name), values, strict=True):
        k.names.assign(each, Typed(value, register))
