"""What stays in a loop where registers are scarce, and the estimate by which they are."""

from __future__ import annotations

import pytest
from random_programs import random_program

from ptxc.ir import cfg
from ptxc.ir.peaks import peaks
from ptxc.ir.text import format_kernel, parse_kernel
from ptxc.ir.uses import crowding
from ptxc.ir.verify import check
from ptxc.passes import hoist, leave_ssa


def loop_under(pressure: int, *invariant: str) -> str:
    """The text of a loop with ``invariant`` instructions over %a, %b and %c, and so many more words live around it."""
    held = [f"%h{at}:b32 = ld.global.b32 [%p+{4 * at}]" for at in range(pressure)]
    kept = [f"st.global.b32 [%p+{4 * at}], %h{at}" for at in range(pressure)]
    lines = """
kernel k target sm_80 threads 128
  param p: u64 align 4

entry:
    %p:b64 = ld.param.u64 [p]
    %a:b32 = ld.global.b32 [%p]
    %b:b32 = ld.global.b32 [%p]
    %c:b32 = ld.global.b32 [%p]
    HELD
    bra loop(0)

loop(%i:b32):
    INVARIANT
    st.global.b32 [%p+4], %a
    st.global.b32 [%p+4], %x
    %i.1:b32 = add.s32 %i, 1
    %more:pred = setp.lt.s32 %i.1, 9
    bra %more, loop(%i.1), done

done:
    KEPT
    ret
""".lstrip()
    for name, some in (("HELD", held), ("INVARIANT", list(invariant)), ("KEPT", kept)):
        lines = lines.replace(name, "\n    ".join(some))
    return lines


@pytest.mark.parametrize(
    ("invariant", "moves"),
    [
        (("%x:b32 = mul.lo.s32 %b, %c",), ("x",)),  # one register for two
        (("%x:b32 = mul.lo.s32 %b, 3",), ("x",)),
        (("%x:b32 = mul.lo.s32 %a, 3",), ()),  # %a is held anyhow
        (("%y:b64 = mul.wide.s32 %b, 3", "%x:b32 = cvt.u32.u64 %y"), ()),  # two registers for one
        (("%y:b64 = mul.wide.s32 %b, %c", "%x:b32 = cvt.u32.u64 %y"), ("y", "x")),
        (("%y:b32 = mul.lo.s32 %a, 3", "%x:b32 = add.s32 %y, %b"), ()),  # what %x needs has stayed
    ],
)
def test_where_registers_are_scarce_only_what_frees_some_moves(
    invariant: tuple[str, ...], moves: tuple[str, ...]
) -> None:
    assert moved(loop_under(125, *invariant)) == {line[1 : line.index(":")] for line in invariant}
    assert moved(loop_under(150, *invariant)) == set(moves)


def test_where_all_registers_are_taken_nothing_moves() -> None:
    product = "%x:b32 = mul.lo.s32 %b, %c"
    assert moved(loop_under(230, product)) == {"x"}
    assert moved(loop_under(240, product)) == set()


def moved(text: str) -> set[str]:
    """The values of the loop that hoisting takes out of it."""
    kernel = parse_kernel(text)
    check(kernel, "parse")
    loop = next(block for block in kernel.blocks if block.name == "loop")
    before = {value.hint for instr in loop.instrs for value in instr.results}
    hoist.run(kernel)
    check(kernel, "hoist")
    return before - {value.hint for instr in loop.instrs for value in instr.results}


@pytest.mark.parametrize("seed", range(40))
def test_the_estimate_is_near_the_peak(seed: int) -> None:
    kernel = random_program(seed)
    text = format_kernel(kernel)
    estimate = crowding(kernel, cfg.loops(kernel))
    assert format_kernel(kernel) == text, "estimating changes nothing"
    leave_ssa.run(kernel)
    # Leaving SSA form adds copies, and the text's order is not the flow's: near is all that can be said.
    exact = sum(peak * bank.words for bank, peak in peaks(kernel).items())
    assert exact / 2 <= estimate <= 2 * exact
