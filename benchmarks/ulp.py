"""Measures the errors of the elementary functions and prints the tables of docs/accuracy.md.

    python benchmarks/ulp.py [--step N] [NAME ...]

The instructions are evaluated on arrays (``tests/frontend/evaluate.py``), once on hardware whose approximating
instructions round correctly and then on the worst that PTX ISA's bounds allow. Arguments are every N-th f32 and, where
a function is hard, every (N / 64)-th; of f16 all. The reference is f64: its functions err by less than 2**-50, which is
2**-26 ulp of an f32. Its sin and cos of huge arguments were checked in tests against pi in 100 digits.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "frontend")]

from evaluate import DOCUMENTED, Array, Function, ulp_error  # noqa: E402

from ptxc.frontend.math import Arithmetic  # noqa: E402
from ptxc.ir.types import B16, F32, Type  # noqa: E402

Doubles = NDArray[np.float64]
Arguments = Iterator[tuple[Array, ...]]

PRECISE, FAST = Arithmetic(sm=90), Arithmetic(fast=True, sm=90)
CHUNK = 2**17


# -------------------------------------------------------------------------------------------------- arguments


def patterns(first: float, last: float, step: int) -> Arguments:
    """Every ``step``-th f32 from ``first`` up to ``last`` of the same sign, away from zero."""
    low, high = (int(np.float32(bound).view(np.uint32)) for bound in (first, last))
    for start in range(low, high + 1, step * CHUNK):
        chosen = np.arange(start, min(start + step * CHUNK, high + 1), step, dtype=np.uint64)
        yield (chosen.astype(np.uint32).view(np.float32),)


def everywhere(step: int, *bands: tuple[float, float]) -> Arguments:
    """All of f32, more of it in ``bands`` of magnitude, for either sign."""
    for sign in (1.0, -1.0):
        yield from patterns(sign * 0.0, sign * math.inf, step)
        for low, high in bands:
            yield from patterns(sign * low, sign * high, max(1, step // 64))


def halves(step: int) -> Arguments:
    """All of f16."""
    yield (np.arange(2**16).astype(np.uint16),)


def pairs_of_halves(step: int) -> Arguments:
    """Random pairs of f16, as many as there are f32 to measure."""
    random = np.random.default_rng(1)
    for _ in range(1 + 2**32 // step // CHUNK):
        x, y = random.integers(0, 2**16, (2, CHUNK)).astype(np.uint16)
        yield x, y


def powers(step: int, bases: tuple[tuple[float, float], ...], powers: tuple[float, float]) -> Arguments:
    """Random bases, from these ranges in turn, and exponents; all ranges are of log2, that of the powers' too."""
    random = np.random.default_rng(2)
    for index in range(2 + 2**32 // step // CHUNK):
        low, high = bases[index % len(bases)]
        x = np.exp2(random.uniform(low, high, CHUNK)).astype(np.float32)
        x = np.where(x == 1, np.float32(3), x)
        yield x, (random.uniform(*powers, CHUNK) / np.log2(x.astype(np.float64))).astype(np.float32)


def all_powers(step: int) -> Arguments:
    """Bases of all sizes, half of them near 1, and powers of all sizes."""
    return powers(step, ((-149.0, 128.0), (-1.0, 1.0)), (-152.0, 130.0))


def moderate_powers(step: int) -> Arguments:
    """Bases from 2 to 2**20, powers from 2**-20 to 2**20."""
    return powers(step, ((1.0, 20.0),), (-20.0, 20.0))


# -------------------------------------------------------------------------------------------------- references

erf: Callable[[Doubles], Doubles] = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Doubles) -> Doubles:
    return np.reciprocal(1 + np.exp(-x))


def rsqrt(x: Doubles) -> Doubles:
    return np.reciprocal(np.sqrt(x))


# ---------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Case:
    """One row: an operation on ``arguments``, measured in ulp or by the absolute or relative error."""

    name: str
    reference: Callable[..., Doubles]
    arguments: Callable[[int], Arguments]
    arithmetic: Arithmetic = PRECISE
    type: Type = F32
    arity: int = 1
    unit: str = "ulp"
    note: str = ""

    def error(self, got: Array, exact: Doubles) -> Doubles:
        """The error of each result."""
        if self.type is B16:
            return ulp_error(got.view(np.float16).astype(np.float64), exact, digits=11)
        if self.unit == "ulp":
            return ulp_error(got, exact)
        error = np.abs(got.astype(np.float64) - exact)
        return error / np.abs(exact) if self.unit == "relative" else error

    def numbers(self, arrays: tuple[Array, ...]) -> list[Doubles]:
        """The arguments in f64."""
        return [(x.view(np.float16) if self.type is B16 else x).astype(np.float64) for x in arrays]


@dataclass
class Result:
    """The worst error found, where, and on the worst documented hardware."""

    error: float = 0.0
    place: tuple[float, ...] = ()
    documented: float = 0.0
    samples: int = 0


