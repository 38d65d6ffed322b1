"""The hottest region, and what it takes for a unit of work."""

from __future__ import annotations

from pathlib import Path

import pytest
from comparison_lab import loop
from test_comparison_loops import code

from ptxc.comparison.sass import Kind, parse
from ptxc.comparison.work import Code, Unit, alike, analyse, common_unit, hottest_of

DATA = Path(__file__).parent / "data"


def recorded(name: str) -> Code:
    return analyse(parse((DATA / f"{name}.sass").read_text()))


def test_unrolled_and_not_are_compared_by_work() -> None:
    once = loop("LDS R0; FFMA R1; IADD3 R2")
    four = loop("LDS R0; FFMA R1; LDS R0; FFMA R1; LDS R0; FFMA R1; LDS R0; FFMA R1; IADD3 R2")
    unit = common_unit([once, four])
    assert unit is Unit.FLOAT
    assert once.hottest(unit).per_work(unit) == 4
    assert four.hottest(unit).per_work(unit) == 10 / 4
    assert four.hottest(unit).per_work(unit, Kind.INTEGER) == 1 / 4
    assert four.hottest(unit).per_work(unit, Kind.SHARED) == 1


def test_tensor_cores_come_first_even_where_a_build_has_no_loop_of_them() -> None:
    looped = loop("HMMA.16816.F32 R0; FADD R1")
    unrolled = loop("FADD R1", before="HMMA.16816.F32 R0")
    unit = common_unit([looped, unrolled])
    assert unit is Unit.PRODUCT
    assert unrolled.hottest(unit) is unrolled.whole
    assert (looped.hottest(unit).address, looped.hottest(unit).instructions) == (16, 3)


def test_copies_are_counted_in_words() -> None:
    one, wide = loop("LDG.E R0,[R2]; STG.E [R3],R0"), loop("LDG.E.128 R0,[R2]; STG.E.128 [R3],R0")
    unit = common_unit([one, wide])
    assert unit is Unit.WORD
    assert (one.hottest(unit).per_work(unit), wide.hottest(unit).per_work(unit)) == (3 / 2, 3 / 8)


def test_floats_outside_of_loops_do_not_make_a_copy_a_computation() -> None:
    kernel = loop("LDG.E R0,[R2]; STG.E [R3],R0", behind="FADD R0")
    assert common_unit([kernel]) is Unit.WORD


def test_a_loop_without_work_is_not_hot() -> None:
    kernel = loop("SYNCS.PHASECHK.TRANS64.TRYWAIT P0,[UR4],R5", behind="FADD R0")
    unit = common_unit([kernel])
    assert unit is Unit.FLOAT
    assert kernel.hottest(unit) is kernel.whole


def test_a_kernel_without_a_loop_and_one_without_work() -> None:
    straight = analyse(code("S2R R0\nLDG.E R1,[R2]\nFADD R1\nSTG.E [R2],R1\nEXIT"))
    assert common_unit([straight]) is Unit.FLOAT
    assert straight.hottest(Unit.FLOAT).per_work(Unit.FLOAT) == 5
    nothing = analyse(code("S2R R0\nEXIT"))
    assert common_unit([straight, nothing]) is Unit.KERNEL
    assert straight.hottest(Unit.KERNEL).per_work(Unit.KERNEL) == 5


NESTED = """
    S2R R0
    FFMA R1 # outer
    FFMA R2
    FFMA R3
    FADD R0 # inner
    FADD R0
    @P0 BRA inner
    SYNCS P0 # wait
    @P1 BRA wait
    @P2 BRA outer
    FADD R0 # small
    @P3 BRA small
    EXIT
    """


def test_the_innermost_loop_with_most_work_is_the_hottest() -> None:
    kernel = analyse(code(NESTED))
    hottest = kernel.hottest(Unit.FLOAT)
    assert (hottest.address, hottest.depth, hottest.instructions, hottest.work[Unit.FLOAT]) == (0x40, 2, 3, 2)


def test_loops_inside_that_lack_the_work_are_part_of_it() -> None:
    kernel = analyse(code(NESTED.replace("FADD R0 # inner\n    FADD R0", "IADD3 R0 # inner")))
    hottest = kernel.hottest(Unit.FLOAT)
    assert (hottest.address, hottest.depth, hottest.instructions, hottest.work[Unit.FLOAT]) == (0x10, 1, 8, 3)


