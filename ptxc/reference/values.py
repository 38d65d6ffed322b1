"""Values of Kernel IR, one a thread: element types, conversions between them, elementwise operations.

Floats are float64 whatever their type; where the evaluation is not exact they are rounded to the type after each
operation. Integers are in their own NumPy type, indices (C's ``int`` and ``long long``) in int64 without wrapping.

Sources: ``Assign.render``, ``Accum.render``, ``dtype_promote`` and ``op_to_expr`` of ``emmy.compiler.ir.stmt``, and
``CudaRenderTarget``: what CUDA computes for their text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ptxc.errors import InputError, UnsupportedError
from ptxc.reference.buffers import DTYPES, Array, decoded, encoded
from ptxc.reference.codes import EIGHT_BITS, encode4

FLOATS = frozenset({"f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"})
INTEGERS = frozenset({"i16", "i32", "i64", "u8", "u16", "u32", "u64"})

#: The types of indices, C's int and long long; both are computed exactly.
INDEX, LONG_INDEX = "index", "long index"
_INDICES = {INDEX: "i32", LONG_INDEX: "i64"}

#: C's names of types, which ``CastExpr`` and ``Smem`` have.
_C_NAMES = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16", "bfloat16": "bf16",
    "short": "i16", "int": "i32", "long long": "i64", "unsigned char": "u8", "unsigned short": "u16",
    "unsigned int": "u32", "unsigned": "u32", "unsigned long long": "u64",
    "__nv_fp8_e4m3": "f8e4m3", "__nv_fp8_e5m2": "f8e5m2",
}  # fmt: skip


class Value(NamedTuple):
    """One number a thread (or one for all), and its element type, or that of an index."""

    array: Array
    type: str

    @property
    def is_integer(self) -> bool:
        """Whether C computes with it as an integer."""
        return self.type in _INDICES or self.type in INTEGERS or self.type == "f4e2m1x2"  # an unsigned char

    @property
    def is_long(self) -> bool:
        """Whether C computes with it as an integer of 64 bits."""
        return self.type in (LONG_INDEX, "i64", "u64")


def element_type(name: str) -> str:
    """The element type of Emmy's or C's ``name``. Raises UnsupportedError."""
    found = _C_NAMES.get(name, name)
    if found not in DTYPES:
        raise UnsupportedError(f"the reference does not compute with {name!r}")
    return found


def index(array: Any, *, long: bool = False) -> Value:
    """An index, an int or a ``long long``."""
    return Value(np.asarray(array, np.int64), LONG_INDEX if long else INDEX)


class Numbers:
    """Conversions and operations. ``exact``: floats are not rounded to their types, but to those of eight bits, which
    programs choose for what they round to, and where an integer is computed in f32."""

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact

    # ---------------------------------------------------------------------------------------------------- types

    def dtype(self, type: str) -> np.dtype[Any]:
        """How an array holds values of a type while they are computed with."""
        if type in FLOATS:
            return np.dtype(np.float64)
        return np.dtype(np.int64) if type in _INDICES else DTYPES[type]

    def rounded(self, array: Array, type: str) -> Array:
        """Floats as ``type`` has them."""
        if type == "f64" or (self.exact and type not in EIGHT_BITS):
            return array
        return decoded(encoded(array, type), type).astype(np.float64)

    def load(self, stored: Array, type: str) -> Value:
        """Elements of a buffer of ``type`` as values."""
        if stored.dtype == np.float64 or type not in FLOATS:
            return Value(stored, type)
        return Value(decoded(stored, type).astype(np.float64), type)

    def constant(self, number: float, type: str) -> Value:
        """A constant, as C initialises a variable from a float literal."""
        return self.convert(Value(self.rounded(np.array([float(number)]), "f32"), "f32"), type)

    def convert(self, value: Value, to: str) -> Value:
        """``value`` as C's assignment to ``to`` makes it."""
        array, source = value
        if source == to:
            return value
        with np.errstate(all="ignore"):
            if to in FLOATS:
                return Value(self.rounded(array.astype(np.float64), to), to)
            if to == "bool":
                return Value(array != 0, to)
            if source in FLOATS:
                array = _cut(array, to)
            return Value(array.astype(self.dtype(to)), to)

    def as_index(self, value: Value) -> Array:
        """A value as an index: floats are cut toward zero."""
        return self.convert(value, INDEX).array

    # ------------------------------------------------------------------------------------------------ operations

    def assign(self, name: str, args: Sequence[Value], type: str | None) -> Value:
        """What ``Assign`` computes: ``name(args)`` in ``type``, or in the type that the arguments give."""
        if name == "bitcast":
            return self._bitcast(args, type)
        if name in _ENCODE:
            args = (self._encoded(name, args),)
            name = "copy"
        result = type if type is not None else promote(name, args)
        if all(arg.is_integer for arg in args):
            if result in INTEGERS and name in _INTEGER:
                return self.convert(_whole(name, args, result), result)
            if name in _EXACT:
                return self.convert(_whole(name, args, result), result)
        if name == "where" and all(arg.is_integer for arg in args[1:]):
            common = c_type(args[1:])
            chosen, other = (self.convert(arg, common).array for arg in args[1:])
            return self.convert(Value(np.where(args[0].array != 0, chosen, other), common), result)
        computed = "f16" if result == "f16" and all(arg.type == "f16" for arg in args) else "f32"
        return self.convert(self._rounding(result).compute(name, args, computed), result)

    def compute(self, name: str, args: Sequence[Value], type: str) -> Value:
        """An operation on floats in ``type``."""
        function = _REAL.get(name)
        if function is None:
            raise UnsupportedError(f"the reference does not compute {name!r}")
        arrays = [self.convert(arg, type).array for arg in args]
        try:
            with np.errstate(all="ignore"):
                result = np.asarray(function(*arrays), np.float64)
        except TypeError as error:
            raise InputError(f"{name!r} does not take {len(args)} operands") from error
        return Value(self.rounded(result, type), type)

    def combine(self, name: str, left: Value, right: Value, type: str) -> Value:
        """One step of an accumulation in ``type``."""
        if name not in COMBINES:
            raise InputError(f"nothing accumulates with {name!r}")
        operation = COMBINES[name][0]
        if type in FLOATS:
            return self.compute(operation, (left, right), type)
        if type == "bool" or not (left.is_integer and right.is_integer):
            return self.convert(self._rounding(type).compute(operation, (left, right), "f32"), type)
        left, right = self.convert(left, type), self.convert(right, type)
        with np.errstate(all="ignore"):
            result: Array = _COMBINE_WHOLE[operation](left.array, right.array)
        return Value(result, type)

    def _rounding(self, result: str) -> Numbers:
        """What computes a ``result`` in floats: what f32 lacks of an integer is no error of rounding, but its value."""
        return self if result in FLOATS else Numbers(exact=False)

    def _encoded(self, name: str, args: Sequence[Value]) -> Value:
        """What rounds to eight or four bits; codes of four bits are integers."""
        (value,) = args
        if name == "to_f4e2m1":
            return Value(encode4(self.convert(value, "f32").array), "u8")
        return self.convert(self.convert(value, "f32"), name.removeprefix("to_"))

    def _bitcast(self, args: Sequence[Value], type: str | None) -> Value:
        if len(args) != 1 or type is None:
            raise InputError("bitcast takes one operand and needs the type to cast to")
        (value,) = args
        if value.type in _INDICES:
            value = self.convert(value, _INDICES[value.type])
        bits = encoded(value.array, value.type) if value.type in FLOATS else value.array
        if bits.dtype.itemsize != DTYPES[type].itemsize:
            raise InputError(f"bitcast from {value.type} to {type}")
        return self.load(np.ascontiguousarray(bits).view(DTYPES[type]), type)


