"""Matrices for tests of the tensor-core instructions: fragments by the ISA's formulas, one element at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ptx_lab import kernel, launch

from ptxc.sim.device import LaunchResult

Array = NDArray[Any]
Place = Callable[[int, int], tuple[int, int]]

CHECKS = ["memory", "race", "init", "sync"]


def spread(matrix: Array, held: int, place: Place) -> Array:
    """What each of 32 lanes holds of ``matrix``: ``[32, held]`` elements, where ``place(lane, i)`` is in it."""
    out = np.zeros((32, held), matrix.dtype)
    for lane in range(32):
        for i in range(held):
            out[lane, i] = matrix[place(lane, i)]
    return out


def collect(lanes: Array, shape: tuple[int, int], place: Place) -> Array:
    """The matrix that lanes hold: ``spread`` the other way round."""
    matrix = np.full(shape, -77, lanes.dtype)
    for lane in range(32):
        for i in range(lanes.shape[1]):
            matrix[place(lane, i)] = lanes[lane, i]
    return matrix


def words(lanes: Array) -> Array:
    """Elements a lane as u32 registers, one row a lane."""
    return np.ascontiguousarray(lanes).view(np.uint32)


def registers(first: int, count: int) -> str:
    """``{%r10, %r11}``: a vector operand."""
    return "{" + ", ".join(f"%r{at}" for at in range(first, first + count)) + "}"


def load(pointer: int, first: int, count: int, lane: str = "%r1") -> str:
    """Each thread loads its ``count`` registers from row ``lane`` of the array that ``%d<pointer>`` points to."""
    lines = [f"mul.wide.u32 %d20, {lane}, {4 * count}; add.u64 %d20, %d20, %d{pointer};"]
    lines += [f"ld.global.b32 %r{first + at}, [%d20+{4 * at}];" for at in range(count)]
    return "\n".join(lines)


def store(pointer: int, first: int, count: int, lane: str = "%r1") -> str:
    """The other way: each thread stores its registers."""
    lines = [f"mul.wide.u32 %d20, {lane}, {4 * count}; add.u64 %d20, %d20, %d{pointer};"]
    lines += [f"st.global.b32 [%d20+{4 * at}], %r{first + at};" for at in range(count)]
    return "\n".join(lines)


def execute(instruction: str, sources: Sequence[Array], results: int, **options: Any) -> Array:
    """One warp executes ``instruction`` with each lane's registers from ``sources``; what ``results`` registers hold.

    In the instruction ``{D}`` stands for the results, ``{A}``, ``{B}``, ... for the sources.
    """
    out = np.zeros((32, results), np.uint32)
    first, parts, names = 10, [], {"D": registers(10, results)}
    first += results
    for at, source in enumerate(sources):
        names["ABCEF"[at]] = registers(first, source.shape[1])
        parts.append(load(at + 1, first, source.shape[1]))
        first += source.shape[1]
    for name, text in names.items():
        instruction = instruction.replace("{" + name + "}", text)
    body = "\n".join([*parts, instruction, store(0, 10, results)])
    clean([out, *sources], body, **options)
    return out


def clean(args: Sequence[Any], body: str, declarations: str = "", **options: Any) -> LaunchResult:
    """Launch a kernel of ``body`` with all checks; nothing may be found."""
    result = found(args, body, declarations, **options)
    assert result.completed, [str(finding) for finding in result.findings]
    assert not result.findings, [str(finding) for finding in result.findings]
    return result


def found(
    args: Sequence[Any], body: str, declarations: str = "", parameters: Iterable[str] = (), **options: Any
) -> LaunchResult:
    """Launch a kernel of ``body`` with all checks."""
    names = list(parameters) or [f"u64 p{at}" for at in range(len(args))]
    return launch(kernel(body, names, declarations), args, sanitize=CHECKS, **options)


def line_of(body: str, what: str, count: int = 1, declarations: str = "") -> int:
    """The line of the kernel of ``body`` with ``count`` parameters that ``what`` is in."""
    lines = kernel(body, [f"u64 p{at}" for at in range(count)], declarations).splitlines()
    return next(at for at, line in enumerate(lines, 1) if what in line)
