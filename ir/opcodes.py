"""Every instruction that can be emitted, one row each with all facts about it.

A row's signature reads ``results = operands``, one letter an operand:

====  ========================================================================================================
T     the bank of the instruction's type (its last modifier): a register or a constant
U     the same, and the bank of twice its width for ``wide`` forms
S, D  the last and the last but one modifier's banks (``cvt.D.S``)
R, B  b32 and b16, whatever the type
Q     a b64 register, the generic address of what an instruction reads in its own way
P     pred
M     a memory operand
A     like T, or a symbol: ``mov`` reads a special register, ``mov`` and ``cvta`` take an array's address
I     an integer constant that the instruction encodes
L     like T, repeated once for each element of a vector (``v2``, ``v4``)
?     after a letter: may be left out, from the right
*     after a letter: any number of them (the operations that a pass expands)
G     a group of b32 registers, one, two or four by the modifier ``x1``, ``x2`` or ``x4``
N     a b32 register, repeated once for each dimension of a tensor (``1d`` to ``5d``)
X     a register of any bank
====  ========================================================================================================

An instruction's effect says what may be done with it:

PURE   depends on its operands alone: may be merged, moved, dropped
READ   reads memory: may be dropped; may not cross a WRITE or SYNC that could change what it reads
WRITE  writes memory or other state that someone else sees: stays, in order
SYNC   convergent: threads act together or order their memory. No pass may move, merge or drop it, or put it
       under new control flow; only unrolling a loop whose trip count is uniform copies it
JOINT  convergent, as SYNC, but nothing comes of it but its results: may be dropped, for all threads alike
END    ends a block

The results of some instructions are *tied*: result i and operand i are one register, read and written at once. Those
of wgmma work on it after they were issued, so it may not be touched before the wait: :mod:`ptxc.ir.flight`.

Each row and modifier names the first target and PTX version that has it (PTX ISA, "Target ISA Notes" and "PTX ISA
Notes" of the instruction's section), 0 where every version since 6.0 does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from ptxc.ir import types
from ptxc.ir.fragments import BLOCK_SCALED, MMA_FORMS, WGMMA_FORMS, Groups, mma_groups, wgmma_groups, wgmma_rs_groups
from ptxc.ir.types import B32, PRED, Type
from ptxc.target import Requirement

PURE, READ, WRITE, SYNC, JOINT, END = "PURE", "READ", "WRITE", "SYNC", "JOINT", "END"


#: Types of which PTX has no constants: an instruction of one takes registers.
REGISTERS_ONLY = frozenset(("f16", "f16x2", "bf16", "bf16x2", "e4m3x2", "e5m2x2"))


class Opcode:
    """One row of the table. Compared by identity; :data:`OPCODES` holds the only instances."""

    __slots__ = (
        "addresses",
        "by_modifier",
        "commutative",
        "doc",
        "effect",
        "everywhere",
        "forms",
        "groups",
        "mnemonics",
        "modifiers",
        "name",
        "needs",
        "operands",
        "plain",
        "registers_only",
        "results",
        "takes_constants",
        "tied",
    )

    def __init__(
        self,
        name: str,
        signature: str,
        effect: str,
        modifiers: str,
        doc: str,
        needs: Requirement,
        by_modifier: dict[str, Requirement],
        commutative: bool,
        groups: Callable[[tuple[str, ...]], Groups] | None,
        forms: tuple[tuple[str, ...], ...],
        tied: bool,
    ) -> None:
        results, _, operands = signature.partition("=")
        self.name = name
        self.results = tuple(results.split())
        self.operands = tuple(operands.split())
        #: Whether an operand is a memory address, whose register is read.
        self.addresses = any(letter.startswith("M") for letter in self.operands)
        #: Whether it reads its operands as they are: none is an address, and it passes nothing to another block.
        self.plain = not self.addresses and effect != END
        self.effect = effect
        #: Every modifier that the instruction is emitted with; one that ends in ``=`` is followed by a number.
        self.modifiers = frozenset(modifiers.split())
        #: How PTX spells it with its modifiers, by those: what has been printed so far.
        self.mnemonics: dict[tuple[str, ...], str] = {}
        self.doc = doc
        self.needs = needs
        self.by_modifier = by_modifier
        #: Whether every target and PTX version has it in all its forms; none has what a pass expands (``tile.``).
        self.everywhere = needs == Requirement() and not by_modifier and not name.startswith("tile.")
        self.commutative = commutative
        #: What gives the groups of registers that a tensor core's instruction has for operands; None for all others.
        self.groups = groups
        #: All modifiers that such an instruction can have together.
        self.forms = forms
        #: Whether result i and operand i are one register.
        self.tied = tied
        #: Whether operands are never constants, whatever the types.
        self.registers_only = groups is not None or tied or "N" in self.operands
        #: Whether they may be in all its forms. Of others, :func:`takes_constants` tells.
        self.takes_constants = not self.registers_only and REGISTERS_ONLY.isdisjoint(self.modifiers)

    def __repr__(self) -> str:
        return self.name


OPCODES: dict[str, Opcode] = {}


def takes_constants(op: Opcode, mods: tuple[str, ...]) -> bool:
    """Whether operands of the instruction may be constants."""
    return not op.registers_only and not (mods and mods[-1] in REGISTERS_ONLY)


_INT = "s16 u16 s32 u32 s64 u64"
_BITS = "b16 b32 b64"
_REAL = "f32 f64 f16 f16x2 bf16 bf16x2"
_ROUND = "rn rz rm rp"
_ALWAYS = Requirement()
_SM80 = Requirement(80, (7, 0))
_SM90_BF16 = {"bf16": Requirement(90, (7, 8)), "bf16x2": Requirement(90, (7, 8))}
_SM80_BF16 = {"bf16": _SM80, "bf16x2": _SM80}
_SM89_FP8 = {"e4m3x2": Requirement(89, (8, 1)), "e5m2x2": Requirement(89, (8, 1))}


def _row(
    name: str,
    signature: str,
    effect: str,
    modifiers: str,
    doc: str,
    *,
    needs: Requirement = _ALWAYS,
    by: dict[str, Requirement] | None = None,
    commutative: bool = False,
    groups: Callable[[tuple[str, ...]], Groups] | None = None,
    forms: tuple[tuple[str, ...], ...] = (),
    tied: bool = False,
) -> Opcode:
    row = Opcode(name, signature, effect, modifiers, doc, needs, by or {}, commutative, groups, forms, tied)
    OPCODES[name] = row
    return row


# Moving and converting
MOV: Final = _row("mov", "T = A", PURE, f"pred {_INT} {_BITS} f32 f64", "the operand itself; of a symbol, its address")
PACK: Final = _row(
    "pack", "T = B B", PURE, "b32", "two b16 halves as one b32, the first in the low half (PTX: mov.b32)"
)
UNPACK: Final = _row("unpack", "B B = T", PURE, "b32", "the low and the high half of a b32 (PTX: mov.b32)")
BITCAST: Final = _row("bitcast", "D = S", PURE, "b16 b32 f32 b64 f64", "the same bits in another bank (PTX: mov)")
CVT: Final = _row(
    "cvt", "D = S", PURE,
    f"{_ROUND} rni rzi rmi rpi ftz sat satfinite relu u8 s8 {_INT} f16 bf16 f32 f64",
    "conversion between types; to an integer by the rounding named, to a narrower float likewise",
    by={"bf16": Requirement(80, (7, 1)), "relu": _SM80, "satfinite": Requirement(80, (8, 1))},
)  # fmt: skip
PACK_CVT: Final = _row(
    "cvt.pack2", "D = S S", PURE, "rn satfinite f16x2 bf16x2 e4m3x2 e5m2x2 f32",
    "two f32 rounded to a pair of halves or of fp8, a in the high one (PTX: cvt)", needs=_SM80, by=_SM89_FP8,
    forms=(
        ("rn", "f16x2", "f32"), ("rn", "bf16x2", "f32"),
        ("rn", "satfinite", "e4m3x2", "f32"), ("rn", "satfinite", "e5m2x2", "f32"),
    ),
)  # fmt: skip
PAIR_CVT: Final = _row(
    "cvt.pair", "D = S", PURE, "rn f16x2 e4m3x2 e5m2x2", "a pair of fp8 as a pair of f16 (PTX: cvt)", by=_SM89_FP8,
    forms=(("rn", "f16x2", "e4m3x2"), ("rn", "f16x2", "e5m2x2")),
)  # fmt: skip
CVTA: Final = _row("cvta", "T = A", PURE, "to global shared u64", "between a generic address and a state space's")

# Integer and floating-point arithmetic
ADD: Final = _row("add", "T = T T", PURE, f"{_ROUND} ftz sat {_INT} {_REAL}", "a + b", by=_SM90_BF16, commutative=True)
SUB: Final = _row("sub", "T = T T", PURE, f"{_ROUND} ftz sat {_INT} {_REAL}", "a - b", by=_SM90_BF16)
MUL: Final = _row(
    "mul", "U = T T", PURE, f"lo hi wide {_ROUND} ftz sat {_INT} {_REAL}",
    "a * b: of integers the low half, the high half or both (wide)", by=_SM90_BF16, commutative=True,
)  # fmt: skip
MAD: Final = _row("mad", "U = T T U", PURE, f"lo hi wide {_INT}", "a * b + c of integers")
FMA: Final = _row(
    "fma", "T = T T T", PURE, f"{_ROUND} ftz sat relu {_REAL}", "a * b + c rounded once",
    by={**_SM80_BF16, "relu": _SM80},
)  # fmt: skip
DIV: Final = _row("div", "T = T T", PURE, f"{_ROUND} approx full ftz {_INT} f32 f64", "a / b, of integers toward zero")
REM: Final = _row("rem", "T = T T", PURE, _INT, "a - b * (a / b), with the sign of a")
NEG: Final = _row("neg", "T = T", PURE, f"ftz s16 s32 s64 {_REAL}", "-a", by=_SM80_BF16)
ABS: Final = _row(
    "abs", "T = T", PURE, f"ftz s16 s32 s64 {_REAL}", "|a|",
    by={**_SM80_BF16, "f16": Requirement(53, (6, 5)), "f16x2": Requirement(53, (6, 5))},
)  # fmt: skip
MIN: Final = _row(
    "min", "T = T T", PURE, f"ftz NaN {_INT} {_REAL}", "the smaller; of a NaN and a number the number",
    by={**_SM80_BF16, "f16": _SM80, "f16x2": _SM80, "NaN": _SM80}, commutative=True,
)  # fmt: skip
MAX: Final = _row(
    "max", "T = T T", PURE, f"ftz NaN {_INT} {_REAL}", "the larger; of a NaN and a number the number",
    by={**_SM80_BF16, "f16": _SM80, "f16x2": _SM80, "NaN": _SM80}, commutative=True,
)  # fmt: skip
SQRT: Final = _row("sqrt", "T = T", PURE, f"{_ROUND} approx ftz f32 f64", "the square root")
RSQRT: Final = _row("rsqrt", "T = T", PURE, "approx ftz f32 f64", "1 / sqrt(a)")
RCP: Final = _row("rcp", "T = T", PURE, f"{_ROUND} approx ftz f32 f64", "1 / a")
EX2: Final = _row("ex2", "T = T", PURE, "approx ftz f32 f16", "2 ** a", by={"f16": Requirement(75, (7, 0))})
LG2: Final = _row("lg2", "T = T", PURE, "approx ftz f32", "log2(a)")
SIN: Final = _row("sin", "T = T", PURE, "approx ftz f32", "sin(a), coarse outside [-pi, pi]")
COS: Final = _row("cos", "T = T", PURE, "approx ftz f32", "cos(a), coarse outside [-pi, pi]")
TANH: Final = _row("tanh", "T = T", PURE, "approx f32 f16", "tanh(a)", needs=Requirement(75, (7, 0)))
COPYSIGN: Final = _row("copysign", "T = T T", PURE, "f32 f64", "the magnitude of b with the sign of a")

# Bits
AND: Final = _row("and", "T = T T", PURE, f"pred {_BITS}", "bitwise and", commutative=True)
OR: Final = _row("or", "T = T T", PURE, f"pred {_BITS}", "bitwise or", commutative=True)
XOR: Final = _row("xor", "T = T T", PURE, f"pred {_BITS}", "bitwise exclusive or", commutative=True)
NOT: Final = _row("not", "T = T", PURE, f"pred {_BITS}", "bitwise complement")
SHL: Final = _row("shl", "T = T R", PURE, _BITS, "a << b; 0 for b of the width or more")
SHR: Final = _row("shr", "T = T R", PURE, f"{_BITS} {_INT}", "a >> b, signed types keep the sign")
SHF: Final = _row("shf", "R = R R R", PURE, "l r wrap clamp b32", "a funnel shift of the pair (b, a) by c")
BFE: Final = _row("bfe", "T = T R R", PURE, "s32 u32 s64 u64", "the field of c bits of a from bit b on")
LOP3: Final = _row("lop3", "R = R R R I", PURE, "b32", "any bitwise function of three, by its truth table")
PRMT: Final = _row("prmt", "R = R R R", PURE, "b32", "four bytes picked out of the eight of (b, a) by c's nibbles")
POPC: Final = _row("popc", "R = T", PURE, "b32 b64", "the number of set bits")

# Comparing and selecting
SETP: Final = _row(
    "setp", "P = T T", PURE,
    f"eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan ftz {_BITS} {_INT} f32 f64 f16 bf16",
    "a compared with b; the unsigned-looking float forms (neu, …) are true for NaN", by={"bf16": _SM90_BF16["bf16"]},
)  # fmt: skip
SELP: Final = _row("selp", "T = T T P", PURE, f"{_BITS} {_INT} f32 f64", "a where c, else b")

# Memory
LD: Final = _row(
    "ld", "L = M", READ, f"param global shared const local nc v2 v4 u8 s8 b8 {_INT} {_BITS} f32 f64",
    "load; nc reads through the non-coherent path what the kernel never writes",
)  # fmt: skip
ST: Final = _row("st", "= M L", WRITE, f"global shared local v2 v4 u8 b8 {_INT} {_BITS} f32 f64", "store")
ATOM: Final = _row(
    "atom", "T = M T T?", WRITE,
    f"global shared relaxed gpu add min max and or xor exch cas noftz {_BITS} "
    "s32 u32 s64 u64 f32 f64 f16 f16x2 bf16 bf16x2",
    "read, combine with b, write back, as one; the result is what was there",
    by={**_SM90_BF16, "f16": Requirement(70, (6, 3)), "f16x2": Requirement(60, (6, 2))},
)  # fmt: skip
RED: Final = _row(
    "red", "= M T", WRITE,
    "global shared relaxed gpu add min max and or xor noftz b32 b64 s32 u32 s64 u64 f32 f64 f16 f16x2 bf16 bf16x2",
    "the same without a result",
    by={**_SM90_BF16, "f16": Requirement(70, (6, 3)), "f16x2": Requirement(60, (6, 2))},
)  # fmt: skip
CP_ASYNC: Final = _row(
    "cp.async", "= M M I R?", WRITE, "ca cg shared global",
    "copies c bytes from global to shared memory some time before its group is waited for; of those, the bytes "
    "past the first d are zeros", needs=_SM80,
)  # fmt: skip
CP_ASYNC_COMMIT: Final = _row(
    "cp.async.commit_group", "=", WRITE, "", "this thread's copies so far are one group", needs=_SM80
)
CP_ASYNC_WAIT: Final = _row(
    "cp.async.wait_group", "= I", SYNC, "", "waits until at most a groups are pending", needs=_SM80
)

# Threads together
BAR: Final = _row("bar", "= I I?", SYNC, "sync", "waits for all threads of the CTA, or for b threads at barrier a")
BAR_WARP: Final = _row("bar.warp.sync", "= R", SYNC, "", "waits for the warp's lanes in the mask a")
ACTIVEMASK: Final = _row(
    "activemask", "T =", JOINT, "b32", "the lanes that execute this together", needs=Requirement(0, (6, 2))
)
SHFL: Final = _row(
    "shfl", "T P? = T R R R", JOINT, "sync bfly up down idx b32", "another lane's a: lane b, clamp c, mask d"
)
GRID_WAIT: Final = _row(
    "griddepcontrol", "=", SYNC, "wait", "waits until the grids that this one depends on have finished",
    needs=Requirement(90, (7, 8)),
)  # fmt: skip

# Tensor cores
LDMATRIX: Final = _row(
    "ldmatrix", "G = M", JOINT, "sync aligned m8n8 x1 x2 x4 trans shared b16",
    "matrices of 8 x 8 halves from shared memory, a row of one from each lane's address, spread over the warp",
    needs=Requirement(75, (6, 5)),
)  # fmt: skip
MMA: Final = _row(
    "mma", "=", JOINT,
    " ".join({mod: None for form in MMA_FORMS for mod in form}),
    "a * b + c of matrices that the warp holds", needs=Requirement(70, (6, 4)),
    by={
        "m16n8k8": Requirement(75, (6, 5)), "m16n8k16": Requirement(80, (7, 0)), "m16n8k32": Requirement(89, (8, 4)),
        "bf16": _SM80, BLOCK_SCALED[0]: Requirement(0, (8, 7), ("sm_120a", "sm_120f")),
    },
    groups=mma_groups, forms=MMA_FORMS,
)  # fmt: skip

# Bulk copies and the barriers that count them (PTX ISA, "mbarrier", "cp.async.bulk.tensor", "membar / fence")
_SM90 = Requirement(90, (8, 0))
MBARRIER_INIT: Final = _row(
    "mbarrier.init", "= M R", WRITE, "shared b64", "the barrier at a waits for b arrivals in each phase", needs=_SM80
)
MBARRIER_ARRIVE: Final = _row(
    "mbarrier.arrive", "T = M", WRITE, "shared b64",
    "arrives at the barrier, after this thread's accesses so far; the result is its state before", needs=_SM80,
)  # fmt: skip
MBARRIER_EXPECT: Final = _row(
    "mbarrier.arrive.expect_tx", "T = M R", WRITE, "shared b64",
    "the same, and the phase also waits for b more bytes of bulk copies", needs=_SM90,
)  # fmt: skip
MBARRIER_TRY_WAIT: Final = _row(
    "mbarrier.try_wait", "P = M R", SYNC, "parity shared b64",
    "whether the phase of parity b has ended, waiting a while for it; what came before its end is visible then",
    needs=Requirement(90, (7, 8)),
)  # fmt: skip
BULK_TENSOR: Final = _row(
    "cp.async.bulk.tensor", "= M Q N M", WRITE,
    "1d 2d 3d 4d 5d shared::cta global mbarrier::complete_tx::bytes",
    "copies the box at the coordinates (innermost first) of a tensor, which the tensor map b describes, to shared "
    "memory; the barrier's phase counts the bytes as they arrive", needs=Requirement(90, (8, 6)),
)  # fmt: skip
FENCE_ASYNC: Final = _row(
    "fence.proxy.async", "=", SYNC, "shared::cta",
    "orders ordinary accesses of shared memory and those of bulk copies and wgmma", needs=_SM90,
)  # fmt: skip

# Tensor cores of a warpgroup, four warps that start at a multiple of four (PTX ISA, "Asynchronous warpgroup level
# matrix instructions"). What is issued runs on: ptxc.ir.flight
_SM90A = Requirement(0, (8, 0), ("sm_90a",))
WGMMA_FENCE: Final = _row(
    "wgmma.fence", "X* = X*", SYNC, "sync aligned",
    "what happened to the registers so far comes before wgmma.mma_async", needs=_SM90A, tied=True,
)  # fmt: skip
WGMMA: Final = _row(
    "wgmma.mma_async", "=", SYNC, " ".join({mod: None for form in WGMMA_FORMS for mod in form}),
    "d += a * b, or d = a * b where scale-d is false, of matrices in shared memory that descriptors name", needs=_SM90A,
    groups=wgmma_groups, forms=WGMMA_FORMS, tied=True,
)  # fmt: skip
WGMMA_RS: Final = _row(
    "wgmma.mma_async.rs", "=", SYNC, " ".join({mod: None for form in WGMMA_FORMS for mod in form}),
    "the same with a in registers, which are tied too (PTX: wgmma.mma_async)", needs=_SM90A,
    groups=wgmma_rs_groups, forms=WGMMA_FORMS, tied=True,
)  # fmt: skip
#: Products of matrices on tensor cores.
PRODUCTS = frozenset((MMA, WGMMA, WGMMA_RS))
WGMMA_COMMIT: Final = _row(
    "wgmma.commit_group", "=", SYNC, "sync aligned", "the warp's wgmma.mma_async so far are one group", needs=_SM90A
)
WGMMA_WAIT: Final = _row(
    "wgmma.wait_group", "X* = X* I", SYNC, "sync aligned",
    "waits until at most so many groups are pending, and gives back the registers of the others", needs=_SM90A,
    tied=True,
)  # fmt: skip
SETMAXNREG: Final = _row(
    "setmaxnreg", "= I", SYNC, "inc dec sync aligned u32", "the warp's threads have a registers from here on",
    needs=Requirement(
        0, (8, 0), ("sm_90a", "sm_100a", "sm_110a", "sm_120a", "sm_100f", "sm_110f", "sm_120f")
    ),
)  # fmt: skip

# Control
BRA: Final = _row(
    "bra", "= P?", END, "uni", "to the target; with a predicate to the first target where it holds, else the second"
)
RET: Final = _row("ret", "=", END, "", "the thread ends")

# What a pass expands (docs/pipeline.md)
TILE_COORDS: Final = _row(
    "tile.coords", "R* P = R*", PURE, "cells= aux= group= grouped= other=",
    "this thread's cell of the tile, outermost coordinate first, and whether the cell lies inside; operands are the "
    "axes' extents. cells: the cells of a CTA, aux: its threads beyond them, group: tiles of the axis at position "
    "`grouped` that are visited before the axis at position `other` advances",
)  # fmt: skip
TILE_GUARD: Final = _row(
    "tile.guard", "= P", WRITE, "cta warpgroup warp lane",
    "threads for which a is false have no effect from here on; the modifier says in which group a is the same",
)  # fmt: skip


class Signature(NamedTuple):
    """The banks of an instruction's results and operands. None stands for any bank or for no register at all."""

    results: tuple[Type | None, ...]
    operands: tuple[Type | None, ...]
    #: How many of the results and operands may not be left out.
    least_results: int
    least_operands: int
    #: The row's letter for each operand.
    letters: tuple[str, ...]


