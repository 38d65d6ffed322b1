"""The verifier: each invariant is broken once, in a file of ``invalid/`` or, where the text form cannot, by hand.

A line of such a file is followed by what the verifier says of it, ``// error: …``, as often as it says something. The
number before the file's name is the invariant's, and no other is broken.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import networkx as nx
import pytest
from conftest import docstrings
from flow_graph import flow_graph
from random_kernels import random_kernel

from ptxc.errors import InputError, InternalError
from ptxc.ir import opcodes, verify
from ptxc.ir.kernel import Block, Edge, Instr, Kernel, Param, Shared
from ptxc.ir.text import parse_kernel
from ptxc.ir.types import B32, F32
from ptxc.ir.values import Const, Mem, Value, integer
from ptxc.ir.verify import Place, check, render

HERE = Path(__file__).parent
INVALID = sorted((HERE / "invalid").glob("*.ir"))
VALID = sorted((HERE / "valid").glob("*.ir"))


def expectations(text: str) -> list[tuple[Place, str]]:
    """What the comments of a file expect, in the order of its lines."""
    expected = []
    block, number = -1, -1
    for line in text.splitlines():
        code, *errors = line.split(" // error: ")
        if not code.strip():
            continue
        if code.startswith((" ", "kernel")):
            number += 1
        else:
            block, number = block + 1, -1
        expected += [(Place(block, number), error) for error in errors]
    return expected


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid(path: Path) -> None:
    text = path.read_text()
    kernel = parse_kernel(text, path.name)
    found = verify.verify(kernel)
    expected = expectations(text)
    assert [violation.place for violation in found] == [place for place, _ in expected], render(kernel, found)
    for place, error in expected:
        said = [violation.message for violation in found if violation.place == place]
        assert any(error in message for message in said), (error, said)
    assert {violation.invariant for violation in found} == {int(path.name[:2])}


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid(path: Path) -> None:
    check(parse_kernel(path.read_text(), path.name), error=InputError)


# ------------------------------------------------------------------------------- what the text form cannot express

SOUND = """\
kernel k target sm_80 threads 32
  param n: u32
  shared s: 16 align 4

entry:
    %n:b32 = ld.param.u32 [n]
    %x:f32 = mov.f32 0f3F800000
    bra next(%n)

next(%i:b32):
    %j:b32 = add.s32 %i, 1
    %h:b16 = cvt.rn.f16.f32 %x
    ret
"""

BROKEN: list[tuple[int, str, Callable[[Kernel], None]]] = []


def breaks(invariant: int, message: str) -> Callable[[Callable[[Kernel], None]], None]:
    """A change to the kernel SOUND that makes the verifier say ``message``."""
    return lambda change: BROKEN.append((invariant, message, change))


@breaks(1, "'' is no PTX identifier")
def _(kernel: Kernel) -> None:
    kernel.name = ""


@breaks(2, "a parameter is u32 or u64, not f32")
def _(kernel: Kernel) -> None:
    kernel.params.append(Param("x", "f32"))


@breaks(2, "the size -1 is negative")
def _(kernel: Kernel) -> None:
    kernel.shared[0] = Shared("s", -1, 4)


@breaks(3, "'a b' is no name")
def _(kernel: Kernel) -> None:
    kernel.blocks[1].name = "a b"


@breaks(3, "the name entry stands twice")
def _(kernel: Kernel) -> None:
    kernel.blocks[1].name = "entry"


@breaks(4, "the block next stands in two places")
def _(kernel: Kernel) -> None:
    kernel.ssa = False
    kernel.blocks[1].params.clear()
    kernel.blocks[0].instrs[-1].targets = (Edge(kernel.blocks[1]),)
    kernel.blocks[1].instrs.clear()
    kernel.blocks.append(kernel.blocks[1])


@breaks(4, "the instruction stands in two places")
def _(kernel: Kernel) -> None:
    barrier = Instr(opcodes.BAR, ("sync",), (), (integer(B32, 0),))
    for block in kernel.blocks:
        block.instrs.insert(0, barrier)


@breaks(6, "add has 0 targets here, not 1")
def _(kernel: Kernel) -> None:
    kernel.blocks[1].instrs[0].targets = kernel.blocks[0].terminator.targets


@breaks(7, "elsewhere is no block of this kernel")
def _(kernel: Kernel) -> None:
    kernel.blocks[0].terminator.targets = (Edge(Block("elsewhere")),)


@breaks(8, "next takes 1 value, not 0")
def _(kernel: Kernel) -> None:
    kernel.blocks[0].terminator.targets = (Edge(kernel.blocks[1]),)


@breaks(11, "cvt ends in two types")
def _(kernel: Kernel) -> None:
    kernel.blocks[1].instrs[1].mods = ("rn", "f16")


@breaks(11, "there is no mul.wide.f32")
def _(kernel: Kernel) -> None:
    kernel.blocks[1].instrs[0].op, kernel.blocks[1].instrs[0].mods = opcodes.MUL, ("wide", "f32")


@breaks(14, "the constant 4294967295 is not normalised to b32")
def _(kernel: Kernel) -> None:
    kernel.blocks[1].instrs[0].operands = (Const(B32, 2**32 - 1), kernel.blocks[1].params[0])


@breaks(14, "the constant -1 is not normalised to f32")
def _(kernel: Kernel) -> None:
    kernel.blocks[0].instrs[1].operands = (Const(F32, -1),)


@breaks(14, "the constant 2147483648 is not normalised to b32")
def _(kernel: Kernel) -> None:
    kernel.blocks[0].terminator.targets = (Edge(kernel.blocks[1], (Const(B32, 2**31),)),)


@breaks(18, "another value is called %n too")
def _(kernel: Kernel) -> None:
    kernel.blocks[1].instrs[0].results[0].hint = "n"


@breaks(18, "no value can be called '0'")
def _(kernel: Kernel) -> None:
    kernel.blocks[1].instrs[0].results[0].hint = "0"


@breaks(20, "nothing in this kernel defines %n")
def _(kernel: Kernel) -> None:
    kernel.blocks[1].instrs[0].operands = (Value(B32, "n"), integer(B32, 1))


@pytest.mark.parametrize(("invariant", "message", "change"), BROKEN)
def test_broken(invariant: int, message: str, change: Callable[[Kernel], None]) -> None:
    kernel = parse_kernel(SOUND)
    assert verify.verify(kernel) == []
    change(kernel)
    found = [(violation.invariant, violation.message) for violation in verify.verify(kernel)]
    assert (invariant, message) in found


@docstrings
def test_every_invariant_is_broken_by_a_test() -> None:
    numbers = [int(number) for number in re.findall(r"^ {2,3}(\d+)\. ", verify.__doc__ or "", re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {*numbers} == {int(path.name[:2]) for path in INVALID} | {invariant for invariant, _, _ in BROKEN}


# ------------------------------------------------------------------------------------------------- what people see


def test_violations_are_rendered_under_the_lines_at_fault() -> None:
    kernel = parse_kernel(
        """\
