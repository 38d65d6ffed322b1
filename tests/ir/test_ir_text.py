"""The text form: what is printed is read back, and what cannot be read is refused with its line."""

from __future__ import annotations

import string
from pathlib import Path
from random import Random

import pytest
from random_kernels import random_kernel

from ptxc.errors import InputError
from ptxc.ir.kernel import Kernel
from ptxc.ir.opcodes import OPCODES, WGMMA, WGMMA_RS
from ptxc.ir.text import format_kernel, parse_kernel
from ptxc.ir.types import B32
from ptxc.ir.verify import render, verify

VALID = sorted((Path(__file__).parent / "valid").glob("*.ir"))


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_a_file_is_printed_as_it_was_read(path: Path) -> None:
    comment, text = path.read_text().split("\n", 1)
    assert comment.startswith("// ")
    assert format_kernel(parse_kernel(text)) == text


def test_the_files_hold_every_opcode() -> None:
    assert {instr.op.name for path in VALID for instr in parse_kernel(path.read_text()).instrs()} == OPCODES.keys()


def test_random_kernels_hold_every_modifier() -> None:
    seen = {
        (instr.op, mod[: mod.find("=") + 1] or mod)
        for seed in range(400)
        for instr in random_kernel(seed).instrs()
        for mod in instr.mods
    }
    rest = {(op, mod) for op in OPCODES.values() for mod in op.modifiers} - seen
    # wgmma's shapes differ in their size alone.
    assert {mod for op, mod in rest} <= {mod for mod in WGMMA.modifiers if mod.startswith("m64n")}
    assert {op for op, mod in seen if mod.startswith("m64n")} == {WGMMA, WGMMA_RS}


@pytest.mark.parametrize("ssa", [True, False], ids=["ssa", "registers"])
@pytest.mark.parametrize("seed", range(100))
def test_random_kernels_are_read_as_they_were_printed(seed: int, ssa: bool) -> None:
    kernel = random_kernel(seed, ssa=ssa)
    text = format_kernel(kernel)
    read = parse_kernel(text)
    assert format_kernel(read) == text
    assert verify(read) == []
    for ours, theirs in zip(kernel.instrs(), read.instrs(), strict=True):
        # The text shows no types of constants: the instruction and the target's parameters say them.
        assert str((ours.operands, ours.targets)) == str((theirs.operands, theirs.targets))


def test_names_that_were_read_are_taken() -> None:
    kernel = parse_kernel("kernel k target sm_80 threads 1\n\nentry:\n    %x:b32 = mov.u32 0\n    ret\n")
    assert [kernel.value(B32, hint).name for hint in ("x", "entry", "laneid")] == ["x.1", "entry.1", "laneid.1"]


def test_a_location_is_one_line_and_may_hold_slashes() -> None:
    kernel = random_kernel(0)
    first, second, *_ = kernel.instrs()
    first.loc, second.loc = "a = b // 2\n    + c", "a = b // 2 + c "
    text = format_kernel(kernel)
    assert text.count("a = b // 2 + c\n") == 1
    assert format_kernel(parse_kernel(text)) == text


# ------------------------------------------------------------------------------------------------------- errors

HEADER = "kernel k target sm_80 threads 32"