@cache
def signature(op: Opcode, mods: tuple[str, ...]) -> Signature | None:
    """What the instruction ``op.mods`` takes and gives; None for an operation that takes any number of operands.

    Raises KeyError when a modifier that should name the type does not.
    """
    if any(letter.endswith("*") for letter in (*op.results, *op.operands)):
        return None
    if op.groups is not None:
        return _grouped_signature(*op.groups(mods))
    results, operands = _spread(op.results, mods), _spread(op.operands, mods)
    return Signature(
        tuple(bank(letter[0], mods) for letter in results),
        tuple(bank(letter[0], mods) for letter in operands),
        sum(not letter.endswith("?") for letter in results),
        sum(not letter.endswith("?") for letter in operands),
        tuple(letter[0] for letter in operands),
    )


def _grouped_signature(results: tuple[tuple[int, Type], ...], operands: tuple[tuple[int, Type], ...]) -> Signature:
    """The signature of an instruction whose operands are groups of registers."""
    given = tuple(bank for count, bank in results for _ in range(count))
    taken = tuple(bank if count else None for count, bank in operands for _ in range(max(count, 1)))
    letters = tuple("I" if count == 0 else "V" for count, _ in operands for _ in range(max(count, 1)))
    return Signature(given, taken, len(given), len(taken), letters)


