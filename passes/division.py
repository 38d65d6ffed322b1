"""Unsigned division and remainder by a constant, without dividing; and numbers put together of the two again.

A power of two is a shift or a mask. For another divisor d, multiply by its inverse in fixed point: with
``l = ceil(log2 d)`` and ``m = floor(2^N * (2^l - d) / d) + 1`` (N the width; Granlund and Montgomery, "Division by
Invariant Integers using Multiplication", 1994, fig. 4.1)::

    t = mulhi(m, x)        q = (t + ((x - t) >> 1)) >> (l - 1)

which is exact for every x of N bits. Where the multiplier ``2^N + m`` is even or the next smaller shift suffices, the
plain form ``q = mulhi(m', x) >> s`` does; :func:`_short` looks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ptxc.ir import opcodes
from ptxc.ir.kernel import Instr, Kernel
from ptxc.ir.opcodes import Opcode
from ptxc.ir.types import B32
from ptxc.ir.values import Const, Operand, Value, integer

#: The modifiers of a conversion to the low half.
_LOW_HALF: Final = ("u32", "u64")


def expand(kernel: Kernel, instr: Instr, divisor: int, known: Value | None, kept: list[Instr]) -> Value | None:
    """Turn ``div.uN`` or ``rem.uN`` by ``divisor`` (2 or more) into cheaper instructions, the last of them ``instr``.

    The others are appended to ``kept``. ``known`` is the quotient where it has been computed already; the result is the
    quotient, if it is now.
    """
    x = instr.operands[0]
    if divisor & (divisor - 1) == 0:
        _power_of_two(instr, divisor)
        return known
    if instr.op is opcodes.DIV:
        _quotient(kernel, instr, x, divisor, kept)
        return instr.results[0]
    bits, bank = instr.results[0].type.bits, instr.results[0].type
    if known is None:
        known = kernel.value(bank, "quotient")
        quotient = Instr(opcodes.DIV, instr.mods, (known,), instr.operands, loc=instr.loc)
        _quotient(kernel, quotient, x, divisor, kept)
        kept.append(quotient)
    # x - q * d
    instr.op, instr.mods = opcodes.MAD, ("lo", f"s{bits}")
    instr.operands = (known, integer(bank, -divisor), x)
    return known


def whole(
    kernel: Kernel,
    definitions: Mapping[Operand, Instr],
    kept: list[Instr],
    quotient: Operand,
    factor: int,
    rest: Operand,
    times: int,
) -> Operand | None:
    """x, if ``quotient * factor + rest * times`` is ``x * times``: a quotient and a remainder of x by one number.

    Where they are the low halves of such, so is x. They are as :func:`expand` writes them, which ``definitions`` say;
    what is needed besides is appended to ``kept``.
    """
    instr = definitions.get(rest)
    if instr is None or factor % times or not isinstance(instr.operands[-1], (Value, Const)):
        return None
    divisor = factor // times
    if instr.op is opcodes.MAD and instr.mods[0] == "lo":
        return instr.operands[2] if instr.operands[:2] == (quotient, integer(instr.results[0].type, -divisor)) else None
    other = definitions.get(quotient)
    if other is None:
        return None
    if instr.op is opcodes.CVT and other.op is opcodes.CVT and instr.mods == other.mods == _LOW_HALF:
        wide = whole(kernel, definitions, kept, other.operands[0], divisor, instr.operands[0], 1)
        if wide is None:
            return None
        narrow = kernel.value(B32, "t")
        kept.append(Instr(opcodes.CVT, _LOW_HALF, (narrow,), (wide,), loc=other.loc))
        return narrow
    if instr.op is not opcodes.AND or other.op is not opcodes.SHR:
        return None
    x, mask = instr.operands
    by = other.operands[1]
    exact = isinstance(mask, Const) and mask.bits == divisor - 1 and isinstance(by, Const) and 1 << by.bits == divisor
    return x if exact and other.operands[0] is x else None


def _power_of_two(instr: Instr, divisor: int) -> None:
    x = instr.operands[0]
    bank = instr.results[0].type
    if instr.op is opcodes.DIV:
        instr.op, instr.operands = opcodes.SHR, (x, integer(B32, divisor.bit_length() - 1))
    else:
        instr.op, instr.mods, instr.operands = opcodes.AND, (f"b{bank.bits}",), (x, integer(bank, divisor - 1))


def _quotient(kernel: Kernel, instr: Instr, x: Operand, divisor: int, kept: list[Instr]) -> None:
    """Write ``x / divisor``, the last instruction being ``instr``."""
    bank = instr.results[0].type
    kind = f"u{bank.bits}"

    def write(op: Opcode, mods: tuple[str, ...], *operands: Operand) -> Value:
        result = kernel.value(bank, "t")
        kept.append(Instr(op, mods, (result,), operands, loc=instr.loc))
        return result

    short = _short(divisor, bank.bits)
    if short is not None:
        multiplier, shift = short
        if shift == 0:
            instr.op, instr.mods, instr.operands = opcodes.MUL, ("hi", kind), (x, integer(bank, multiplier))
            return
        high = write(opcodes.MUL, ("hi", kind), x, integer(bank, multiplier))
        instr.op, instr.mods, instr.operands = opcodes.SHR, (kind,), (high, integer(B32, shift))
        return
    log = (divisor - 1).bit_length()
    multiplier = ((1 << bank.bits) * ((1 << log) - divisor)) // divisor + 1
    high = write(opcodes.MUL, ("hi", kind), x, integer(bank, multiplier))
    half = write(opcodes.SHR, (kind,), write(opcodes.SUB, (kind,), x, high), integer(B32, 1))
    total = write(opcodes.ADD, (kind,), half, high)
    instr.op, instr.mods, instr.operands = opcodes.SHR, (kind,), (total, integer(B32, log - 1))


def _short(divisor: int, bits: int) -> tuple[int, int] | None:
    """A multiplier of ``bits`` bits and a shift with ``x / divisor == (multiplier * x >> bits) >> shift``.

    With ``multiplier = ceil(2^(bits + shift) / divisor)`` and error ``e = multiplier * divisor - 2^(bits + shift)``
    that is exact for every x below ``2^bits`` if ``e <= 2^shift``.
    """
    for shift in range((divisor - 1).bit_length() + 1):
        multiplier = -(-(1 << (bits + shift)) // divisor)
        if multiplier.bit_length() <= bits and multiplier * divisor - (1 << (bits + shift)) <= 1 << shift:
            return multiplier, shift
    return None
