"""Floating-point arithmetic and the elementary functions, as IR.

:func:`call` writes an operation on f32, :func:`call_f16` one on f16, :func:`call_f16x2` one on a packed pair of them,
:func:`call_f64` one on f64. Operations go by Emmy's names (``emmy.compiler.ir.stmt.base.op_to_expr``) and by those of
the calls that it makes of them. What each computes is what the CUDA text that Emmy renders computes, with fast
arithmetic as under ``nvcc --use_fast_math``. ``docs/accuracy.md`` has the algorithms and their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from ptxc.errors import UnsupportedError
from ptxc.frontend import math_exp, math_pow, math_trig
from ptxc.frontend.math_writer import Arithmetic, Writer
from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.opcodes import Opcode
from ptxc.ir.types import B16, B32, F32, F64, Type
from ptxc.ir.values import Const, Operand, Value, integer, real

__all__ = ["Arithmetic", "call", "call_f16", "call_f16x2", "call_f64"]

#: Operations that are one instruction in f32 and f64, and how that rounds: "own" as the program's arithmetic may be
#: contracted, "exact" not at all, "nearest" always, "approx" in fast f32 only by approximation, "floor" downwards.
_SIMPLE: dict[str, tuple[Opcode, str]] = {
    "add": (opcodes.ADD, "own"),
    "subtract": (opcodes.SUB, "own"),
    "multiply": (opcodes.MUL, "own"),
    "negative": (opcodes.SUB, "own"),
    "square": (opcodes.MUL, "own"),
    "fma": (opcodes.FMA, "nearest"),
    "divide": (opcodes.DIV, "approx"),
    "divide_rn_f32": (opcodes.DIV, "nearest"),
    "reciprocal": (opcodes.RCP, "approx"),
    "sqrt": (opcodes.SQRT, "approx"),
    "maximum": (opcodes.MAX, "exact"),
    "fmax": (opcodes.MAX, "exact"),
    "relu": (opcodes.MAX, "exact"),
    "minimum": (opcodes.MIN, "exact"),
    "fmin": (opcodes.MIN, "exact"),
    "abs": (opcodes.ABS, "exact"),
    "fabs": (opcodes.ABS, "exact"),
    "floor": (opcodes.CVT, "floor"),
}

#: The rest of f32's operations.
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "copy": Writer.copy,
    "rsqrt": Writer.rsqrt,
    "exp": math_exp.exp,
    "exp_fast": math_exp.exp_fast,
    "log": math_exp.log,
    "sigmoid": math_exp.sigmoid,
    "tanh": math_exp.tanh,
    "erf": math_exp.erf,
    "sin": math_trig.sin,
    "cos": math_trig.cos,
    "pow": math_pow.pow,
}

#: Those with an instruction for halves: the non-contracting ``_rn`` forms where they round.
_HALF: dict[str, tuple[Opcode, tuple[str, ...]]] = {
    "add": (opcodes.ADD, ("rn",)),
    "subtract": (opcodes.SUB, ("rn",)),
    "multiply": (opcodes.MUL, ("rn",)),
    "negative": (opcodes.SUB, ("rn",)),
    "square": (opcodes.MUL, ("rn",)),
    "abs": (opcodes.ABS, ()),
    "fabs": (opcodes.ABS, ()),
    "copy": (opcodes.MOV, ()),
}
#: Those that have one from sm_80 on.
_HALF_SM80 = {name: (op, ()) for name, (op, _) in _SIMPLE.items() if op in (opcodes.MAX, opcodes.MIN)}
#: Those that cuda_fp16.h computes by f32's approximations, whose errors are small against 11 bits.
_HALF_APPROXIMATED = frozenset({"exp", "exp_fast", "log", "sqrt", "rsqrt"})


def call(b: Builder, name: str, args: Sequence[Operand], arithmetic: Arithmetic, hint: str = "t") -> Value:
    """Write the operation ``name`` on f32 values; the result, an f32, is named after ``hint``.

    Raises UnsupportedError for a name that is no operation on floats.
    """
    if name in _SIMPLE:
        return _simple(b, name, args, arithmetic, F32, hint)
    function = _FUNCTIONS.get(name)
    if function is None:
        raise UnsupportedError(f"{name!r} is not an operation on floats that ptxc knows", hint="see `ptxc ops`")
    result = function(Writer(b, name, arithmetic), *args)
    named = b.kernel.value(F32, hint)
    result.hint, result.number = named.hint, named.number
    return result


def call_f16(b: Builder, name: str, args: Sequence[Operand], arithmetic: Arithmetic, hint: str = "t") -> Value:
    """Write the operation ``name`` on f16 values; the result, an f16, is named after ``hint``.

    Additions and multiplications are the ones that are not contracted, as in Emmy's CUDA text. What has no instruction
    on halves is computed in f32 and rounded once.
    """
    native = _half(name, arithmetic)
    if native is not None:
        return _native(b, native, _operands(name, args, integer(B16, 0)), "f16", hint)
    if name in _HALF_APPROXIMATED:
        arithmetic = arithmetic._replace(fast=True)
    wide = [b.cvt("f32.f16", _register(b, arg), name) for arg in args]
    return b.cvt("rn.f16.f32", call(b, name, wide, arithmetic, name), hint)


def call_f16x2(b: Builder, name: str, args: Sequence[Operand], arithmetic: Arithmetic, hint: str = "t") -> Value:
    """Write the operation ``name`` on pairs of f16 packed in a b32, half by half where no instruction does both."""
    native = _half(name, arithmetic)
    if native is not None:
        return _native(b, native, _operands(name, args, integer(B32, 0)), "f16x2", hint)
    pairs = [
        b.multi(opcodes.UNPACK, ("b32",), (b.kernel.value(B16, name), b.kernel.value(B16, name)), (arg,))
        for arg in args
    ]
    halves = tuple(call_f16(b, name, half, arithmetic, name) for half in zip(*pairs))
    return b.emit(opcodes.PACK, ("b32",), B32, halves, hint)


def call_f64(b: Builder, name: str, args: Sequence[Operand], arithmetic: Arithmetic, hint: str = "t") -> Value:
    """Write the operation ``name`` on f64 values; the result, an f64, is named after ``hint``.

    Raises UnsupportedError for what is not a single instruction on f64.
    """
    if name not in _SIMPLE:
        raise UnsupportedError(f"{name!r} is not supported on f64", hint="compute it in f32")
    return _simple(b, name, args, arithmetic, F64, hint)


def _simple(b: Builder, name: str, args: Sequence[Operand], arithmetic: Arithmetic, type: Type, hint: str) -> Value:
    op, mods, zero = _form(name, arithmetic, type)
    return b.emit(op, mods, type, _operands(name, args, zero), hint)


@cache
def _form(name: str, arithmetic: Arithmetic, type: Type) -> tuple[Opcode, tuple[str, ...], Const]:
    """The instruction on ``type`` that does ``name``, its modifiers, and the type's zero."""
    op, rounding = _SIMPLE[name]
    mods = arithmetic.ftz(type.name)
    match rounding:
        case "own":
            mods = arithmetic.mods(type.name)
        case "nearest":
            mods = ("rn", *mods)
        case "approx":
            mods = ("approx" if arithmetic.fast and type is F32 else "rn", *mods)
        case "floor":
            mods = ("rmi", *mods, type.name)
    return op, mods, real(type, 0.0)


