"""ptxc without an optimisation of the frontend, or a part of a pass, for as long as a ``with`` block lasts.

These have no switch: a frontend that had them all twice would be twice as large. To measure what each is worth,
:data:`WITHOUT` has a patch for each, which puts in the place of a function or two what one would write first. Kernels
compute the same with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from ptxc.frontend import control, statements, unrolling
from ptxc.frontend.expressions import Expressions
from ptxc.frontend.fragments import store
from ptxc.frontend.integers import Integers
from ptxc.frontend.linear import INT_MAX, INT_MIN, Linear, Registers, constant
from ptxc.frontend.memory import POOL, Memory
from ptxc.frontend.scope import ScopedMemo
from ptxc.frontend.swizzles import CHUNK_SHIFT
from ptxc.ir import opcodes
from ptxc.ir.kernel import Block
from ptxc.ir.types import B32, B64
from ptxc.ir.values import Mem, Operand, Sym, Value, integer
from ptxc.passes import hoist, pressure
from ptxc.target import Target


class Without(NamedTuple):
    """What is put in whose place to have an optimisation not made."""

    #: What happens instead.
    instead: str
    #: The owner of a function or an attribute, its name, and what takes its place.
    patches: tuple[tuple[object, str, Any], ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have it so; in all threads."""
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(patch.object(owner, name, value))
            yield


def _keep_loops(trips: int, cost: int, hinted: bool, multiplies: bool, keeps: bool = False) -> int:
    return 1


def _no_rounds(body: Any, cost: int, trips: int = 0, factor: int = 1) -> tuple[tuple[int, ...], int]:
    return (), factor


def _rounds_of_four(body: Any, cost: int, trips: int = 0, factor: int = 1) -> tuple[tuple[int, ...], int]:
    return ((4,), 5) if not trips and _ROUNDS(body, cost)[0] else ((), factor)


def _follow_hints(trips: int, cost: int, hinted: bool, multiplies: bool, keeps: bool = False) -> int:
    return trips if trips and (hinted or trips * cost <= 32) else 1


def _keep_large_bodies(trips: int, cost: int, hinted: bool, multiplies: bool, keeps: bool = False) -> int:
    return 1 if cost > unrolling.LARGE_BODY and not hinted else _FACTOR(trips, cost, hinted, multiplies, keeps)


_FACTOR: Callable[..., int] = unrolling.unroll_factor
_ROUNDS: Callable[..., tuple[tuple[int, ...], int]] = unrolling.rounds

#: The assembler may unroll any loop.
_NOUNROLL = (Block, "unrolled", property(lambda block: False, lambda block, value: None))


def _literal_trips(k: Any, start: Linear, end: Linear, step: Linear) -> tuple[int, int]:
    """How often a loop runs whose bounds are constants."""
    return (0, 0) if start.terms or end.terms else _TRIPS(k, start, end, step)


_TRIPS: Callable[..., tuple[int, int]] = control._trips


def _coherent(self: Memory, name: str) -> tuple[str, ...]:
    return ("shared",) if name in self.signature.shared else ("global",)


def _global(self: Memory, pointer: Value, flat: Linear, nbytes: int) -> Mem:
    """All of the index, its constant too, times the element's size on the buffer's pointer."""
    if not (flat.terms or flat.constant):
        return Mem(pointer, 0)
    if not flat.terms:
        return _GLOBAL(self, pointer, flat, nbytes)
    index = self.expressions.register(flat, self.expressions.bits(flat))
    return Mem(_product_added(self, index, self.expressions.bits(flat), nbytes, pointer), 0)


def _shared(self: Memory, array: Any, flat: Linear, nbytes: int) -> Mem:
    """All of the index on the address of the shared array."""
    pool = self.signature.pool
    if not flat.terms:
        return _SHARED(self, array, flat, nbytes)
    inside = pool.get(array.name, 0) + flat.constant * nbytes
    return Mem(self._slot(Sym(POOL if pool else array.name), flat.terms, inside, nbytes), 0)


def _advance(self: Memory, pointer: Value, by: Linear, nbytes: int) -> Value:
    """The product and the addition as one instruction."""
    e = self.expressions
    bits, stride = e.bits(by), nbytes
    value, coefficient = next(iter(by.terms.items()))
    index: Operand = value
    if len(by.terms) == 1 and value.type is B32 and abs(coefficient * nbytes) <= INT_MAX:
        bits, stride = 32, coefficient * nbytes
    else:
        index = e.register(by, bits)
    return _product_added(self, index, bits, stride, pointer)


