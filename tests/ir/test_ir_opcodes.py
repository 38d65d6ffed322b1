"""The opcode table: every row is complete and means something, and ptxas has what it says from when it says so."""

from __future__ import annotations

import re

import pytest
from conftest import docstrings

from ptxc.codegen.ptx import print_module
from ptxc.errors import ToolchainError
from ptxc.ir import opcodes, types
from ptxc.ir.opcodes import OPCODES, Opcode, requirements, signature
from ptxc.ir.text import parse_kernel
from ptxc.ir.types import B16, B32, B64, F32, F64, PRED, Type
from ptxc.target import PTX_RELEASES, TARGETS, PtxVersion, Requirement
from ptxc.toolchain import assemble

HEAD = opcodes.__doc__ or ""
#: The letters and the effects that the module's head describes.
LETTERS = {
    letter for row in re.findall(r"^([A-Z](?:, [A-Z])*|[?*])  ", HEAD, re.MULTILINE) for letter in row.split(", ")
}
EFFECTS = set(re.findall(r"^([A-Z]{3,})  ", HEAD, re.MULTILINE))
ROWS = pytest.mark.parametrize("op", OPCODES.values(), ids=str)


@docstrings
def test_the_head_describes_what_the_rows_use() -> None:
    letters = [letter for op in OPCODES.values() for letter in (*op.results, *op.operands)]
    assert {letter[0] for letter in letters} | {letter[1:] for letter in letters if letter[1:]} == LETTERS
    assert {op.effect for op in OPCODES.values()} == EFFECTS


@ROWS
def test_a_row_is_complete(op: Opcode) -> None:
    assert OPCODES[op.name] is op
    assert re.fullmatch(r"[a-z]\w*(\.[a-z_]\w*)*", op.name)
    assert op.doc
    assert not op.doc.endswith(".")
    assert op.by_modifier.keys() <= op.modifiers


@ROWS
def test_letters_may_be_left_out_from_the_right(op: Opcode) -> None:
    for letters in (op.results, op.operands):
        optional = [letter.endswith("?") for letter in letters]
        assert optional == sorted(optional)


@ROWS
def test_every_type_has_a_bank(op: Opcode) -> None:
    spelled = {mod for mod in op.modifiers if re.fullmatch(r"pred|b?f\d+(x\d+)?|[bsu]\d+|e\dm\dx2", mod)}
    assert spelled == op.modifiers & types.OF_MODIFIER.keys()


@ROWS
def test_a_commutative_operation_has_two_operands_of_one_bank(op: Opcode) -> None:
    assert not op.commutative or (op.operands == ("T", "T") and op.effect == opcodes.PURE)


@ROWS
def test_every_type_has_a_signature(op: Opcode) -> None:
    kinds = sorted(op.modifiers & types.OF_MODIFIER.keys()) or [""]
    for form in op.forms or [(kind, kind) if "D" in op.results else (kind,) if kind else () for kind in kinds]:
        row = signature(op, form)
        if row is not None:
            assert None not in row.results
            assert [bank is None for bank in row.operands] == [letter in "MI" for letter in row.letters]


@pytest.mark.parametrize(
    ("form", "results", "operands"),
    [
        ("mul.wide.s32", [B64], [B32, B32]),
        ("mul.wide.u16", [B32], [B16, B16]),
        ("mul.lo.s64", [B64], [B64, B64]),
        ("mad.wide.u32", [B64], [B32, B32, B64]),
        ("cvt.rzi.u8.f64", [B32], [F64]),
        ("shl.b64", [B64], [B64, B32]),
        ("ld.global.nc.v4.f32", [F32] * 4, [None]),
        ("st.shared.v2.b16", [], [None, B16, B16]),
        ("atom.global.cas.b64", [B64], [None, B64, B64]),
        ("shfl.sync.bfly.b32", [B32, PRED], [B32, B32, B32, B32]),
        ("cp.async.cg.shared.global", [], [None, None, None, B32]),
        ("mov.pred", [PRED], [PRED]),
        ("fma.rn.bf16x2", [B32], [B32, B32, B32]),
    ],
)
def test_signatures(form: str, results: list[Type], operands: list[Type | None]) -> None:
    row = signature(*split(form))
    assert row is not None
    assert (list(row.results), list(row.operands)) == (results, operands)


@pytest.mark.parametrize("form", ["add", "add.rn", "cvt.f32", "mul.wide.s64", "ld.v4", "st.global"])
def test_a_form_without_its_type_has_no_signature(form: str) -> None:
    with pytest.raises(KeyError):
        signature(*split(form))


def split(form: str) -> tuple[Opcode, tuple[str, ...]]:
    name = max((name for name in OPCODES if f"{form}.".startswith(f"{name}.")), key=len)
    return OPCODES[name], tuple(form[len(name) + 1 :].split(".")) if form != name else ()


# -------------------------------------------------------------------------------------- when an instruction came

