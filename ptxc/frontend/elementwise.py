"""Elementwise operations: what each of Emmy's names computes, and in which type.

Sources: ``Assign.render`` and ``op_to_expr`` of ``emmy.compiler.ir.stmt`` (the types that an operation runs in and what
each name means), ``CudaRenderTarget`` (which have a form of their own in f16 and in integers).
"""

from __future__ import annotations

from collections.abc import Callable

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend import math, minifloat
from ptxc.frontend.convert import constant, convert, truth
from ptxc.frontend.dtypes import (
    BF16_T,
    BOOL_T,
    E2M1X2_T,
    F16_T,
    F16X2_T,
    F32_T,
    F64_T,
    FP8,
    ElementType,
    element_type,
)
from ptxc.frontend.math import Arithmetic
from ptxc.frontend.scope import Typed
from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.opcodes import Opcode
from ptxc.ir.types import B32, B64, PRED
from ptxc.ir.values import FALSE, Const, Operand, integer, real

#: Operators of expressions, as the operation that computes them on floats.
OF_OPERATOR: dict[str, str] = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide", "%": "mod",
}  # fmt: skip

#: Operators of expressions, as the operation that computes them on integers.
OF_INTEGER_OPERATOR: dict[str, str] = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "floor_divide", "//": "floor_divide", "%": "mod",
    "<<": "left_shift", ">>": "right_shift", "&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor",
    "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "not_equal",
}  # fmt: skip

#: Functions that expressions call, by the operation that they are.
FUNCTIONS: dict[str, str] = {
    "exp": "exp", "exp_fast": "exp_fast", "log": "log", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tanh": "tanh",
    "fabs": "abs", "abs": "abs", "fmax": "maximum", "maximum": "maximum", "fmin": "minimum", "minimum": "minimum",
    "pow": "pow", "sqrt": "sqrt", "erf": "erf", "floor": "floor", "divide_rn_f32": "divide_rn_f32",
    "reciprocal": "reciprocal", "sigmoid": "sigmoid", "relu": "relu", "square": "square", "negative": "negative",
}  # fmt: skip

#: Comparisons, which give 1.0 or 0.0.
COMPARISONS: dict[str, str] = {
    "equal": "eq", "not_equal": "ne", "greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le",
}  # fmt: skip

#: What gives its operand as it is. That of fp8 has been converted before, and the result is afterwards.
IDENTITIES = ("copy", "pad", "from_f8e4m3", "from_f8e5m2", "to_f8e4m3", "to_f8e5m2")

_OPERANDS = "give the operation as many as it takes"
#: Operations on floats, and how many operands each takes.
ARITY: dict[str, int] = {
    "add": 2, "subtract": 2, "multiply": 2, "divide": 2, "floor_divide": 2, "mod": 2, "divide_rn_f32": 2,
    "maximum": 2, "minimum": 2, "pow": 2, "negative": 1, "square": 1, "reciprocal": 1,
    "relu": 1, "sigmoid": 1, "exp": 1, "exp_fast": 1, "log": 1, "rsqrt": 1, "sin": 1, "cos": 1, "tanh": 1, "sqrt": 1,
    "erf": 1, "floor": 1, "abs": 1, "bitwise_and": 2, "bitwise_or": 2, "bitwise_not": 1, "where": 3, "to_f4e2m1": 1,
    **dict.fromkeys(IDENTITIES, 1), **dict.fromkeys(COMPARISONS, 2),
}  # fmt: skip

#: What has an f16 form in CUDA; the rest is computed in f32 and rounded once.
NATIVE_F16 = frozenset(
    [
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "tanh",
        "abs",
        "negative",
        "copy",
        "reciprocal",
        "relu",
    ]
)

