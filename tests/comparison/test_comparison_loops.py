"""Loops of SASS, found on its control-flow graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxc.comparison.loops import Loop, loops, reached, size
from ptxc.comparison.sass import SIZE, Instruction, parse

DATA = Path(__file__).parent / "data"


def code(text: str) -> list[Instruction]:
    """Instructions of a text in which ``@name`` behind an instruction is a label and ``name`` its address."""
    lines = [line.strip() for line in text.strip().splitlines()]
    labels = {line.split(" # ")[1]: f"{index * SIZE:#x}" for index, line in enumerate(lines) if " # " in line}
    made = []
    for line in lines:
        plain = line.split(" # ")[0]
        head, _, last = plain.rpartition(" ") if " " in plain else (plain, "", "")
        *others, target = last.split(",")
        made.append(" ".join(filter(None, (head or plain, ",".join([*others, labels.get(target, target)])))))
    return parse("\n".join(made))


def found(text: str) -> list[tuple[int, list[int], int]]:
    """The loops: head, instructions, depth."""
    return [(loop.head, sorted(loop.body), loop.depth) for loop in loops(code(text))]


def test_no_loop() -> None:
    assert found("S2R R0\n@P0 EXIT\nLDG R0\nEXIT") == []
    assert loops([]) == []


def test_a_loop_with_its_test_at_the_end() -> None:
    text = """
        S2R R0
        FFMA R0 # loop
        @P0 BRA loop
        EXIT
        """
    assert found(text) == [(1, [1, 2], 1)]


def test_a_loop_with_a_way_out_and_one_round_part_of_it() -> None:
    text = """
        S2R R0
        ISETP P0 # loop
        @P0 BRA out
        @P1 BRA next
        FFMA R0
        IADD3 R1 # next
        BRA loop
        EXIT # out
        """
    assert found(text) == [(1, [1, 2, 3, 4, 5, 6], 1)]


def test_loops_in_loops() -> None:
    text = """
        S2R R0
        MOV R1 # outer
        FFMA R0 # one
        @P0 BRA one
        FADD R0 # two
        @P1 BRA two
        @P2 BRA outer
        EXIT
        """
    assert found(text) == [(1, [1, 2, 3, 4, 5, 6], 1), (2, [2, 3], 2), (4, [4, 5], 2)]
    outer, one, two = loops(code(text))
    assert (outer.inner, one.inner, two.inner) == ([one, two], [], [])


def test_two_ways_back_to_one_head_are_one_loop() -> None:
    text = """
        MOV R1 # loop
        @P0 BRA loop
        FFMA R0
        @P1 BRA loop
        EXIT
        """
    assert found(text) == [(0, [0, 1, 2, 3], 1)]


def test_a_cycle_that_is_entered_in_two_places_is_no_natural_loop() -> None:
    text = """
        @P0 BRA second
        FFMA R0 # first
        FADD R0 # second
        @P1 BRA first
        EXIT
        """
    assert found(text) == []


@pytest.mark.parametrize("branch", ["@P0 BRA loop", "@!UP0 BRA.U loop", "BRA.U !UP0,loop", "BRA P0,loop"])
def test_branches_of_two_ways(branch: str) -> None:
    assert found(f"FFMA R0 # loop\n{branch}\nEXIT") == [(0, [0, 1], 1)]


def test_what_is_not_followed() -> None:
    """The slow way of a shuffle, and what is called."""
    text = """
        BRA.DIV ~URZ,slow
        SHFL R0 # back
        CALL.REL.NOINC slow
        EXIT
        WARPSYNC R0 # slow
        BRA back
        """
    assert sorted(reached(code(text))) == [0, 1, 2, 3]
    assert found(text) == []


def test_the_size_is_without_the_padding() -> None:
    assert size(code("FFMA R0\nEXIT\nBRA self # self\nNOP\nNOP")) == 2
    assert size(code("FFMA R0 # loop\nBRA loop")) == 2
    assert size([]) == 0


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("row_sum_tree.ptxc", []), ("matmul_async.nvcc", [(0x150, 58)]),
        ("matmul_async.ptxc", [(0x270, 14)]), ("mma_matmul_f16.ptxc", [(0x4A0, 217)]),
        ("mma_matmul_f16.nvcc", [(0x590, 75)]),
    ],
)  # fmt: skip
def test_recorded_kernels(file: str, expected: list[tuple[int, int]]) -> None:
    recorded: list[Loop] = loops(parse((DATA / f"{file}.sass").read_text()))
    assert [(loop.head * SIZE, len(loop.body)) for loop in recorded] == expected
