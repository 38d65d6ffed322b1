"""Whether a kernel does what it means: executed on the CPU device, and compared with Kernel IR evaluated directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxc.errors import CheckError

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph

    from ptxc.compilation import CompiledKernel


def check(kernel: CompiledKernel, graph: Graph, ctas: str) -> str:
    """Execute ``ctas`` of a kernel of ``graph``, on random inputs and with all checks of the device.

    Gives what was looked at: ``values`` or, where Kernel IR cannot be evaluated, ``findings`` alone. Raises CheckError
    for a finding or for outputs that differ, another CompileError where the kernel cannot be executed.
    """
    from ptxc.reference.buffers import integers_of, problem_of
    from ptxc.reference.execution import Settings
    from ptxc.reference.sample import Sample
    from ptxc.reference.steps import steps_of
    from ptxc.reference.tolerances import tolerance_for
    from ptxc.reference.verification import PTXC, REFERENCE, Verification

    steps = steps_of([kernel])
    integers = {name: integer.value for name, integer in integers_of(steps, {}, {}).items()}
    problem = problem_of(steps, integers, {})
    tolerance = tolerance_for(problem, graph)
    settings = Settings(frozenset(("memory", "race", "init", "sync")), Sample.parse(ctas))
    verification = Verification(problem, tolerance, settings)
    verification.evaluate(graph, steps)
    verification.execute(PTXC, {kernel.name: kernel.ptx}, steps)
    if verification.wrong:
        raise CheckError("; ".join(verification.wrong), hint="look at it with ptxc verify")
    return "values" if REFERENCE in verification.answers else "findings"