#: What integers compute as integers: the instruction and its modifiers before the type. ``by_sign``: the
#: instruction differs for signed and unsigned operands.
_INTEGER: dict[str, tuple[Opcode, tuple[str, ...], bool]] = {
    "add": (opcodes.ADD, (), True),
    "subtract": (opcodes.SUB, (), True),
    "multiply": (opcodes.MUL, ("lo",), True),
    "floor_divide": (opcodes.DIV, (), True),
    "remainder": (opcodes.REM, (), True),
    "mod": (opcodes.REM, (), True),
    "left_shift": (opcodes.SHL, (), False),
    "right_shift": (opcodes.SHR, (), True),
    "bitwise_and": (opcodes.AND, (), False),
    "bitwise_or": (opcodes.OR, (), False),
    "bitwise_xor": (opcodes.XOR, (), False),
}
_SHIFTS = ("left_shift", "right_shift")
_INTEGER_OPS = frozenset((*_INTEGER, "bitwise_count"))
#: What C computes of integers as integers though the result may be a float.
EXACT = frozenset(["add", "subtract", "multiply", "mod", "square", *IDENTITIES, *COMPARISONS])

#: Accumulation: each combining operation with its canonical name and its neutral element.
COMBINES: dict[str, tuple[str, float]] = {
    "add": ("add", 0.0), "sum": ("add", 0.0), "multiply": ("multiply", 1.0), "prod": ("multiply", 1.0),
    "maximum": ("maximum", -1e30), "amax": ("maximum", -1e30), "minimum": ("minimum", 1e30),
}  # fmt: skip


def promote(name: str, args: tuple[Typed, ...]) -> ElementType:
    """The type that an operation gives where its statement names none (Emmy's ``dtype_promote``)."""
    types = [arg.type for arg in args]
    if types and name in _INTEGER_OPS and _all_integers(args):
        signed = max((8 * t.nbytes for t in types if t.signed), default=0)
        unsigned = max((8 * t.nbytes for t in types if not t.signed), default=0)
        return element_type(f"u{unsigned}" if unsigned >= signed else f"i{signed}")
    return F16_T if types and all(t is F16_T for t in types) else F32_T


def assign(
    b: Builder, name: str, args: tuple[Typed, ...], type: ElementType | None, arithmetic: Arithmetic, hint: str
) -> Typed:
    """The result of ``name(args)`` as an ``Assign`` computes it, in ``type`` or the promoted one.

    Raises UnsupportedError for an operation that Emmy's CUDA has no form of, InputError for wrong operands.
    """
    if name == "bitcast":
        return _bitcast(b, args, type)
    if (type is None or type is F32_T) and all([arg.type is F32_T for arg in args]):  # nearly always
        return convert(b, compute(b, name, args, F32_T, arithmetic, hint), F32_T)
    result = type if type is not None else promote(name, args)
    if args and all([arg.type.is_integer for arg in args]):
        if result.is_integer and name in _INTEGER_OPS and _all_integers(args):
            return _integer(b, name, args, result, hint)
        if name in EXACT:
            return convert(b, exact(b, name, args, hint), result)
    if name == "where" and len(args) == 3 and args[1].type.is_integer and args[2].type.is_integer:
        common = c_type(args[1:])
        return convert(b, _choose(b, truth(b, args[0]), args[1:], common, hint), result)
    if result in (F16_T, F16X2_T) and name in NATIVE_F16 and all(arg.type is result for arg in args):
        return compute(b, name, args, result, arithmetic, hint)
    if name in IDENTITIES and len(args) == 1 and args[0].type in FP8 and result not in FP8:
        return convert(b, args[0], result)  # exact, whatever it goes through
    if name == "bitwise_not" and result not in (F32_T, BOOL_T):
        raise UnsupportedError(f"bitwise_not of {result.name}", hint="Emmy has it for masks (f32, bool) only")
    computed = compute(b, name, tuple([convert(b, arg, F32_T) for arg in args]), F32_T, arithmetic, hint)
    return convert(b, computed, result)


def _all_integers(args: tuple[Typed, ...]) -> bool:
    """Whether all operands are what Emmy knows as integers: packed pairs of fp4 are integers for C alone."""
    return all([arg.type.is_integer and arg.type is not E2M1X2_T for arg in args])


