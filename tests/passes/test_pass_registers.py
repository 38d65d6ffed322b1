"""Counts and peaks of registers against a walk along every path."""

from __future__ import annotations

import pytest
from random_programs import random_program

from ptxc.ir.kernel import Block, Instr, Kernel
from ptxc.ir.peaks import peaks
from ptxc.ir.text import format_kernel, parse_kernel
from ptxc.ir.types import BANKS
from ptxc.ir.values import Mem, Value
from ptxc.ir.verify import check
from ptxc.passes import dead_code, leave_ssa, registers, simplify

#: An instruction's place: the block's and its own number.
Point = tuple[int, int]


@pytest.mark.parametrize("seed", range(40))
def test_counts_and_peaks(seed: int) -> None:
    kernel = random_program(seed)
    if seed % 2:
        simplify.run(kernel)
        dead_code.run(kernel)
    leave_ssa.run(kernel)
    text = format_kernel(kernel)
    registers.run(kernel)
    check(kernel, "registers")
    live = live_before(kernel)
    values = {value for instr in kernel.instrs() for value in (*instr.results, *reads(instr))}
    expected = {
        bank: (
            sum(value.type is bank for value in values),
            max(sum(value.type is bank for value in alive) for alive in live.values()),
        )
        for bank in BANKS
        if any(value.type is bank for value in values)
    }
    most = peaks(kernel)
    assert {bank: (count, most[bank]) for bank, count in kernel.registers.items()} == expected
    kernel.registers, kernel.ctas = {}, 0
    assert format_kernel(kernel) == text, "counting changes nothing"


def products(count: int) -> str:
    """The text of a kernel of so many products, whose accumulators are scaled and stored; all before leaving SSA."""
    lines = [
        "kernel k target sm_80 threads 128",
        "  param p: u64 align 4",
        "",
        "entry:",
        "    %p:b64 = ld.param.u64 [p]",
        "    %a:b32 = ld.global.nc.b32 [%p]",
        "    %c:f32 = ld.global.nc.f32 [%p+4]",
    ]
    form = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    for at in range(count):
        d = ", ".join([f"%d{at}_{part}:f32" for part in range(4)])
        lines.append(f"    {d} = {form} %a, %a, %a, %a, %a, %a, %c, %c, %c, %c")
    for at in range(count):
        lines.append(f"    %s{at}:f32 = ld.global.nc.f32 [%p+{4 * at}]")
        for part in range(4):
            lines += [
                f"    %o{at}_{part}:f32 = mul.rn.f32 %s{at}, %d{at}_{part}",
                f"    st.global.f32 [%p+{4 * (4 * at + part)}], %o{at}_{part}",
            ]
    return "\n".join([*lines, "    ret", ""])


@pytest.mark.parametrize(("count", "coherent"), [(31, 0), (32, 32)])
def test_loads_behind_many_accumulators_keep_their_order(count: int, coherent: int) -> None:
    kernel = parse_kernel(products(count))
    check(kernel, "parse")
    leave_ssa.run(kernel)
    registers.run(kernel)
    check(kernel, "registers")
    multiplied, added, *scales = [
        instr.mods for instr in kernel.instrs() if instr.op.name == "ld" and instr.mods[0] == "global"
    ]
    assert (multiplied, added) == (("global", "nc", "b32"), ("global", "nc", "f32")), "in front of the products"
    assert scales.count(("global", "f32")) == coherent
    assert scales.count(("global", "nc", "f32")) == count - coherent


def reads(instr: Instr) -> list[Value]:
    operands = [operand.base if isinstance(operand, Mem) else operand for operand in instr.operands]
    if instr.guard is not None:
        operands.append(instr.guard.predicate)
    return [operand for operand in operands if isinstance(operand, Value)]


def live_before(kernel: Kernel) -> dict[Point, set[Value]]:
    """What may still be read from each instruction on: from each read walk back to what gives the value."""
    number = {block: at for at, block in enumerate(kernel.blocks)}
    before: dict[Block, list[Block]] = {block: [] for block in kernel.blocks}
    for block in kernel.blocks:
        for after in block.successors():
            before[after].append(block)
    live: dict[Point, set[Value]] = {
        (at, line): set() for at, block in enumerate(kernel.blocks) for line in range(len(block.instrs))
    }
    for block in kernel.blocks:
        for line, instr in enumerate(block.instrs):
            for value in reads(instr):
                pending = [(block, line)]
                while pending:
                    here, at = pending.pop()
                    if value in live[number[here], at]:
                        continue
                    live[number[here], at].add(value)
                    if at == 0:
                        steps = [(other, len(other.instrs) - 1) for other in before[here]]
                    else:
                        steps = [(here, at - 1)]
                    # A guarded instruction may leave its register as it was.
                    pending += [
                        (other, last)
                        for other, last in steps
                        if value not in other.instrs[last].results or other.instrs[last].guard is not None
                    ]
    return live


@pytest.mark.parametrize(
    ("target", "threads", "shared", "live", "ctas"),
    [
        ("sm_70", 256, 32768, 140, 2),  # 128 registers do
        ("sm_70", 256, 32768, 113, 2),
        ("sm_70", 256, 32768, 159, 2),
        ("sm_70", 256, 32768, 160, 0),  # 149 are needed, and one CTA fits
        ("sm_70", 128, 24576, 180, 3),
        ("sm_75", 128, 24576, 180, 0),  # shared memory has no room for a third
        ("sm_75", 64, 6144, 70, 10),  # nor for twelve, and ten leave 102 registers
        ("sm_70", 128, 8192, 60, 8),
        ("sm_70", 64, 4096, 70, 12),
        ("sm_80", 256, 32768, 140, 0),  # cp.async needs no registers
    ],
)
@pytest.mark.parametrize("multiplies", [True, False])
def test_ctas_of_products(target: str, threads: int, shared: int, live: int, ctas: int, multiplies: bool) -> None:
    held = live - 13 if multiplies else live - 1
    loads = "".join(f"    %v.{at}:b32 = ld.shared.b32 [%s+{4 * at}]\n" for at in range(1, held + 1))
    stores = "".join(f"    st.shared.b32 [%s+{4 * at}], %v.{at}\n" for at in range(1, held + 1))
    sums = ", ".join(f"%c.{at}" for at in range(8))
    product = (
        "".join(f"    %c.{at}:f32 = mov.f32 0f00000000\n" for at in range(8))
        + "".join(f"    %{name}:b32 = ld.shared.b32 [%s]\n" for name in ("a.1", "a.2", "b.1", "b.2"))
        + f"    {', '.join(f'%d.{at}:f32' for at in range(8))} = mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 "
        f"%a.1, %a.2, %b.1, %b.2, {sums}\n" + "".join(f"    st.shared.f32 [%s], %d.{at}\n" for at in range(8))
    )
    text = (
        f"kernel k target {target} threads {threads}\n  shared s: {shared} align 16\n\n"
        f"entry:\n    %s:b32 = mov.u32 s\n{loads}{product if multiplies else ''}{stores}    ret\n"
    )
    kernel = parse_kernel(text)
    kernel.ssa = False
    registers.run(kernel)
    assert kernel.ctas == (ctas if multiplies else 0)
