"""Bit operations, shifts, comparisons, selection (PTX ISA 9.7.1, 9.7.7, 9.7.8): one row an opcode."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from ptxc.sim.binding import Modifiers, Pure
from ptxc.sim.program import Immediate, Pair
from ptxc.sim.rounding import flush
from ptxc.sim.scalar import HALVES, TYPES, Array, PtxType

_U32, _PRED = TYPES["u32"], TYPES["pred"]
_ONE, _ALL = np.uint32(1), np.uint32(0xFFFFFFFF)


def _bitwise(function: Callable[[Array, Array], Array]) -> Callable[[Modifiers], Pure]:
    def row(m: Modifiers) -> Pure:
        kind = m.type("b pred")
        return Pure((kind,), (kind, kind), function)

    return row


def _complement(m: Modifiers) -> Pure:
    kind = m.type("b pred")
    return Pure((kind,), (kind,), np.invert)


def _logical_not(m: Modifiers) -> Pure:
    kind = m.type("b")
    return Pure((kind,), (kind,), lambda a: (a == 0).astype(kind.dtype))


# Shifts: an amount beyond the width counts as the width.


def _shift_left(m: Modifiers) -> Pure:
    kind = m.type("b")
    last = np.uint32(kind.bits - 1)

    def shift(a: Array, n: Array) -> Array:
        shifted: Array = a << np.minimum(n, last).astype(kind.dtype)
        return shifted if (n <= last).all() else np.where(n > last, kind.dtype.type(0), shifted)

    return Pure((kind,), (kind, _U32), shift)


def _shift_right(m: Modifiers) -> Pure:
    kind = m.type("b u s")
    last = np.uint32(kind.bits - 1)

    def shift(a: Array, n: Array) -> Array:
        shifted: Array = a >> np.minimum(n, last).astype(kind.dtype)
        if kind.kind == "s" or (n <= last).all():
            return shifted
        return np.where(n > last, kind.dtype.type(0), shifted)

    return Pure((kind,), (kind, _U32), shift)


def _funnel_shift(m: Modifiers) -> Pure:
    left, wrap = m.choice(("l", "r")) == "l", m.choice(("wrap", "clamp")) == "wrap"
    kind = m.type("b32")

    def shift(a: Array, b: Array, c: Array) -> Array:
        n = (c & np.uint32(31) if wrap else np.minimum(c, np.uint32(32))).astype(np.uint64)
        both = b.astype(np.uint64) << np.uint64(32) | a
        return (both << n >> np.uint64(32) if left else both >> n).astype(np.uint32)

    return Pure((kind,), (kind, kind, _U32), shift)


# Bit fields


def _field_mask(length: Array, bits: int) -> Array:
    """``length`` ones from bit 0 upwards, of a type of ``bits`` bits; a length beyond that counts as ``bits``."""
    dtype = np.dtype(f"u{bits // 8}")
    short = np.minimum(length, bits - 1).astype(dtype)
    mask: Array = np.where(length >= bits, ~dtype.type(0), (dtype.type(1) << short) - dtype.type(1))
    return mask


def _extract(m: Modifiers) -> Pure:
    kind = m.type("u s")
    bits, unsigned = kind.bits, np.dtype(f"u{kind.size}")

    def extract(a: Array, b: Array, c: Array) -> Array:
        position, length = b & np.uint32(255), c & np.uint32(255)
        values = a.view(unsigned)
        beyond = position >= bits
        shifted = values >> np.minimum(position, bits - 1).astype(unsigned)
        shifted = np.where(beyond, unsigned.type(0), shifted)
        field: Array = shifted & _field_mask(length, bits)
        if kind.kind == "u":
            return field
        sign_at = np.minimum(position.astype(np.int64) + length - 1, bits - 1)
        sign = (values >> np.maximum(sign_at, 0).astype(unsigned) & unsigned.type(1)).astype(np.bool_)
        have = np.minimum(length, np.maximum(bits - position.astype(np.int64), 0))
        filled: Array = field | np.where(sign & (length > 0), ~_field_mask(have, bits), unsigned.type(0))
        signed: Array = filled.view(kind.dtype)
        return signed

    return Pure((kind,), (kind, _U32, _U32), extract)


def _insert(m: Modifiers) -> Pure:
    kind = m.type("b")
    bits, dtype = kind.bits, kind.dtype

    def insert(a: Array, b: Array, c: Array, d: Array) -> Array:
        position, length = c & np.uint32(255), d & np.uint32(255)
        near = np.minimum(position, bits - 1).astype(dtype)
        mask = _field_mask(length, bits) << near
        return np.where(position >= bits, b, (b & ~mask) | (a << near & mask))

    return Pure((kind,), (kind, kind, _U32, _U32), insert)


def _sign_extend(m: Modifiers) -> Pure:
    clamp = m.choice(("clamp", "wrap")) == "clamp"
    kind = m.type("u32 s32")

    def extend(a: Array, b: Array) -> Array:
        width = b & np.uint32(31)
        large = (b >= 32) if clamp else np.zeros(1, np.bool_)
        above = np.where(large, np.uint32(0), _ALL << width)
        sign = (a.view(np.uint32) >> (width - _ONE & np.uint32(31)) & _ONE).astype(np.bool_)
        negative = sign & (width > 0) & ~large & (kind.kind == "s")
        return ((a.view(np.uint32) & ~above) | np.where(negative, above, np.uint32(0))).view(kind.dtype)

    return Pure((kind,), (kind, _U32), extend)


def _bit_mask(m: Modifiers) -> Pure:
    clamp = m.choice(("clamp", "wrap")) == "clamp"
    kind = m.type("b32")

    def mask(a: Array, b: Array) -> Array:
        start = np.minimum(a, 32) if clamp else a & np.uint32(31)
        width = np.minimum(b, 32) if clamp else b & np.uint32(31)
        low = np.where(start >= 32, np.uint32(0), _ALL << (start & np.uint32(31)))
        return low & _field_mask(start.astype(np.uint64) + width, 32)

    return Pure((kind,), (kind, kind), mask)


def _reverse(m: Modifiers) -> Pure:
    kind = m.type("b")

    def reverse(a: Array) -> Array:
        octets = np.broadcast_to(a, a.shape).copy().view(np.uint8).reshape(-1, kind.size)
        flipped = np.packbits(np.unpackbits(octets, axis=1, bitorder="little"), axis=1, bitorder="big")
        return np.ascontiguousarray(flipped[:, ::-1]).view(kind.dtype).reshape(-1)

    return Pure((kind,), (kind,), reverse)


def _population(m: Modifiers) -> Pure:
    kind = m.type("b")
    return Pure((_U32,), (kind,), lambda a: np.bitwise_count(a).astype(np.uint32))


def highest_bit(values: Array) -> Array:
    """The position of the highest one of each unsigned value, as int64; -1 for zero."""
    smeared = values.copy()
    shift = 1
    while shift < values.dtype.itemsize * 8:
        smeared |= smeared >> values.dtype.type(shift)
        shift *= 2
    return np.bitwise_count(smeared).astype(np.int64) - 1


def _leading_zeros(m: Modifiers) -> Pure:
    kind = m.type("b")
    return Pure((_U32,), (kind,), lambda a: (kind.bits - 1 - highest_bit(a)).astype(np.uint32))


def _find_bit(m: Modifiers) -> Pure:
    amount = m.flag("shiftamt")
    kind = m.type("u s")

    def find(a: Array) -> Array:
        values = np.where(a < 0, ~a, a).view(f"u{kind.size}") if kind.kind == "s" else a
        at = highest_bit(values)
        found = kind.bits - 1 - at if amount else at
        return np.where(at < 0, -1, found).astype(np.uint32)

    return Pure((_U32,), (kind,), find)


def _find_nth(m: Modifiers) -> Pure:
    kind = m.type("b32")

    def find(mask: Array, base: Array, offset: Array) -> Array:
        bits = np.arange(32, dtype=np.int64)
        mask, base, offset = np.broadcast_arrays(mask, base, offset)
        ones = (mask[:, None] >> bits.astype(np.uint32) & _ONE).astype(np.bool_)
        up, down = offset[:, None] > 0, offset[:, None] < 0
        there = ones & np.where(up, bits >= base[:, None], np.where(down, bits <= base[:, None], bits == base[:, None]))
        order = np.where(down, there[:, ::-1].cumsum(1)[:, ::-1], there.cumsum(1))
        hit = there & (order == np.maximum(np.abs(offset), 1)[:, None])
        return np.where(hit.any(1), hit.argmax(1), -1).astype(np.uint32)

    return Pure((kind,), (kind, _U32, TYPES["s32"]), find)


# Bytes and truth tables

_PERMUTE_MODES = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
"""The source byte of each result byte, lowest first, for the four values of the control's two low bits."""