def compute(
    b: Builder, name: str, args: tuple[Typed, ...], type: ElementType, arithmetic: Arithmetic, hint: str = "t"
) -> Typed:
    """``name(args)`` of operands that have the float ``type`` already. The result of an encoding is an integer."""
    arity = ARITY.get(name)
    if arity is None:
        raise UnsupportedError(f"operation {name!r} of {type.name} is not supported", hint="see `ptxc ops`")
    if len(args) != arity:
        raise InputError(f"{name!r} takes {arity} operands, not {len(args)}", hint=_OPERANDS)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(b, name, args, type, arithmetic, hint)
    operands = tuple([arg.operand for arg in args])
    if type is F32_T:
        return Typed(math.call(b, name, operands, arithmetic, hint), type)
    if type is F16_T:
        return Typed(math.call_f16(b, name, operands, arithmetic, hint), type)
    if type is F64_T:
        return Typed(math.call_f64(b, name, operands, arithmetic, hint), type)
    if type is F16X2_T:
        return Typed(math.call_f16x2(b, name, operands, arithmetic, hint), type)
    if type in FP8:
        raise UnsupportedError(f"nothing computes in {type.name}", hint="compute in f32 and convert the result")
    wide = tuple(convert(b, arg, F32_T) for arg in args)
    return convert(b, compute(b, name, wide, F32_T, arithmetic, hint), BF16_T)


def compare(b: Builder, relation: str, a: Typed, c: Typed) -> Operand:
    """The predicate ``a relation c`` of two floats of one type; only ``ne`` holds of a NaN."""
    if a.type is not F64_T:
        a, c = convert(b, a, F32_T), convert(b, c, F32_T)
    return b.setp(f"{'neu' if relation == 'ne' else relation}.{a.type.name}", a.operand, c.operand)


def popcount(b: Builder, value: Typed) -> Typed:
    """The number of set bits of an integer, as an i32."""
    bits = value.type.bank.bits
    return Typed(b.emit(opcodes.POPC, (f"b{bits}",), B32, (value.operand,)), element_type("i32"))


def combine(
    b: Builder, name: str, left: Typed, right: Typed, type: ElementType, arithmetic: Arithmetic, hint: str
) -> Typed:
    """One step of an accumulation in ``type``: ``left op right``."""
    if name not in COMBINES:
        raise InputError(f"nothing accumulates with {name!r}", hint=f"accumulate with one of {', '.join(COMBINES)}")
    canonical = COMBINES[name][0]
    if type is BOOL_T or (type.is_integer and not (left.type.is_integer and right.type.is_integer)):
        both = tuple(convert(b, value, F32_T) for value in (left, right))
        return convert(b, compute(b, canonical, both, F32_T, arithmetic, hint), type)
    left, right = convert(b, left, type), convert(b, right, type)
    if type.is_integer:
        if canonical in ("maximum", "minimum"):
            op = opcodes.MAX if canonical == "maximum" else opcodes.MIN
            kind = f"{'s' if type.signed else 'u'}{type.bank.bits}"
            return Typed(b.binary(op, kind, left.operand, right.operand, hint), type)
        return _integer(b, canonical, (left, right), type, hint)
    return compute(b, canonical, (left, right), type, arithmetic, hint)


def _copy(
    b: Builder, name: str, args: tuple[Typed, ...], type: ElementType, arithmetic: Arithmetic, hint: str
) -> Typed:
    return args[0]


def _encode_e2m1(
    b: Builder, name: str, args: tuple[Typed, ...], type: ElementType, arithmetic: Arithmetic, hint: str
) -> Typed:
    """The e2m1 code of a float (Emmy's ``emmy_to_f4e2m1``), for C an ``unsigned char``."""
    code = minifloat.encode_e2m1(b, convert(b, args[0], F32_T).operand, hint)
    return Typed(code, element_type("u8"))