@pytest.mark.parametrize(
    ("name", "unit", "ours", "theirs"),
    [
        ("row_sum_tree", Unit.FLOAT, 48 / 8, 64 / 9), ("matmul_async", Unit.FLOAT, 14 / 4, 324 / 64),
        ("mma_matmul_f16", Unit.PRODUCT, 217 / 64, 75 / 16),
    ],
)  # fmt: skip
def test_recorded_kernels(name: str, unit: Unit, ours: float, theirs: float) -> None:
    builds = [recorded(f"{name}.ptxc"), recorded(f"{name}.nvcc")]
    assert common_unit(builds) is unit
    assert [build.hottest(unit).per_work(unit) for build in builds] == [ours, theirs]


#: Two loops, one that sums and one that divides, unrolled by as much.
TWO = """
    S2R R0
    {sum}
    @P0 BRA sum
    {division}
    @P1 BRA division
    EXIT
    """
SUM = ["LDG.E R0,[R2]", "FADD R1", "MUFU.EX2 R1", "FMUL R1", "FADD R1"]
DIVISION = ["LDG.E R0,[R2]", "FADD R1", "STG.E [R2],R1"]


def two_loops(sums: int, divisions: int) -> Code:
    def body(lines: list[str], times: int, label: str) -> str:
        return "\n    ".join([f"{lines[0]} # {label}", *lines[1:], *(lines * (times - 1))])

    return analyse(code(TWO.format(sum=body(SUM, sums, "sum"), division=body(DIVISION, divisions, "division"))))


def test_what_loads_is_not_like_what_stores() -> None:
    copies = "{copy} # copy\n    MOV R4,R5\n    @P0 BRA copy\n    EXIT"
    loading, storing = (analyse(code(copies.format(copy=text))) for text in ("LDG.E R0,[R2]", "STG.E [R2],R0"))
    assert loading.hottest(Unit.WORD).work == storing.hottest(Unit.WORD).work
    assert not alike(loading.hottest(Unit.WORD), storing.hottest(Unit.WORD), Unit.WORD)


def test_loops_that_do_the_same_are_compared() -> None:
    ours, theirs, unit = two_loops(1, 8), two_loops(4, 9), Unit.FLOAT
    assert not alike(ours.hottest(unit), theirs.hottest(unit), unit)
    assert [region.work[unit] for region in hottest_of(ours, theirs, unit)] == [8, 9]
    assert [region.per_work(unit) for region in hottest_of(ours, theirs, unit)] == [25 / 8, 28 / 9]
    assert [region.work[unit] for region in hottest_of(theirs, ours, unit)] == [16, 4]
    same = two_loops(2, 2)
    assert hottest_of(same, theirs, unit) == (same.hottest(unit), theirs.hottest(unit))


def test_the_hottest_are_compared_where_no_loops_do_the_same() -> None:
    ours, theirs, unit = loop("LDG.E R0,[R2]; FADD R1"), loop("LDG.E R0,[R2]; FADD R1; FADD R2"), Unit.FLOAT
    assert hottest_of(ours, theirs, unit) == (ours.hottest(unit), theirs.hottest(unit))
    straight = analyse(code("LDG.E R1,[R2]\nFADD R1\nEXIT"))
    assert hottest_of(ours, straight, unit) == (ours.hottest(unit), straight.whole)


def test_loops_of_little_work_do_not_stand_for_the_hottest() -> None:
    unit = Unit.FLOAT
    ours = two_loops(1, 8)
    theirs = analyse(
        code(TWO.format(sum="\n    ".join(["LDG.E R0,[R2] # sum", *["FADD R1"] * 32]), division="FADD R1 # division"))
    )
    trivial = analyse(
        code(TWO.format(sum="\n    ".join(["LDG.E R0,[R2] # sum", *["FADD R1"] * 9]), division="FADD R1 # division"))
    )
    assert hottest_of(ours, theirs, unit) == (ours.hottest(unit), theirs.hottest(unit))
    assert hottest_of(trivial, theirs, unit) == (trivial.hottest(unit), theirs.hottest(unit))