def promote(name: str, args: Sequence[Value]) -> str:
    """The type of an operation whose statement names none (Emmy's ``dtype_promote``)."""
    types = [_INDICES.get(arg.type, arg.type) for arg in args]
    if types and name in _INTEGER and all(type in INTEGERS for type in types):
        signed = max((int(type[1:]) for type in types if type[0] == "i"), default=0)
        unsigned = max((int(type[1:]) for type in types if type[0] == "u"), default=0)
        return f"u{unsigned}" if unsigned >= signed else f"i{signed}"
    return "f16" if types and all(type == "f16" for type in types) else "f32"


def c_type(args: Sequence[Value]) -> str:
    """C's usual arithmetic conversion of integers: at least int; the wider wins, unsigned where as wide."""
    types = [_INDICES.get(arg.type, arg.type) for arg in args]
    if any(type[1:] == "64" for type in types):
        return "u64" if "u64" in types else "i64"
    return "u32" if "u32" in types else "i32"


def quotient(a: Array, b: Array) -> Array:
    """C's division of integers, which cuts toward zero; 0 for a division by zero."""
    with np.errstate(all="ignore"):
        result: Array = np.floor_divide(a - np.fmod(a, b), b)
    return result


def remainder(a: Array, b: Array) -> Array:
    """What C's division leaves: it has the sign of ``a``."""
    with np.errstate(all="ignore"):
        result: Array = a - quotient(a, b) * b
    return result


