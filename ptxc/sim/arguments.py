"""What a launch is given, held against what it must be: extents, CTAs, arguments, checks.

What does not fit raises UsageError, which says which argument it is, and what to give. Values may be large arrays: a
message shows their beginning only.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ptxc.errors import UsageError
from ptxc.sim.findings import CHECKS
from ptxc.sim.geometry import Dim3
from ptxc.sim.program import Parameter
from ptxc.sim.scalar import Array
from ptxc.sim.tensor_map import TensorMap

Argument = Array | np.generic | int | float | bytes | TensorMap

#: The most CTAs that hardware takes along x, y and z.
_MOST_CTAS = (2**31 - 1, 65535, 65535)

#: The most shared memory that a CTA of any GPU has.
_MOST_SHARED = 227 * 1024

_HINT_EVALUATE = "compute it with ptxc.launch.evaluate(extent, sizes)"


def extents(value: int | Sequence[int], what: str) -> Dim3:
    """A ``grid`` or ``block``: up to three extents, or a number, which is that many along x."""
    numbers = [value] if _is_integer(value) else value.reshape(-1) if isinstance(value, np.ndarray) else value
    hint = f"give {what}=(x, y, z), or a number, which is along x"
    if isinstance(numbers, str) or not isinstance(numbers, Sequence | np.ndarray) or not 0 < len(numbers) <= 3:
        raise UsageError(f"the {what} {_shown(value)} is not one to three extents", hint=hint)
    for number in numbers:
        if isinstance(number, str):
            what = f"the {what}'s extent {_shown(number)} is an expression over the runtime integers"
            raise UsageError(what, hint=_HINT_EVALUATE)
        if not _is_integer(number):
            raise UsageError(f"the {what} {_shown(value)} holds {_shown(number)}, which is no integer", hint=hint)
    x, y, z = (int(number) for number in (*numbers, 1, 1, 1)[:3])
    if min(x, y, z) < 1:
        hint = "launch nothing, as CUDA does not either" if what == "grid" else "a block has at least one thread"
        raise UsageError(f"the {what} ({x}, {y}, {z}) has an extent below 1", hint=hint)
    if what == "grid" and (x > _MOST_CTAS[0] or y > _MOST_CTAS[1] or z > _MOST_CTAS[2]):
        raise UsageError(f"the grid ({x}, {y}, {z}) is larger than any GPU takes", hint=f"the most is {_MOST_CTAS}")
    return x, y, z


def coordinates(ctas: Iterable[int | Sequence[int]], grid: Dim3) -> list[Dim3]:
    """The places of CTAs in the grid; a number is a place along x."""
    if not _is_series(ctas):
        raise UsageError(f"ctas is {_shown(ctas)}", hint="give the coordinates of each: ctas=[(0, 0, 0), (5, 0, 0)]")
    found = []
    for cta in ctas:
        numbers = [cta] if _is_integer(cta) else cta
        if not isinstance(numbers, Sequence) or not 0 < len(numbers) <= 3 or not all(map(_is_integer, numbers)):
            raise UsageError(f"{_shown(cta)} is no CTA", hint="give its coordinates: (x, y, z), or x alone")
        x, y, z = (int(number) for number in (*numbers, 0, 0, 0)[:3])
        if not (0 <= x < grid[0] and 0 <= y < grid[1] and 0 <= z < grid[2]):
            raise UsageError(f"CTA {(x, y, z)} is outside of the grid {grid}", hint="they count from 0")
        found.append((x, y, z))
    if len(set(found)) < len(found):  # run twice, a CTA would seem to race with itself
        twice = Counter(found).most_common(1)[0][0]
        raise UsageError(f"CTA {twice} is given twice", hint="give each once")
    return found


def checks(names: Iterable[str]) -> frozenset[str]:
    """The checks of ``sanitize``."""
    known = f"there are {', '.join(sorted(CHECKS))}"
    if not _is_series(names):
        raise UsageError(f"sanitize is {_shown(names)}, where names of checks are needed", hint=f"as a list; {known}")
    chosen = list(names)
    for name in chosen:
        if not isinstance(name, str) or name not in CHECKS:
            raise UsageError(f"unknown check {_shown(name)}", hint=known)
    return frozenset(chosen)


def natural(value: int, what: str, least: int = 0, most: int | None = None) -> int:
    """A number of at least ``least``."""
    if not _is_integer(value) or value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"{least} to {most}"
        raise UsageError(f"{what} is {_shown(value)}", hint=f"give an integer, {limit}")
    return int(value)


def shared_bytes(value: int) -> int:
    """The bytes of dynamic shared memory."""
    return natural(value, "shared, the bytes of dynamic shared memory,", 0, _MOST_SHARED)


def block_of(block: Dim3, limits: Mapping[str, tuple[int, ...]]) -> None:
    """Hold a block against an entry's own limits."""
    limit = math.prod(limits.get("maxntid", (1024,)))
    if math.prod(block) > limit:
        what = f"{math.prod(block)} threads are more than the {limit} that a CTA of this entry may have"
        raise UsageError(what, hint="give the block of the launch description")
    required = limits.get("reqntid")
    if required is not None and (*required, 1, 1)[:3] != block:
        raise UsageError(f"the entry must be launched with blocks of {required} threads, not {block}")