def _comparison(
    b: Builder, name: str, args: tuple[Typed, ...], type: ElementType, arithmetic: Arithmetic, hint: str
) -> Typed:
    """1.0 where it holds, else 0.0."""
    return _as_float(b, compare(b, COMPARISONS[name], args[0], args[1]), type, hint)


def _as_float(b: Builder, predicate: Operand, type: ElementType, hint: str) -> Typed:
    if isinstance(predicate, Const):
        return constant(float(-predicate.bits), type)
    one, zero = constant(1.0, type), constant(0.0, type)
    return Typed(b.selp(type.bank.name, one.operand, zero.operand, predicate, hint), type)


def _mask(
    b: Builder, name: str, args: tuple[Typed, ...], type: ElementType, arithmetic: Arithmetic, hint: str
) -> Typed:
    """Logic on masks, in which any value but zero is true."""
    first = truth(b, args[0])
    if name == "where":
        return _choose(b, first, args[1:], type, hint)
    if name == "bitwise_not":
        return _as_float(b, compare(b, "eq", args[0], constant(0.0, type)), type, hint)
    op = opcodes.AND if name == "bitwise_and" else opcodes.OR
    both = b.emit(op, ("pred",), PRED, (first, truth(b, args[1])), "p")
    return _as_float(b, both, type, hint)


def _choose(b: Builder, predicate: Operand, args: tuple[Typed, ...], type: ElementType, hint: str) -> Typed:
    """The first of two operands where ``predicate`` holds, else the second, in ``type``."""
    chosen, other = (convert(b, arg, type) for arg in args)
    if isinstance(predicate, Const) or chosen.operand == other.operand:
        return other if predicate == FALSE else chosen
    return Typed(b.selp(type.bank.name, chosen.operand, other.operand, predicate, hint), type)


def exact(b: Builder, name: str, args: tuple[Typed, ...], hint: str = "t") -> Typed:
    """An operation of integers in C's common type, whatever its result becomes; a comparison gives a bool."""
    arity = ARITY.get(name, 2)
    if len(args) != arity:
        raise InputError(f"{name!r} takes {arity} operands, not {len(args)}", hint=_OPERANDS)
    if name in IDENTITIES:
        return args[0]
    if name == "square":
        return _integer(b, "multiply", (*args, *args), c_type(args), hint)
    if name not in COMPARISONS:
        return _integer(b, name, args, c_type(args[:1] if name in _SHIFTS else args), hint)
    common = c_type(args)
    left, right = (convert(b, arg, common).operand for arg in args)
    kind = f"{'s' if common.signed else 'u'}{common.bank.bits}"
    return Typed(b.setp(f"{COMPARISONS[name]}.{kind}", left, right, hint), BOOL_T)


def _floor_divide(
    b: Builder, name: str, args: tuple[Typed, ...], type: ElementType, arithmetic: Arithmetic, hint: str
) -> Typed:
    """Division of floats rounded down, and what it leaves (NumPy's meaning: the remainder has the divisor's sign).

    The remainder is exact while the quotient has at most 24 bits; it is brought back into range where the rounding
    of ``a / b`` crossed an integer.
    """
    if type not in (F32_T, F64_T):
        wide = tuple(convert(b, arg, F32_T) for arg in args)
        return convert(b, _floor_divide(b, name, wide, F32_T, arithmetic, hint), type)
    call = math.call if type is F32_T else math.call_f64
    suffix = f"rn.{type.name}"
    x, y = (arg.operand for arg in args)
    quotient = call(b, "floor", (b.binary(opcodes.DIV, suffix, x, y),), arithmetic, "floor")
    if name == "floor_divide":
        return Typed(quotient, type)
    minus = b.unary(opcodes.NEG, type.name, quotient)
    rest = b.fma(suffix, minus, y, x)
    product = b.binary(opcodes.MUL, suffix, rest, y)
    zero = real(type.bank, 0.0)
    below = b.setp(f"lt.{type.name}", product, zero)
    raised = b.binary(opcodes.ADD, suffix, rest, y)
    return Typed(b.selp(type.name, raised, rest, below, "mod"), type)