def _whole(name: str, args: Sequence[Value], result: str) -> Value:
    """An operation of integers in C's common type."""
    numbers = Numbers(exact=True)
    if name == "bitwise_count":
        taken = "u64" if result.endswith("64") else "u32"
        return Value(np.bitwise_count(numbers.convert(args[0], taken).array).astype(np.int32), "i32")
    if name in ("copy", "pad"):
        return args[0]
    shifts = name in ("left_shift", "right_shift")
    common = c_type(args[:1] if shifts else args)
    operands = [numbers.convert(arg, common).array for arg in args]
    with np.errstate(all="ignore"):
        value = np.asarray((_INTEGER.get(name) or _EXACT[name])(*operands))
    return Value(value, "bool" if value.dtype == np.bool_ else common)


#: Operations that round to codes.
_ENCODE = ("to_f8e4m3", "to_f8e5m2", "to_f4e2m1")

_COMPARE: dict[str, Callable[..., Any]] = {
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "less": np.less,
    "greater_equal": np.greater_equal, "less_equal": np.less_equal,
}  # fmt: skip

#: What integers compute as integers where the result is one.
_INTEGER: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "floor_divide": quotient,
    "remainder": remainder, "mod": remainder, "left_shift": np.left_shift, "right_shift": np.right_shift,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "bitwise_count": np.bitwise_count,
}  # fmt: skip

#: What C computes of integers as integers even where the result is a float.
_EXACT: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "mod": remainder,
    "square": lambda a: a * a, "copy": lambda a: a, "pad": lambda a: a, **_COMPARE,
}  # fmt: skip

#: Accumulations, each with its operation and its neutral element.
COMBINES: dict[str, tuple[str, float]] = {
    "add": ("add", 0.0), "sum": ("add", 0.0), "multiply": ("multiply", 1.0), "prod": ("multiply", 1.0),
    "maximum": ("maximum", -1e30), "amax": ("maximum", -1e30), "minimum": ("minimum", 1e30),
}  # fmt: skip

_COMBINE_WHOLE: dict[str, Callable[..., Any]] = {
    "add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip

_erf = np.vectorize(math.erf, otypes=[np.float64])

#: Operations on floats.
_REAL: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "divide_rn_f32": np.divide, "floor_divide": np.floor_divide, "mod": np.mod, "pow": np.power,
    "maximum": np.fmax, "minimum": np.fmin, "fmax": np.fmax, "fmin": np.fmin,
    "negative": np.negative, "copy": lambda a: a, "pad": lambda a: a, "square": np.square,
    "reciprocal": np.reciprocal, "relu": lambda a: np.fmax(a, 0.0), "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "exp": np.exp, "exp_fast": np.exp, "log": np.log, "rsqrt": lambda a: 1 / np.sqrt(a), "sqrt": np.sqrt,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "erf": _erf, "floor": np.floor, "abs": np.abs, "fabs": np.abs,
    "bitwise_and": np.logical_and, "bitwise_or": np.logical_or, "bitwise_not": np.logical_not,
    "where": lambda a, b, c: np.where(a != 0, b, c), **_COMPARE,
    "from_f8e4m3": lambda a: a, "from_f8e5m2": lambda a: a,
}  # fmt: skip


def _cut(array: Array, to: str) -> Array:
    """Floats without their fractions, as integers.

    C leaves undefined what the type cannot hold. CUDA saturates, at the range of 32 bits for smaller types.
    """
    bits = "64" if to.endswith("64") else "32"
    wide = np.dtype(f"{'u' if to.startswith('u') else ''}int{bits}")
    limits = np.iinfo(wide)
    # The greatest float of the type: the greatest integer is none where it has 64 bits.
    most = float(limits.max) if bits == "32" else float(np.nextafter(float(limits.max), 0))
    whole = np.trunc(np.where(np.isnan(array), 0, array)).astype(np.float64)
    saturated: Array = np.where(whole > most, np.array(limits.max, wide), np.clip(whole, limits.min, most).astype(wide))
    return saturated