kernel k target sm_80 threads 0
  param a: u64 align 3

entry: collective all
  ; a + b
    %x:b32 = add.s32 1
    ret
"""
    )
    assert render(kernel, verify.verify(kernel)) == (
        """\
kernel k target sm_80 threads 0
^ error: a CTA has 1 to 1024 threads, not 0 (invariant 2)
  param a: u64 align 3
  ^ error: the alignment 3 is no power of two (invariant 2)

entry: collective all
^ error: there is no collective mark 'all' (invariant 3)
  ; a + b
    %x:b32 = add.s32 1
    ^ error: add.s32 takes 2 operands, not 1 (invariant 12)
    ret
"""
    )


def test_check_raises_one_line_and_notes_the_whole_text() -> None:
    kernel = parse_kernel(SOUND.replace("%i, 1", "%x, %later"))
    with pytest.raises(InternalError) as caught:
        check(kernel, "70-simplify")
    assert str(caught.value) == (
        "k: the verifier refuses the IR after 70-simplify: %x is f32 where add takes b32, "
        "in '%j:b32 = add.s32 %x, %later' (and 1 more)"
    )
    assert caught.value.__notes__ == [render(kernel, verify.verify(kernel))]
    with pytest.raises(InputError, match="the verifier refuses the IR: "):
        check(kernel, error=InputError)


# ----------------------------------------------------------------------------------- against a slower, other method


@pytest.mark.parametrize("ssa", [True, False], ids=["ssa", "registers"])
@pytest.mark.parametrize("seed", range(60))
def test_flow_agrees_with_brute_force(seed: int, ssa: bool) -> None:
    """Random kernels keep the invariants; what instructions taken out of one break is what paths say."""
    kernel, random = random_kernel(seed, ssa=ssa), Random(seed)
    found = verify.verify(kernel)
    assert found == [], render(kernel, found)
    kernel.registers.clear()
    for block in kernel.blocks:
        last = block.instrs.pop()
        block.instrs = [instr for instr in random.sample(block.instrs, len(block.instrs)) if random.random() < 0.8]
        block.instrs.append(last)
    expected = {place for place in uses(kernel) if not (dominated if ssa else reached)(kernel, *place)}
    found = verify.verify(kernel)
    assert {(violation.place, name(violation.message)) for violation in found} == {
        (place, value.name) for place, value in expected
    }


def name(message: str) -> str:
    return message.split("%", 1)[1].split(" ", 1)[0]


def uses(kernel: Kernel) -> set[tuple[Place, Value]]:
    found = set()
    for number, block in enumerate(kernel.blocks):
        for line, instr in enumerate(block.instrs):
            operands = [*instr.operands, *(arg for edge in instr.targets for arg in edge.args)]
            if instr.guard is not None:
                operands.append(instr.guard.predicate)
            bases = [operand.base if isinstance(operand, Mem) else operand for operand in operands]
            found |= {(Place(number, line), value) for value in bases if isinstance(value, Value)}
    return found


def definitions(kernel: Kernel, value: Value) -> list[Place]:
    return [
        Place(number, line)
        for number, block in enumerate(kernel.blocks)
        for line, values in enumerate([block.params, *(instr.results for instr in block.instrs)], -1)
        if value in values
    ]


def dominated(kernel: Kernel, place: Place, value: Value) -> bool:
    """Whether each way from the entry to ``place`` passes the definition of ``value``."""
    graph = flow_graph(kernel)
    entry, used = kernel.blocks[0], kernel.blocks[place.block]
    for definition in definitions(kernel, value):
        if definition.block == place.block:
            return definition.line < place.line
        graph.remove_node(kernel.blocks[definition.block])
        return entry not in graph or not nx.has_path(graph, entry, used)
    return False


def reached(kernel: Kernel, place: Place, value: Value) -> bool:
    """Whether some way leads from a definition of ``value`` to ``place``."""
    graph, used = flow_graph(kernel), kernel.blocks[place.block]
    for definition in definitions(kernel, value):
        if definition.block == place.block and definition.line < place.line:
            return True
        if any(nx.has_path(graph, after, used) for after in kernel.blocks[definition.block].successors()):
            return True
    return False
