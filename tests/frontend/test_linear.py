"""Sums of registers against arithmetic on their coefficients."""

from __future__ import annotations

import itertools

import pytest

from ptxc.frontend.linear import Linear, Registers
from ptxc.ir.types import B32
from ptxc.ir.values import Value

X, Y, Z = (Value(B32, name) for name in "xyz")
SUMS: list[dict[Value, int]] = [{}, {X: 2}, {Y: -3}, {X: -2, Y: 3}, {Y: 3, Z: 1}, {X: 2, Y: 3, Z: -1}]


@pytest.mark.parametrize("factor", [-1, 0, 1, 2])
def test_a_sum_has_no_term_that_is_zero(factor: int) -> None:
    registers = Registers()
    for a, b in itertools.product(SUMS, SUMS):
        total = registers.add(_linear(registers, a, 5), _linear(registers, b, 7), factor)
        expected = {value: a.get(value, 0) + factor * b.get(value, 0) for value in (X, Y, Z)}
        assert total.terms == {value: coefficient for value, coefficient in expected.items() if coefficient}
        assert total.constant == 5 + factor * 7


def _linear(registers: Registers, terms: dict[Value, int], constant: int) -> Linear:
    return registers.make({**terms}, constant, False)