def counted(args: Sequence[Argument], parameters: Sequence[Parameter]) -> list[Argument]:
    """The arguments, one for each parameter."""
    if isinstance(args, str | bytes | np.ndarray | Mapping) or not isinstance(args, Iterable):
        raise UsageError(f"args is of type {type(args).__name__}", hint="give a list, an argument for each parameter")
    found = list(args)
    if len(found) != len(parameters):
        names = ", ".join(parameter.name for parameter in parameters)
        what = f"{_count(found, 'argument')} given, the entry has {len(parameters)} parameters"
        raise UsageError(what, hint=f"they are {names}" if names else "")
    return found


def is_memory(parameter: Parameter, value: Argument) -> bool:
    """Whether an argument is an array whose address is passed. Raises UsageError where the array cannot be one."""
    if not isinstance(value, np.ndarray) or parameter.array:
        return False
    if parameter.size != 8 or not parameter.type.is_integer:
        what = f"an array is given for {_described(parameter)}, which is no pointer"
        raise UsageError(what, hint="give the number")
    check_array(value, parameter.name)
    return True


def check_array(array: Any, name: str) -> None:
    """Raise UsageError for what cannot be memory: no array, or one whose elements are no numbers of a GPU's."""
    if not isinstance(array, np.ndarray):
        raise UsageError(f"memory for {name} is a NumPy array, not {_shown(array)}")
    if array.dtype.kind not in "biufcV" or array.dtype.hasobject or not array.dtype.isnative:
        what = f"the array for {name} holds elements of type {array.dtype}, which no GPU has"
        raise UsageError(what, hint="convert it: array.astype(numpy.float32)")


def encoded(parameter: Parameter, value: Argument) -> bytes:
    """The bytes of a parameter whose argument is no array in memory."""
    if parameter.array:
        raw = value if isinstance(value, bytes) else np.asarray(value).tobytes()
    elif isinstance(value, bytes):
        raw = value
    elif parameter.type.kind == "f":
        raw = _float(parameter, value)
    elif isinstance(value, np.floating) and value.itemsize == parameter.size and parameter.type.kind != "s":
        raw = value.tobytes()
    elif not isinstance(value, TensorMap) and _is_integer(value):
        raw = _integer(parameter, int(value))
    else:
        raise UsageError(
            f"{_shown(value)} is no argument for {_described(parameter)}",
            hint="give a NumPy array, or a device address as an int" if parameter.size == 8 else "give an integer",
        )
    if len(raw) != parameter.size:
        raise UsageError(f"{_described(parameter)} has {parameter.size} bytes, its argument {len(raw)}")
    return raw


def _float(parameter: Parameter, value: Any) -> bytes:
    if not isinstance(value, int | float | np.number) or isinstance(value, np.complexfloating):
        raise UsageError(f"{_shown(value)} is no argument for {_described(parameter)}", hint="give a number")
    with np.errstate(over="ignore"):
        number = np.array([value]).astype(parameter.type.dtype)
    if np.isinf(number[0]) and not math.isinf(value):
        raise UsageError(f"{value!r} is beyond the range of {_described(parameter)}")
    return number.tobytes()


def _integer(parameter: Parameter, value: int) -> bytes:
    """An integer's bytes. A parameter that is declared unsigned takes negative ones too: C's ``int`` is ``.u32``."""
    bits = 8 * parameter.size
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise UsageError(f"{value} does not fit {_described(parameter)}, which has {bits} bits")
    return (value & (1 << bits) - 1).to_bytes(parameter.size, "little")


def _described(parameter: Parameter) -> str:
    return f"the parameter {parameter.name} of type .{parameter.type.name}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_series(value: Any) -> bool:
    """Whether a value has items that mean something."""
    whole = isinstance(value, str | bytes) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return isinstance(value, Iterable) and not whole


def _count(items: Sequence[Any], what: str) -> str:
    return f"1 {what} is" if len(items) == 1 else f"{len(items)} {what}s are"


def _shown(value: Any) -> str:
    """The beginning of a value's text."""
    return _SHORT.repr(value) if not isinstance(value, np.ndarray) else f"an array of {value.size} {value.dtype}"


_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = 4
_SHORT.maxstring = _SHORT.maxother = 60