def _permute(m: Modifiers) -> Pure:
    mode = m.choice(_PERMUTE_MODES, "")
    kind = m.type("b32")

    def permute(a: Array, b: Array, c: Array) -> Array:
        source = b.astype(np.uint64) << np.uint64(32) | a
        result = np.zeros(1, np.uint32)
        for at in range(4):
            if mode:
                table = np.array([row[at] for row in _PERMUTE_MODES[mode]], np.uint64)
                control = table[c & np.uint32(3)]
            else:
                control = (c >> np.uint32(4 * at) & np.uint32(15)).astype(np.uint64)
            octet = (source >> (control & np.uint64(7)) * np.uint64(8) & np.uint64(255)).astype(np.uint32)
            replicated = np.where(octet >= 128, np.uint32(255), np.uint32(0))
            octet = np.where(control >= 8, replicated, octet)
            result = result | octet << np.uint32(8 * at)
        return result

    return Pure((kind,), (kind, kind, _U32), permute)


def truth_table(table: int) -> Callable[[Array, Array, Array], Array]:
    """The bitwise function of three operands whose value for bits (a, b, c) is bit ``4a + 2b + c`` of ``table``."""

    def apply(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros(1, a.dtype)
        for row in range(8):
            if table >> row & 1:
                result = result | (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return result

    return apply


def _lop3(m: Modifiers) -> Pure:
    combine = m.choice(("or", "and"), "")
    kind = m.type("b32")
    table = m.instruction.operands[4]
    if not isinstance(table, Immediate):
        raise m.instruction.wrong("the look-up table is a constant")
    function = truth_table(table.value)
    if not combine:
        return Pure((kind,), (kind, kind, kind, _U32), lambda a, b, c, _: function(a, b, c))
    join = np.logical_or if combine == "or" else np.logical_and

    def both(a: Array, b: Array, c: Array, _: Array, q: Array) -> tuple[Array, Array]:
        result = function(a, b, c)
        return result, join(result != 0, q)

    return Pure((kind, _PRED), (kind, kind, kind, _U32, _PRED), both)


# Comparison and selection

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_TRUE = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}
"""What ``set`` writes for true where the target is a float; an integer gets all ones."""
_COMPARISONS = {*_COMPARE, *_UNSIGNED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}


def comparison(name: str, kind: PtxType, ftz: bool) -> Callable[[Array, Array], Array]:
    """The predicate ``name`` of two operands of ``kind`` (PTX ISA 9.3.1); unordered forms hold for a NaN."""
    if kind.kind not in {"f", "bf"}:
        return _COMPARE[_UNSIGNED.get(name, name)]
    wide: Callable[[Array], Array] = np.asarray
    if kind.kind == "bf":
        wide = lambda x: (x.astype(np.uint32) << np.uint32(16)).view(np.float32)  # noqa: E731
    elif ftz:
        wide = flush

    def compare(a: Array, b: Array) -> Array:
        x, y = wide(a), wide(b)
        if name in {"num", "nan"}:
            unordered = np.isnan(x) | np.isnan(y)
            return ~unordered if name == "num" else unordered
        if name in _COMPARE and name != "ne":
            return _COMPARE[name](x, y)
        unordered = np.isnan(x) | np.isnan(y)
        if name == "ne":
            return np.not_equal(x, y) & ~unordered
        return _COMPARE[name[:-1]](x, y) | unordered

    return compare


def _comparisons(name: str, kind: PtxType, ftz: bool) -> list[Callable[[Array, Array], Array]]:
    """The comparison of ``kind``, or those of the low and the high half of a packed pair."""
    if kind.name not in HALVES:
        return [comparison(name, kind, ftz)]
    part = TYPES[HALVES[kind.name]]
    compare = comparison(name, part, ftz)

    def low(a: Array, b: Array) -> Array:
        return compare(a.astype(np.uint16).view(part.dtype), b.astype(np.uint16).view(part.dtype))

    return [low, lambda a, b: low(a >> np.uint32(16), b >> np.uint32(16))]


def _compare_parts(m: Modifiers) -> tuple[str, Callable[[Array, Array], Array] | None, bool]:
    name = m.choice(_COMPARISONS)
    combine = m.choice(_COMBINE, "")
    return name, _COMBINE.get(combine), m.flag("ftz")


def _set_predicate(m: Modifiers) -> Pure:
    name, combine, ftz = _compare_parts(m)
    kind = m.type()
    compare, *upper = _comparisons(name, kind, ftz)
    two = isinstance(m.instruction.operands[0], Pair)
    results = (_PRED, _PRED) if two else (_PRED,)
    sources = (kind, kind) if combine is None else (kind, kind, _PRED)

    def test(a: Array, b: Array, *c: Array) -> Array | tuple[Array, Array]:
        """With two results, the second is the complement's, or the upper half's of a packed pair."""
        first = compare(a, b)
        if not two:
            return combine(first, c[0]) if combine else first
        second = upper[0](a, b) if upper else ~first
        return (combine(first, c[0]), combine(second, c[0])) if combine else (first, second)

    return Pure(results, sources, test)


def _set(m: Modifiers) -> Pure:
    name, combine, ftz = _compare_parts(m)
    kinds = m.types()
    if len(kinds) != 2:
        raise m.instruction.wrong("set has two types")
    target, kind = kinds
    compares = _comparisons(name, kind, ftz)
    pattern = np.uint64(_TRUE.get(target.name, (1 << target.bits) - 1))
    if len(compares) == 2 and target.name not in HALVES:
        pattern = np.uint64(0xFFFF)

    def test(a: Array, b: Array, *c: Array) -> Array:
        result = np.zeros(1, np.uint64)
        for at, compare in enumerate(compares):
            holds = combine(compare(a, b), c[0]) if combine else compare(a, b)
            result = result | np.where(holds, pattern << np.uint64(16 * at), np.uint64(0))
        return result.astype(f"u{target.size}").view(target.dtype)

    return Pure((target,), (kind, kind) if combine is None else (kind, kind, _PRED), test)


def _select(m: Modifiers) -> Pure:
    kind = m.type()
    return Pure((kind,), (kind, kind, _PRED), lambda a, b, p: np.where(p, a, b))


def _select_sign(m: Modifiers) -> Pure:
    ftz = m.flag("ftz")
    kinds = m.types()
    if len(kinds) != 2 or kinds[1].name not in {"s32", "f32"}:
        raise m.instruction.wrong("slct has two types, of which the second is .s32 or .f32")
    kind = kinds[0]

    def select(a: Array, b: Array, c: Array) -> Array:
        return np.where((flush(c) if ftz else c) >= 0, a, b)

    return Pure((kind,), (kind, kind, kinds[1]), select)


def _test_property(m: Modifiers) -> Pure:
    name = m.choice(_PROPERTIES)
    kind = m.type("f32 f64")
    return Pure((_PRED,), (kind,), _PROPERTIES[name])


def _is_subnormal(a: Array) -> Array:
    small: Array = np.abs(a) < np.finfo(a.dtype).tiny
    return small & np.not_equal(a, 0)


_PROPERTIES: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & ~_is_subnormal(a),
    "subnormal": _is_subnormal,
}


LOGIC: dict[str, Callable[[Modifiers], Pure]] = {
    "and": _bitwise(np.bitwise_and),
    "or": _bitwise(np.bitwise_or),
    "xor": _bitwise(np.bitwise_xor),
    "not": _complement,
    "cnot": _logical_not,
    "shl": _shift_left,
    "shr": _shift_right,
    "shf": _funnel_shift,
    "bfe": _extract,
    "bfi": _insert,
    "szext": _sign_extend,
    "bmsk": _bit_mask,
    "brev": _reverse,
    "popc": _population,
    "clz": _leading_zeros,
    "bfind": _find_bit,
    "fns": _find_nth,
    "prmt": _permute,
    "lop3": _lop3,
    "setp": _set_predicate,
    "set": _set,
    "selp": _select,
    "slct": _select_sign,
    "testp": _test_property,
}
"""Opcodes on bits and predicates."""
