"""Which registers a fragment has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from emmy.compiler.ir.kernel.ir import RegFragment

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend.dtypes import (
    BF16_T,
    E2M1X2_T,
    E4M3_T,
    E5M2_T,
    F16_T,
    F32_T,
    ElementType,
    element_type,
)
from ptxc.frontend.linear import constant
from ptxc.frontend.scope import Typed
from ptxc.ir import opcodes
from ptxc.ir.types import F32
from ptxc.ir.values import Const, Operand, Value, integer, real

if TYPE_CHECKING:
    from ptxc.frontend.lower import Lowering

_LANES = 32
#: No fragment has more registers (m8n8k4's accumulators).
_MOST = 8
#: No family has more members: a thread has 255 registers.
_MOST_MEMBERS = 255
#: The types of the elements that fragments can have, by role.
_MULTIPLICANDS = (F16_T, BF16_T, E4M3_T, E5M2_T, E2M1X2_T)
_ELEMENTS = {"a": _MULTIPLICANDS, "b": _MULTIPLICANDS, "c": (F32_T, F16_T)}
#: The registers of f32 that a lane has of an accumulator, by layout.
_ACCUMULATORS = {"m16n8k16": 4, "wgmma": 4, "m8n8k4": 8}
_WORD_T = element_type("u32")
_ZERO, _ZERO_WORD = real(F32, 0.0), integer(_WORD_T.bank, 0)


class Fragment(NamedTuple):
    """What is known of a fragment, or of each member of a family of them."""

    #: Registers of a lane; 0 is one register that is no array (the scales of fp4).
    registers: int
    #: The type of its elements.
    element: ElementType
    #: What it is of a product: "a", "b" or the accumulators "c".
    role: str

    @property
    def register(self) -> ElementType:
        """What a register holds: an f32, or several packed elements as a u32."""
        return F32_T if self.element is F32_T else _WORD_T

    def __str__(self) -> str:
        """As errors name it."""
        return f"{self.role.upper()} of {self.element.name} in {self.registers} registers"


def declare(k: Lowering, stmt: RegFragment, path: str) -> None:
    """A fragment's registers; those of an accumulator are zero, others undefined (zero here) until they are loaded."""
    if not isinstance(stmt.count, int) or not 1 <= stmt.count <= _MOST_MEMBERS:
        raise InputError(f"a family of {stmt.count} fragments", hint=f"it has 1 to {_MOST_MEMBERS}")
    made = _described(stmt)
    zero = _ZERO if made.register is F32_T else _ZERO_WORD
    introduce(k, stmt.name, made, [zero] * max(made.registers, 1), stmt.count)


def introduce(k: Lowering, name: str, made: Fragment, values: Sequence[Operand], count: int = 1) -> None:
    """Declare the fragment ``name``, or a family of ``count`` fragments, whose registers hold ``values``."""
    if not (name.isidentifier() and name.isascii()):
        raise InputError(f"{name!r} is no name of a fragment", hint="names are letters, digits and underscores")
    if k.fragments.get(name) != made:
        k.fragments[name] = made
        k.members.clear()
    know_family(k, name, count)
    type, flying = made.register, k.flights.state
    entries = [Typed(value, type) for value in values]
    for member in [f"{name}[{member}]" for member in range(count)] if count > 1 else [name]:
        found = register_names(member, made.registers)
        if flying and not flying.keys().isdisjoint(found):
            what = f"the fragment {name!r} is declared again while wgmma may hold it"
            raise InputError(what, hint="wait for the product in the scope of its fragments")
        k.names.declare_all(found, entries)


def know_family(k: Lowering, name: str, count: int) -> None:
    """Let the fragment ``name`` be a family of ``count``, or one alone."""
    if k.families.get(name) != count:
        k.families[name] = count
        k.members.clear()


