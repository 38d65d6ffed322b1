"""No pass changes what a thread does: random kernels have the same effects before and after each."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import cast

import pytest
from ir_machine import Effect, execute
from random_programs import ARGUMENTS, random_program

from ptxc.ir.kernel import Kernel
from ptxc.ir.text import format_kernel, parse_kernel
from ptxc.ir.verify import check
from ptxc.passes.pipeline import PIPELINE

PASSES = {item.name: item for item in PIPELINE}
#: Those before SSA form is left.
OPTIONAL = [item.name for item in PIPELINE if not item.required and item.rank < 80]


def effects(kernel: Kernel) -> list[list[Effect]]:
    return [execute(kernel, arguments) for arguments in ARGUMENTS]


@pytest.mark.parametrize("seed", range(70))
def test_effects_are_kept(seed: int) -> None:
    """All optional passes in their order; some in any order; none. Then SSA form is left and registers are counted."""
    random = Random(seed)
    kernel = random_program(seed, flights=seed % 2 > 0)
    check(kernel)
    text, expected = format_kernel(kernel), effects(kernel)
    some = random.sample(OPTIONAL, random.randint(1, len(OPTIONAL) - 1))
    for chosen in (OPTIONAL, some, []):
        kernel = parse_kernel(text)
        for name in (*chosen, "leave-ssa", "registers"):
            before = format_kernel(kernel)
            PASSES[name].run(kernel)
            check(kernel, name)
            assert effects(kernel) == expected, f"{name} of\n{before}\nis\n{format_kernel(kernel)}"


def test_random_programs_hold_what_passes_look_for() -> None:
    """They run far enough to have effects, loop, and are changed by every pass."""
    changed = dict.fromkeys((*OPTIONAL, "leave-ssa"), 0)
    stores = 0
    for seed in range(30):
        kernel = random_program(seed)
        stores += sum(len(found) for found in effects(kernel))
        for name in changed:
            before = format_kernel(kernel)
            PASSES[name].run(kernel)
            changed[name] += format_kernel(kernel) != before
    assert stores > 500
    del changed["contract"]  # which is about floats
    assert min(changed.values()) > 10, changed


@pytest.fixture
def random_kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Kernel]:
    """The generator of the IR's tests."""
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "ir")
    return cast(Callable[[int], Kernel], import_module("random_kernels").random_kernel)


@pytest.mark.parametrize("seed", range(60))
def test_any_kernel_stays_well_formed(seed: int, random_kernel: Callable[[int], Kernel]) -> None:
    """Of kernels with any instruction on any graph no pass makes what the verifier refuses."""
    text = format_kernel(random_kernel(seed))
    for name in (*OPTIONAL, "leave-ssa"):
        kernel = parse_kernel(text)
        PASSES[name].run(kernel)
        check(kernel, name)
    kernel = parse_kernel(text)
    for name in (*OPTIONAL, "leave-ssa", "pressure", "registers"):
        PASSES[name].run(kernel)
        check(kernel, name)
