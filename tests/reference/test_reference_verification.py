"""Independent answers to what kernels write, without the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_ir import Assign, Let, Load, Smem, Spec, Write, dtype, lit, tile, var
from reference_lab import Node, graph_of, prepared

import ptxc
from ptxc.errors import UsageError
from ptxc.reference.compare import Tolerance
from ptxc.reference.execution import Settings
from ptxc.reference.tolerances import tolerance_for
from ptxc.reference.verification import PTXC, REFERENCE, Verification
from ptxc.sim.findings import CHECKS

AT = (var("i"),)


def verified(graph: Any, change: Callable[[str], str] = str) -> Verification:
    """Both answers, ptxc's after a ``change`` of its PTX."""
    _, steps, problem = prepared(graph)
    (kernel,) = ptxc.compile(graph)
    found = Verification(problem, Tolerance(), Settings(frozenset(CHECKS)))
    found.evaluate(graph, steps)
    launched = found.execute(PTXC, {steps[0].entry: change(kernel.ptx)}, steps)
    assert len(launched) == len(steps)
    return found


def copied(source: Spec, target: Spec, *stmts: Any) -> Any:
    body = tile({"i": 64}, [Load("a", "x", AT), *stmts, Write("y", AT, "b" if stmts else "a")])
    return graph_of({"x": ((64,), source)}, Node(body, ("x",), {"y": ((64,), target)}))


def test_answers_agree() -> None:
    found = verified(copied("f32", "f32", Assign("b", "add", ("a", "a"))))
    assert found.answers.keys() == found.notes.keys() == {REFERENCE, PTXC}
    ((who, other, difference),) = found.differences
    assert (who, other, difference.elements, difference.wrong) == (PTXC, REFERENCE, 64, 0)
    assert not found.wrong
    found.check()


def test_what_is_wrong_is_said() -> None:
    found = verified(
        copied("f32", "f32", Assign("b", "add", ("a", "a"))), lambda ptx: ptx.replace("add.f32", "mul.f32")
    )
    (said,) = found.wrong
    assert said.startswith("y of ptxc differs from reference's in 64 of 64 elements")
    found = verified(copied("f32", "f32"), lambda ptx: ptx.replace("[x]", "[y]"))
    assert found.findings
    assert {(row.who, row.kernel) for row in found.findings} == {(PTXC, "k")}


def test_bools_are_bools() -> None:
    graph = copied("bool", "f32", Assign("b", "copy", ("a",), dtype=dtype("f32")))
    found = verified(graph)
    assert found.problem.begin["x"].dtype == np.bool_
    assert 0 < found.problem.begin["x"].sum() < 64
    assert set(found.problem.begin["x"].view(np.uint8).tolist()) == {0, 1}
    assert set(found.answers[PTXC]["y"].tolist()) == {0, 1}
    assert not found.wrong


def test_packed_pairs_are_compared_element_by_element() -> None:
    found = verified(copied("f4e2m1x2", "f4e2m1x2"))
    ((_, _, difference),) = found.differences
    assert (difference.elements, difference.wrong) == (128, 0)


def test_one_answer_is_nothing_to_compare() -> None:
    _, _, problem = prepared(copied("f32", "f32"))
    found = Verification(problem, Tolerance(), Settings())
    found.notes[REFERENCE] = "none: for a reason"
    with pytest.raises(UsageError, match="for a reason"):
        found.check()


def test_what_the_types_of_a_kernel_lose_is_no_fault() -> None:
    """f32 has no 1e9 + x, and float64 has."""
    large = Let("large", lit(1e9), dtype=dtype("f32"))
    body = (large, Assign("c", "add", ("a", "large")), Assign("b", "subtract", ("c", "large")))
    assert not verified(copied("f32", "f32", *body)).wrong
    found = verified(copied("f32", "f32", *body), lambda ptx: ptx.replace("sub.f32", "add.f32"))
    assert "in 64 of 64 elements" in found.wrong[0]


def test_types_that_a_kernel_computes_in_count() -> None:
    graph = copied("f32", "f32", Assign("c", "add", ("a", "a"), dtype=dtype("f16")), Assign("b", "copy", ("c",)))
    tolerance = tolerance_for(prepared(graph)[2], graph)
    assert tolerance.types == {"f16", "f32"}
    assert tolerance.of("f32") == 2e-3
    graph = copied("f32", "f32", Smem("s", (64,), "__nv_bfloat16"), Write("s", AT, "a"), Load("b", "s", AT))
    assert tolerance_for(prepared(graph)[2], graph).of("f32") == 2e-2


def test_what_overflows_is_said() -> None:
    graph = copied("f16", "f16", Assign("b", "add", ("a", "a")))
    _, steps, problem = prepared(graph)
    problem.begin["x"] = np.array([60000] * 5 + [1] * 59, np.float16)
    (kernel,) = ptxc.compile(graph)
    found = Verification(problem, Tolerance(), Settings())
    found.evaluate(graph, steps)
    found.execute(PTXC, {steps[0].entry: kernel.ptx}, steps)
    (said,) = found.wrong
    what = "y of ptxc differs from reference's in 5 of 64 elements"
    assert said == f"{what} (there the expected number is too large for f16)"