_RANKS = frozenset(("1d", "2d", "3d", "4d", "5d"))


def _spread(letters: tuple[str, ...], mods: tuple[str, ...]) -> list[str]:
    """The letters with those of vectors repeated."""
    elements = {"v2": 2, "v4": 4}.get(("", "", *mods)[-2], 1)
    matrices = next((int(mod[1]) for mod in mods if mod in ("x1", "x2", "x4")), 1)
    rank = next((int(mod[0]) for mod in mods if mod in _RANKS), 1)
    times = {"L": elements, "G": matrices, "N": rank}
    return [letter for letter in letters for _ in range(times.get(letter, 1))]


def bank(letter: str, mods: tuple[str, ...]) -> Type | None:
    """The bank that a letter of a signature names in the form ``mods``; None for those that name none."""
    before, last = ("", "", *mods)[-2:]
    match letter:
        case "T" | "A" | "L" | "S":
            return types.OF_MODIFIER[last]
        case "D":
            return types.OF_MODIFIER[before]
        case "U":
            type = types.OF_MODIFIER[last]
            return {types.B16: B32, B32: types.B64}[type] if "wide" in mods else type
        case "R" | "G" | "N":
            return B32
        case "B":
            return types.B16
        case "Q":
            return types.B64
        case "P":
            return PRED
    return None  # M, I, X


@cache
def requirements(op: Opcode, mods: tuple[str, ...]) -> Requirement:
    """The first target and PTX version that have the instruction in this form."""
    sm, ptx, only = op.needs
    for mod in mods:
        need = op.by_modifier.get(mod)
        if need is not None:
            sm, ptx, only = max(sm, need.sm), max(ptx, need.ptx), need.only or only
    if op is CVT and "bf16" in mods and "f32" not in mods:
        # Conversions of bf16 to and from f32 came first.
        sm, ptx = max(sm, 90), max(ptx, (7, 8))
    return Requirement(sm, ptx, only)