def measure(case: Case, step: int) -> Result:
    """Evaluate the case on all its arguments."""
    function = Function(case.name, case.arity, case.type, case.arithmetic)
    result = Result()
    with np.errstate(all="ignore"):
        for arrays in case.arguments(step):
            numbers = case.numbers(arrays)
            exact = case.reference(*numbers)
            error = case.error(function(*arrays), exact)
            worst = int(np.argmax(error))
            if error[worst] > result.error:
                result.error, result.place = float(error[worst]), tuple(float(x[worst]) for x in numbers)
            for hardware in DOCUMENTED:
                error = case.error(function(*arrays, hardware=hardware), exact)
                result.documented = max(result.documented, float(error.max()))
            result.samples += len(arrays[0])
    return result


def row(case: Case, result: Result) -> str:
    """The row of the table."""
    worst = max(result.error, result.documented)
    if case.unit == "ulp":
        digits = ".4f" if case.type is B16 else ".2f"
        errors = [f"{error:{digits}}" for error in (result.error, worst)]
    else:
        errors = [f"2^{math.log2(error):.1f}" for error in (result.error, worst)]
    cells = [
        f"`{case.name}`",
        ("f16" if case.type is B16 else "f32") + (" fast" if case.arithmetic.fast else ""),
        case.note or ("all" if case.arity == 1 else "random pairs"),
        case.unit,
        *errors,
        ", ".join(f"{value:.9g}" for value in result.place),
        f"{result.samples:.1e}",
    ]
    return f"| {' | '.join(cells)} |"


def between(low: float, high: float) -> Callable[[int], Arguments]:
    """f32 of either sign, or positive ones where ``low`` is, up to ``high`` in magnitude."""

    def arguments(step: int) -> Arguments:
        yield from patterns(low, high, max(1, step // 8))
        if low == 0:
            yield from patterns(-0.0, -high, max(1, step // 8))

    return arguments


CASES = [
    Case("exp", np.exp, lambda step: everywhere(step, (1e-3, 104.0))),
    Case("log", np.log, lambda step: everywhere(step, (0.5, 2.0))),
    Case("sin", np.sin, lambda step: everywhere(step, (0.25, 1e6))),
    Case("cos", np.cos, lambda step: everywhere(step, (0.25, 1e6))),
    Case("tanh", np.tanh, lambda step: everywhere(step, (0.125, 10.0))),
    Case("erf", erf, lambda step: everywhere(step, (0.125, 4.0))),
    Case("sigmoid", sigmoid, between(0.0, 88.0), note="abs(x) <= 88"),
    Case("rsqrt", rsqrt, everywhere),
    Case("pow", np.power, all_powers, arity=2, note="random pairs"),
    Case("exp", np.exp, between(0.0, 1.0), FAST, note="abs(x) <= 1"),
    Case("exp", np.exp, between(0.0, 86.0), FAST, note="abs(x) <= 86"),
    Case("log", np.log, between(0.5, 2.0), FAST, unit="absolute", note="0.5 <= x <= 2"),
    Case("log", np.log, between(2.0, math.inf), FAST, note="x >= 2"),
    Case("sin", np.sin, between(0.0, math.pi), FAST, unit="absolute", note="abs(x) <= pi"),
    Case("cos", np.cos, between(0.0, math.pi), FAST, unit="absolute", note="abs(x) <= pi"),
    Case("tanh", np.tanh, between(2.0**-60, math.inf), FAST, unit="relative", note="abs(x) >= 2^-60"),
    Case("erf", erf, lambda step: everywhere(step, (0.125, 4.0)), FAST),
    Case("sigmoid", sigmoid, between(0.0, 86.0), FAST, note="abs(x) <= 86"),
    Case("pow", np.power, moderate_powers, FAST, arity=2, note="2 <= x <= 2^20, 2^-20 <= x^y <= 2^20"),
    Case("sqrt", np.sqrt, between(2.0**-126, math.inf), FAST, note="normal"),
    Case("rsqrt", rsqrt, between(2.0**-126, math.inf), FAST, note="normal"),
    *(
        Case(name, reference, halves, type=B16)
        for name, reference in (
            ("exp", np.exp), ("log", np.log), ("sin", np.sin), ("cos", np.cos), ("tanh", np.tanh), ("erf", erf),
            ("sigmoid", sigmoid), ("sqrt", np.sqrt), ("rsqrt", rsqrt), ("reciprocal", np.reciprocal),
        )
    ),
    Case("divide", np.divide, pairs_of_halves, type=B16, arity=2),
    Case("tanh", np.tanh, halves, FAST, B16),
    Case("divide", np.divide, pairs_of_halves, FAST, B16, arity=2),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="measure these functions only")
    parser.add_argument("--step", type=int, default=1009, help="how many bit patterns to go on (default: %(default)s)")
    options = parser.parse_args()
    print("| function | arithmetic | arguments | unit | error | as documented | at | samples |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if not options.names or case.name in options.names:
            print(row(case, measure(case, options.step)), flush=True)


if __name__ == "__main__":
    main()