#: Instructions that came late, and when.
LATE = {
    "%r:b32 = activemask.b32": Requirement(0, (6, 2)),
    "%r:f32 = tanh.approx.f32 %f32": Requirement(75, (7, 0)),
    "%r:b16 = ex2.approx.f16 %b16": Requirement(75, (7, 0)),
    "%r:b16 = abs.f16 %b16": Requirement(53, (6, 5)),
    "%r:b16 = min.f16 %b16, %b16": Requirement(80, (7, 0)),
    "%r:f32 = max.NaN.f32 %f32, %f32": Requirement(80, (7, 0)),
    "%r:b32 = max.bf16x2 %b32, %b32": Requirement(80, (7, 0)),
    "%r:b16 = neg.bf16 %b16": Requirement(80, (7, 0)),
    "%r:b16 = fma.rn.bf16 %b16, %b16, %b16": Requirement(80, (7, 0)),
    "%r:b16 = fma.rn.relu.f16 %b16, %b16, %b16": Requirement(80, (7, 0)),
    "%r:b16 = cvt.rn.relu.f16.f32 %f32": Requirement(80, (7, 0)),
    "%r:f32 = cvt.f32.bf16 %b16": Requirement(80, (7, 1)),
    "%r:b16 = cvt.rn.satfinite.bf16.f32 %f32": Requirement(80, (8, 1)),
    "%r:b16 = cvt.rn.bf16.s32 %b32": Requirement(90, (7, 8)),
    "%r:b16 = cvt.bf16.f16 %b16": Requirement(90, (7, 8)),
    "%r:b16 = add.bf16 %b16, %b16": Requirement(90, (7, 8)),
    "%r:b32 = mul.bf16x2 %b32, %b32": Requirement(90, (7, 8)),
    "%r:pred = setp.lt.bf16 %b16, %b16": Requirement(90, (7, 8)),
    "%r:b16 = atom.global.add.noftz.bf16 [%b64], %b16": Requirement(90, (7, 8)),
    "red.global.add.noftz.bf16x2 [%b64], %b32": Requirement(90, (7, 8)),
    "%r:b32 = cvt.pair.rn.f16x2.e4m3x2 %b16": Requirement(89, (8, 1)),
    "%r:b32 = cvt.pair.rn.f16x2.e5m2x2 %b16": Requirement(89, (8, 1)),
    "%r:b16 = cvt.pack2.rn.satfinite.e4m3x2.f32 %f32, %f32": Requirement(89, (8, 1)),
    "%r:b16 = cvt.pack2.rn.satfinite.e5m2x2.f32 %f32, %f32": Requirement(89, (8, 1)),
    "cp.async.cg.shared.global [tile], [%b64], 16": Requirement(80, (7, 0)),
    "cp.async.commit_group": Requirement(80, (7, 0)),
    "cp.async.wait_group 0": Requirement(80, (7, 0)),
    "griddepcontrol.wait": Requirement(90, (7, 8)),
    "mbarrier.init.shared.b64 [tile], 1": Requirement(80, (7, 0)),
    "%r:b64 = mbarrier.arrive.shared.b64 [tile]": Requirement(80, (7, 0)),
    "%r:b64 = mbarrier.arrive.expect_tx.shared.b64 [tile], 64": Requirement(90, (8, 0)),
    "%r:pred = mbarrier.try_wait.parity.shared.b64 [tile], 0": Requirement(90, (7, 8)),
    "fence.proxy.async.shared::cta": Requirement(90, (8, 0)),
    "cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes [tile], %b64, %b32, [tile]": (
        Requirement(90, (8, 6))
    ),
}
#: Instructions that targets with a suffix alone have.
SPECIFIC = {
    "wgmma.fence.sync.aligned": "sm_90a",
    "wgmma.commit_group.sync.aligned": "sm_90a",
    "wgmma.wait_group.sync.aligned 0": "sm_90a",
    "setmaxnreg.dec.sync.aligned.u32 40": "sm_90a sm_100a sm_103a sm_120a sm_121a sm_100f sm_103f sm_120f sm_121f",
}
KERNEL = """\
kernel late target sm_75 threads 32 registers
  param a: u64
  shared tile: 64 align 16

entry:
    %b64:b64 = ld.param.u64 [a]
    %b32:b32 = mov.u32 %tid.x
    %b16:b16 = cvt.u16.u32 %b32
    %f32:f32 = cvt.rn.f32.s32 %b32
    """


@pytest.mark.parametrize(("line", "need"), LATE.items())
def test_requirements(line: str, need: Requirement) -> None:
    instr = parse_kernel(f"{KERNEL}{line}\n    ret\n").blocks[0].instrs[-2]
    assert requirements(instr.op, instr.mods) == need


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize(("line", "need"), LATE.items())
def test_ptxas_has_an_instruction_from_then_on(line: str, need: Requirement) -> None:
    sm = max(need.sm, 75)
    first, version = TARGETS[f"sm_{sm}"], PtxVersion(*need.ptx)
    assert assembles(line, first.name, max(version, first.ptx))
    if version > first.ptx:
        releases = list(PTX_RELEASES)
        assert not assembles(line, first.name, releases[releases.index(version) - 1])
    if sm > 75:
        assert not assembles(line, {80: "sm_75", 89: "sm_86", 90: "sm_89"}[sm], version)


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize(("line", "having"), SPECIFIC.items())
def test_ptxas_has_an_instruction_of_some_targets_there(line: str, having: str) -> None:
    instr = parse_kernel(f"{KERNEL}{line}\n    ret\n").blocks[0].instrs[-2]
    need = requirements(instr.op, instr.mods)
    asked = [TARGETS[name] for name in ("sm_89", "sm_90", "sm_100", "sm_120", *having.split())]
    assert [target.name for target in asked if target.has(need)] == having.split()
    for target in asked:
        assert assembles(line, target.name, max(target.ptx, PtxVersion(*need.ptx))) == target.has(need)
    assert not assembles(line, "sm_90", PtxVersion(8, 0))


def assembles(line: str, target: str, version: PtxVersion) -> bool:
    text = print_module([parse_kernel(f"{KERNEL}{line}\n    ret\n")], TARGETS[target], version)
    try:
        assemble(text, target)
    except ToolchainError as error:
        if not re.search("requires|not supported on .target", str(error)):
            raise
        return False
    return True