def _operands(name: str, args: Sequence[Operand], zero: Const) -> tuple[Operand, ...]:
    """What the instruction of ``name`` takes: ``0 - x`` and ``max(0, x)`` have a zero first, ``x * x`` has x twice."""
    if len(args) == 1:
        match name:
            case "negative" | "relu":
                return (zero, args[0])
            case "square":
                return (args[0], args[0])
    return tuple(args)


def _half(name: str, arithmetic: Arithmetic) -> tuple[Opcode, tuple[str, ...]] | None:
    """The instruction on halves that does ``name``, with its modifiers but the type."""
    native = _HALF.get(name)
    if native is None and arithmetic.sm >= 80:
        native = _HALF_SM80.get(name)
    return native


def _native(
    b: Builder, native: tuple[Opcode, tuple[str, ...]], operands: tuple[Operand, ...], type: str, hint: str
) -> Value:
    op, rounding = native
    bank = B16 if type == "f16" else B32
    suffix = bank.name if op is opcodes.MOV else type
    return b.emit(op, (*rounding, suffix), bank, tuple(_register(b, operand) for operand in operands), hint)


def _register(b: Builder, operand: Operand) -> Operand:
    """The operand in a register: instructions on f16 take no constants."""
    if isinstance(operand, Const):
        return b.emit(opcodes.MOV, (operand.type.name,), operand.type, (operand,), "half")
    return operand