#: What stands in the third line, or below a block's heading in the fourth, and why that cannot be.
MISREAD = [
    ("  parameter a: u64", "cannot read 'parameter a: u64'"),
    ("  param a: u16", "cannot read"),
    ("  shared s: 4", "cannot read"),
    ("    ret", "cannot read 'ret'"),
    ("  ; a statement", "cannot read"),
    ("entry(%x):", "a definition is %name:type"),
    ("entry(%x:u32):", "a definition is %name:type"),
]
MISREAD_INSTRUCTIONS = [
    ("ret now then", "cannot read the operand 'now then'"),
    ("Ret", "cannot read the instruction 'Ret'"),
    ("jump end", "there is no instruction 'jump'"),
    ("%x:b32 = add 1, 2", "the modifiers of add name no type that it takes"),
    ("%x:b32 = cvt.s32 1", "the modifiers of cvt.s32 name no type that it takes"),
    ("%x:b64 = mul.wide.s64 1, 2", "the modifiers of mul.wide.s64 name no type that it takes"),
    ("%x = add.s32 1, 2", "cannot read the value '%x'"),
    ("%x:s32 = add.s32 1, 2", "cannot read the value '%x:s32'"),
    ("x:b32 = add.s32 1, 2", "cannot read the instruction"),
    ("%x:b32 = add.s32 1,2", "cannot read the operand '1,2'"),
    ("%x:b32 = add.s32 1, 2,", "cannot read the operand '2,'"),
    ("%x:b32 = add.s32 1, 0x2", "cannot read the operand '0x2'"),
    ("%x:f32 = add.f32 1, 0f00000000", "1 stands for a constant of f32, which is written as its bits"),
    ("%x:f32 = mov.f32 1.5", "cannot read the operand '1.5'"),
    ("%x:f32 = mov.f32 0f3f800000", "cannot read the operand '0f3f800000'"),
    ("%x:b32 = add.s32 1, " + "9" * 5000, "cannot read the operand"),
    ("%x:b32 = add.s32 %y(1), 2", "only a branch target takes values"),
    ("%x:b32 = ld.global.b32 [%a + 4]", "cannot read the operand '[%a + 4]'"),
    ("%x:b32, %x:f32 = add.s32 1, 2", "%x is b32 in another place"),
    ("bra nowhere", "there is no block nowhere"),
    ("bra entry(1)", "entry takes 0 values, not 1"),
    ("bra end", "end takes 1 values, not 0"),
    ("bra end(1.5)", "cannot read what end is passed"),
    ("bra end(entry(1))", "only a branch target takes values"),
    ("bra end(1)", "1 stands for a constant of f32"),
]


@pytest.mark.parametrize(("line", "message"), MISREAD)
def test_a_line_that_cannot_be_read(line: str, message: str) -> None:
    assert_refused(f"{HEADER}\n\n{line}\n", 3, message)


@pytest.mark.parametrize(("line", "message"), MISREAD_INSTRUCTIONS)
def test_an_instruction_that_cannot_be_read(line: str, message: str) -> None:
    assert_refused(f"{HEADER}\n\nentry:\n    {line} // and why\n\nend(%f:f32):\n    ret\n", 4, message)


@pytest.mark.parametrize(
    "text", ["", "\n", "// nothing\n", "kernel k", f"{HEADER} register", f"// first\n\n  {HEADER}"]
)
def test_a_header_that_cannot_be_read(text: str) -> None:
    assert_refused(text, text.count("\n") + 1, "expected 'kernel NAME target sm_NN threads N'")


def test_a_block_stands_once() -> None:
    assert_refused(f"{HEADER}\n\nentry:\n    ret\n\nentry:\n    ret\n", 6, "block entry stands twice")


def assert_refused(text: str, line: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_kernel(text, "broken.ir")
    assert message in caught.value.what
    assert caught.value.statement == f"line {line}"
    assert str(caught.value).startswith(f"broken.ir: line {line}: ")


# ---------------------------------------------------------------------------------------------- anything at all


@pytest.mark.parametrize("seed", range(200))
def test_damaged_text_is_refused_or_read_as_it_is_printed(seed: int) -> None:
    """Whatever a hand may write, the parser and the verifier say what is wrong with it and do not crash."""
    random = Random(seed)
    for text in (format_kernel(random_kernel(seed)), random.choice(VALID).read_text()):
        for _ in range(10):
            kernel = read_if_readable(damage(text, random))
            if kernel is not None:
                printed = format_kernel(kernel)
                assert format_kernel(parse_kernel(printed)) == printed
                assert render(kernel, verify(kernel)).startswith("kernel ")


def read_if_readable(text: str) -> Kernel | None:
    try:
        return parse_kernel(text)
    except InputError:
        return None


def damage(text: str, random: Random) -> str:
    """``text`` with a few characters, words or lines dropped, doubled or exchanged."""
    for _ in range(random.randint(1, 3)):
        separator = random.choice(("", ".", " ", ", ", "\n"))
        parts = text.split(separator) if separator else [*text, ""]
        at, other = random.randrange(len(parts)), random.randrange(len(parts))
        parts[at] = random.choice(
            ("", parts[at] + separator + parts[at], parts[other], random.choice(string.printable))
        )
        text = separator.join(parts)
    return text