def _described(stmt: RegFragment) -> Fragment:
    """What a declaration says: how many registers a lane has, with as many elements in each as fit 32 bits."""
    elements = _ELEMENTS.get(stmt.role)
    if elements is None:
        raise InputError(f"a fragment of the role {stmt.role!r}", hint="a fragment is a, b or c")
    element = element_type(stmt.dtype.name)
    if element not in elements:
        hint = f"there are those of {', '.join(type.name for type in elements)}"
        raise UnsupportedError(f"a fragment of {stmt.role.upper()} of {element.name}", hint=hint)
    if len(stmt.shape) != 3 or not all([isinstance(extent, int) for extent in stmt.shape]):
        raise InputError(f"a fragment of the shape {stmt.shape}", hint="a shape is three numbers")
    m, n, depth = stmt.shape
    share, rest = divmod({"a": m * depth, "b": depth * n, "c": m * n}[stmt.role], _LANES * (4 // element.nbytes))
    if stmt.nregs is not None:
        share, rest = stmt.nregs, 0
    # Scales, which have no registers of their own, are not added up.
    least = 0 if stmt.nregs is not None and stmt.role != "c" else 1
    if not isinstance(share, int) or rest or not least <= share <= _MOST:
        registers = f"{stmt.nregs} registers" if stmt.nregs is not None else f"a lane's share of m{m}n{n}k{depth}"
        raise InputError(f"a fragment of {registers}", hint=f"it has 1 to {_MOST}, or 0 where it holds scales")
    return Fragment(share, element, stmt.role)


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
    count = _MOST if known is None else known.registers
    members = [name]
    if bracket and not subscript[:-1].isdigit():
        members = [f"{family}[{member}]" for member in range(k.families.get(family, 1))]
    return [each for member in members for each in (member, *(register_names(member, count) if count else ()))]


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


def accumulators(layout: str) -> int:
    """The registers of f32 of an accumulator of a layout. Raises UnsupportedError for an unknown one."""
    count = _ACCUMULATORS.get(layout)
    if count is None:
        hint = f"layouts are {', '.join(_ACCUMULATORS)}"
        raise UnsupportedError(f"accumulators of the layout {layout!r} are not supported yet", hint=hint)
    return count


def expect(k: Lowering, name: str, role: str, element: ElementType, count: int) -> None:
    """Raise InputError where the fragment ``name`` is not one of ``role`` with ``count`` registers of ``element``."""
    found = fragment(k, name)
    if found.role == role and found.element is element and found.registers == count:
        return
    wanted = Fragment(count, element, role)
    hint = "name, or declare, one that is"
    if (found.role, found.element, element) == ("c", F16_T, F32_T):
        hint = "a FragmentPromote adds packed accumulators to those of f32"
    raise InputError(f"the fragment {name!r} is {found}, not {wanted}", hint=hint)


def names(k: Lowering, name: str) -> tuple[str, ...]:
    """The names of the registers of the fragment ``name``, which is to be read or written.

    Raises InputError for an unknown one, and for one that a product holds.
    """
    found = names_in_flight(k, name)
    flying = k.flights.state
    if flying and any(flying.get(register) for register in found):
        raise InputError(f"the fragment {name!r} is held by wgmma", hint="a WgmmaWait before this statement ends that")
    return found


def names_in_flight(k: Lowering, name: str) -> tuple[str, ...]:
    """The same for a fragment that a product may hold."""
    found = k.members.get(name)
    if found is None:
        member = member_of(k, name)
        found = register_names(member, fragment(k, name).registers)
        if member == name:
            k.members[name] = found  # it is no variable that chooses the member
    return found


def member_of(k: Lowering, name: str) -> str:
    """``name`` with its subscript, which may be the variable of a loop that is unrolled, as a number."""
    family, bracket, subscript = name.partition("[")
    count = k.families.get(family, 1)
    if not bracket:
        if count > 1:
            raise InputError(f"{name!r} is a family of {count} fragments", hint="a subscript chooses one")
        return name
    if count == 1:
        raise InputError(f"{name!r}, but {family!r} is one fragment", hint="families of several have subscripts")
    if not subscript.endswith("]") or not (subscript[:-1].isidentifier() or subscript[:-1].isdecimal()):
        raise InputError(f"{name!r} is no name of a fragment", hint="a subscript is a number, or a loop's variable")
    if subscript[:-1].isdecimal():
        index = constant(int(subscript[:-1]))
    else:
        index = k.expressions.integer_of(subscript[:-1])
    if index.terms:
        raise InputError(f"{name!r} depends on a loop that runs", hint="registers have no address; unroll the loop")
    if not 0 <= index.constant < count:
        hint = f"its members are {family}[0] to {family}[{count - 1}]"
        raise InputError(f"there is no {family}[{index.constant}] in the family {family!r}", hint=hint)
    return f"{family}[{index.constant}]"


def read(k: Lowering, name: str) -> list[Typed]:
    """What the registers of the fragment ``name`` hold."""
    return k.names.all_typed(names(k, name))


def operands(k: Lowering, name: str) -> list[Value]:
    """The registers of the fragment ``name`` as operands of a tensor core's instruction, which takes no constants."""
    found = [held.operand for held in read(k, name)]
    return [operand if type(operand) is Value else as_register(k, operand) for operand in found]


def as_register(k: Lowering, operand: Operand) -> Value:
    """An operand in a register."""
    if isinstance(operand, Const):
        return k.builder.emit(opcodes.MOV, (operand.type.name,), operand.type, (operand,), "frag")
    assert isinstance(operand, Value)
    return operand


def assign(k: Lowering, name: str, values: Sequence[Operand]) -> None:
    """Let the registers of the fragment ``name`` hold ``values``."""
    register = fragment(k, name).register
    k.names.assign_all(names(k, name), [Typed(value, register) for value in values])
