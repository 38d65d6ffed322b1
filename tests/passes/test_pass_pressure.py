"""Which loads keep their order for the registers' sake, and how many CTAs are asked for."""

from __future__ import annotations

import pytest

from ptxc.ir.kernel import Kernel
from ptxc.ir.text import parse_kernel
from ptxc.ir.verify import check
from ptxc.passes import leave_ssa, pressure

FORM = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"


def prepared(lines: list[str], threads: int = 128) -> Kernel:
    """A kernel of these lines after the pass."""
    head = [f"kernel k target sm_90 threads {threads}", "  param p: u64 align 4", ""]
    kernel = parse_kernel("\n".join([*head, *lines, ""]))
    check(kernel, "parse")
    leave_ssa.run(kernel)
    pressure.run(kernel)
    check(kernel, "pressure")
    return kernel


def loads(kernel: Kernel) -> dict[str, int]:
    """How many global loads there are, by their modifiers."""
    found: dict[str, int] = {}
    for instr in kernel.instrs():
        if instr.op.name == "ld" and instr.mods[0] == "global":
            found[".".join(instr.mods)] = found.get(".".join(instr.mods), 0) + 1
    return found


def scaled(count: int) -> list[str]:
    """So many products' results scaled and stored, each by a factor of its own."""
    lines = []
    for at in range(count):
        lines.append(f"    %s{at}:f32 = ld.global.nc.f32 [%p+{4 * at}]")
        for part in range(4):
            lines += [
                f"    %o{at}_{part}:f32 = mul.rn.f32 %s{at}, %d{at}_{part}",
                f"    st.global.f32 [%p+{4 * (4 * at + part)}], %o{at}_{part}",
            ]
    return [*lines, "    ret"]


def product(at: int, d: str, c: str) -> str:
    """A product; ``d`` and ``c`` begin the names of its accumulators."""
    results = ", ".join([f"%{d}{at}_{part}:f32" for part in range(4)])
    return f"    {results} = {FORM} %a, %a, %a, %a, %a, %a, {', '.join([f'%{c}{at}_{part}' for part in range(4)])}"


BEGIN = ["entry:", "    %p:b64 = ld.param.u64 [p]", "    %a:b32 = ld.global.nc.b32 [%p]"]


@pytest.mark.parametrize(("count", "coherent"), [(31, 0), (32, 32)])
def test_loads_behind_many_accumulators_keep_their_order(count: int, coherent: int) -> None:
    zeros = [f"    %c{at}_{part}:f32 = ld.global.nc.f32 [%p]" for at in range(count) for part in range(4)]
    kernel = prepared([*BEGIN, *zeros, *[product(at, "d", "c") for at in range(count)], *scaled(count)])
    found = loads(kernel)
    assert found.pop("global.nc.b32") == 1
    assert found.get("global.f32", 0) == coherent
    assert found["global.nc.f32"] == 5 * count - coherent, "in front of the products all stay"


@pytest.mark.parametrize("inner", [False, True])
def test_what_a_loop_of_products_loads_is_not_behind_them(inner: bool) -> None:
    """Its own block goes round; so may one that the text has after the products."""
    names = [f"%c{at}_{part}" for at in range(32) for part in range(4)]
    passed = ", ".join(["%a.1", *[name.replace("c", "d", 1) for name in names]])
    load = "    %a.1:b32 = ld.global.nc.b32 [%p+4]"
    between = ["    bra latch", "", "latch:", load] if inner else [load]
    kernel = prepared(
        [
            *BEGIN[:2],
            "    %a.0:b32 = ld.global.nc.b32 [%p]",
            "    %n:b32 = ld.global.nc.b32 [%p]",
            f"    bra loop(%a.0, {', '.join(['0f00000000'] * 128)})",
            "",
            f"loop(%a:b32, {', '.join([f'{name}:f32' for name in names])}):",
            *[product(at, "d", "c") for at in range(32)],
            *between,
            "    %more:pred = setp.lt.s32 %a.1, %n",
            f"    bra %more, loop({passed}), done",
            "",
            "done:",
            *scaled(32),
        ]
    )
    assert loads(kernel) == {"global.nc.b32": 3, "global.f32": 32}


@pytest.mark.parametrize(("threads", "ctas"), [(64, 24), (96, 16), (128, 12)])
def test_no_more_ctas_are_asked_for_than_registers_allow(threads: int, ctas: int) -> None:
    """Asked for more, the assembler would spill: a warp's registers are all of one partition of the multiprocessor."""
    words = [f"    %v{at}:f32 = ld.global.f32 [%p+{4 * at}]" for at in range(30)]
    stores = [f"    st.global.f32 [%p+{4 * at}], %v{at}" for at in range(30)]
    assert prepared([*BEGIN[:2], *words, *stores, "    ret"], threads).ctas == ctas


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
    pressure.run(kernel)
    assert kernel.ctas == (ctas if multiplies else 0)