def _product_added(self: Memory, index: Operand, bits: int, stride: int, pointer: Value) -> Value:
    bank, mods = (B64, ("lo", "s64")) if bits == 64 else (B32, ("wide", "s32"))
    operands = (index, integer(bank, stride), pointer)
    return self.expressions.memoised(
        ("advance", *operands), lambda: self.builder.emit(opcodes.MAD, mods, B64, operands, "addr")
    )


_GLOBAL: Callable[..., Mem] = Memory.global_address
_SHARED: Callable[..., Mem] = Memory._shared


def _unknown_range(self: Registers, value: Value, lo: int, hi: int, depth: int) -> None:
    _ADD_ATOM(self, value, INT_MIN, INT_MAX, depth)


_ADD_ATOM: Callable[..., None] = Registers.add_atom


def _exchanged(self: Memory, flat: Linear, shift: int, mask: int) -> Linear:
    """The swizzle as it is defined, for each address anew."""
    e = self.expressions
    row = e.bitwise("&", e.bitwise(">>", flat, constant(shift)), constant(mask))
    return e.bitwise("^", flat, e.registers.scale(row, 1 << CHUNK_SHIFT))


#: By name.
WITHOUT: dict[str, Without] = {
    "unrolling": Without(
        "every loop stays one, and ptxas may unroll it",
        ((unrolling, "unroll_factor", _keep_loops), (unrolling, "rounds", _no_rounds), _NOUNROLL),
    ),
    "rounds": Without("a loop is unrolled by a divisor of its count, or not", ((unrolling, "rounds", _no_rounds),)),
    "limits of unrolling": Without(
        "whatever Emmy hints at is unrolled completely, as nvcc does",
        ((unrolling, "unroll_factor", _follow_hints), _NOUNROLL),
    ),
    "starts within a step": Without(
        "only loops from a constant to a constant have a known number of iterations",
        ((control, "_trips", _literal_trips),),
    ),
    "counted units": Without("a loop's counter is its index", ((control, "_unit", lambda start, end, stride: 1),)),
    "small bodies": Without(
        "what is not unrolled completely is so four times at most",
        ((unrolling, "_SMALL_BODIES", 0), (unrolling, "_SMALL_PRODUCTS", 0), (unrolling, "rounds", _rounds_of_four)),
    ),
    "large bodies": Without(
        "without a hint, a body of more than 36 statements stays one",
        ((unrolling, "unroll_factor", _keep_large_bodies),),
    ),
    "nounroll": Without("ptxas may unroll what has been unrolled once more, and large bodies", (_NOUNROLL,)),
    "sparing registers": Without("hoisting takes no heed of registers", ((hoist, "_SCARCE", 1 << 20),)),
    "constants of descriptors": Without("they leave loops as all else does", ((hoist, "_SMALL", 0),)),
    "epilogues in blocks": Without(
        "elements at an edge are computed for all threads, and stored under predicates",
        ((store, "_LONG_EPILOGUE", 1 << 20),),
    ),
    "non-coherent loads": Without("all loads are coherent", ((Memory, "space", _coherent),)),
    "order of loads": Without(
        "ptxas may move the loads of every epilogue in front of its stores", ((pressure, "_ACCUMULATORS", 1 << 20),)
    ),
    "base plus offset": Without(
        "each access has an address of its own, all of the index on the buffer's pointer",
        ((Memory, "global_address", _global), (Memory, "_shared", _shared)),
    ),
    "shared products": Without(
        "a part of an address is one mad of index, size and pointer", ((Memory, "_advance", _advance),)
    ),
    "32-bit indices": Without("indices are computed in 64 bits", ((Integers, "bits", lambda self, a: 64),)),
    "value ranges": Without(
        "nothing is known of a register but its 32 bits", ((Registers, "add_atom", _unknown_range),)
    ),
    "quotients put together": Without(
        "a quotient and a remainder are two terms of an address", ((Integers, "put_together", lambda self, a: a),)
    ),
    "empty copies": Without(
        "a row beyond the last has the last one's address, even if none of it is copied",
        ((Expressions, "where", lambda self, condition, a: a),),
    ),
    "swizzle parts": Without(
        "every address is shifted, masked and exchanged as a whole", ((Memory, "_exchanged", _exchanged),)
    ),
    "remembered registers": Without(
        "an expression that comes back is computed again", ((ScopedMemo, "remember", lambda self, key, value: value),)
    ),
    "vector accesses": Without(
        "what Emmy's schedule makes one access of several elements is as many",
        ((statements, "vector_width", lambda type, count: False),),
    ),
    "resident CTAs": Without(
        "ptxas is not told how many CTAs shall fit a multiprocessor",
        ((Target, "resident_ctas", lambda self, threads, shared: 0),),
    ),
}