def _integer(b: Builder, name: str, args: tuple[Typed, ...], result: ElementType, hint: str) -> Typed:
    """An operation of integers in C's common type, converted to ``result``."""
    if name == "bitwise_count":
        if len(args) != 1:
            raise InputError(f"{name!r} takes 1 operand, not {len(args)}", hint=_OPERANDS)
        # __popcll where the result has 64 bits, else __popc: the operand becomes what they take.
        taken = element_type("u64" if result.bank is B64 else "u32")
        return convert(b, popcount(b, convert(b, args[0], taken)), result)
    row = _INTEGER.get(name)
    if row is None:
        raise UnsupportedError(f"operation {name!r} of {result.name} is not supported", hint="see `ptxc ops`")
    if len(args) != 2:
        raise InputError(f"{name!r} takes 2 operands, not {len(args)}", hint=_OPERANDS)
    op, mods, by_sign = row
    shift = name in _SHIFTS
    common = c_type(args[:1] if shift else args)
    left = convert(b, args[0], common).operand
    right = convert(b, args[1], element_type("u32") if shift else common).operand
    kind = ("s" if common.signed else "u") if by_sign else "b"
    value = b.emit(op, (*mods, f"{kind}{common.bank.bits}"), common.bank, (left, right), hint)
    return convert(b, Typed(value, common), result)


def c_type(args: tuple[Typed, ...]) -> ElementType:
    """C's usual arithmetic conversion of integers: at least int; the wider wins, unsigned where as wide."""
    wide = [arg.type for arg in args if arg.type.bank is B64]
    if wide:
        return element_type("u64" if any(not t.signed for t in wide) else "i64")
    return element_type("u32" if any(arg.type.name == "u32" for arg in args) else "i32")


def _bitcast(b: Builder, args: tuple[Typed, ...], type: ElementType | None) -> Typed:
    """The same bits as another type of the same size."""
    if len(args) != 1 or type is None:
        what = f"a bitcast of {len(args)} operands" if type is not None else "a bitcast to no type"
        raise InputError(what, hint="it takes one operand, and a dtype to cast to")
    operand, source = args[0].operand, args[0].type
    if source.nbytes != type.nbytes:
        raise InputError(f"bitcast from {source.name} to {type.name}", hint="both must have the same size")
    if BOOL_T in (source, type):
        return convert(b, args[0], type)
    if source.is_integer and type.is_integer:
        return convert(b, args[0], type)
    if source.bank is type.bank:
        return Typed(operand, type)
    if isinstance(operand, Const):
        mask = (1 << (8 * type.nbytes)) - 1
        bits = operand.bits & mask
        return Typed(Const(type.bank, bits) if type.bank.is_float else _signed(type, bits), type)
    if 2 in (source.nbytes, type.nbytes):
        # Integers of 16 bits live in 32-bit registers, halves in 16-bit ones.
        if type.is_integer:
            return Typed(b.cvt("s32.s16" if type.signed else "u32.u16", operand), type)
        return Typed(b.cvt("u16.u32", operand), type)
    mods = (type.bank.name, source.bank.name)
    return Typed(b.emit(opcodes.BITCAST, mods, type.bank, (operand,), "bits"), type)


def _signed(type: ElementType, bits: int) -> Const:
    if type.hi is not None and bits > type.hi:
        bits -= 1 << (8 * type.nbytes)
    return integer(type.bank, bits)


#: Operations that are more than a function of :mod:`ptxc.frontend.math`.
_SPECIAL: dict[str, Callable[[Builder, str, tuple[Typed, ...], ElementType, Arithmetic, str], Typed]] = {
    **dict.fromkeys(IDENTITIES, _copy),
    "to_f4e2m1": _encode_e2m1,
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_not", "where"), _mask),
    **dict.fromkeys(("floor_divide", "mod"), _floor_divide),
}
