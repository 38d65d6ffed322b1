"""Operations of a warp (PTX ISA 9.7.15): shuffles, votes, matches, reductions, elections, warp barriers.

A ``.sync`` form makes its thread wait until every thread that its mask names, and that has not exited, executes the
same operation with the same mask; which instruction of the text that is does not matter. The older forms without
``.sync`` act among the threads that happen to execute them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ptxc.sim.binding import Action, Modifiers, Reader, Writer, reader, writer
from ptxc.sim.machine import Active, Machine
from ptxc.sim.program import Instruction, Pair, Sink
from ptxc.sim.real import REAL
from ptxc.sim.scalar import TYPES, Array, Mask, PtxType

_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_LANES = np.arange(32, dtype=np.int64)[None, :]


@dataclass(frozen=True, slots=True, eq=False)
class Warps:
    """The warps of a batch, one row each, 32 lanes: who takes part, and in which group (the mask of each lane)."""

    machine: Machine
    taking_part: Mask
    members: Array


Function = Callable[..., tuple[Array, ...]]
"""From warps and one array ``[warps, 32]`` a source to one array ``[warps, 32]`` a result."""


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """A warp operation of one instruction. ``mask`` is None for the forms without ``.sync``."""

    instruction: Instruction
    mask: Reader | None
    sources: tuple[Reader, ...]
    writers: tuple[Writer, ...]
    function: Function

    @property
    def orders_memory(self) -> bool:
        """Whether it is a barrier, which makes the lanes' writes visible to each other."""
        return self.instruction.opcode in {"bar", "barrier"}

    @property
    def key(self) -> str:
        """Operations of one key may meet each other."""
        return self.instruction.spelling


def ballot(m: Machine, active: Active) -> Array:
    """The ``active`` threads as one u32 a warp."""
    if active.full and active.index.size == m.threads:
        return np.full(m.threads // 32, 0xFFFFFFFF, np.uint32)
    present = np.zeros(m.threads, np.bool_)
    present[active.index] = True
    return mask_bits(present)


def mask_bits(present: Mask) -> Array:
    """A mask of slots as one u32 a warp."""
    return np.packbits(present.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32).reshape(-1)


def execute(m: Machine, parts: list[tuple[Collective, Active]]) -> None:
    """Do one operation for the threads of all ``parts``, whose instructions may differ but have the same key."""
    present = np.zeros(m.threads, np.bool_)
    members = np.zeros(m.threads, np.uint32)
    operands: list[Array] = []
    for collective, active in parts:
        present[active.index] = True
        if collective.mask is not None:
            members[active.index] = m.compress(collective.mask(m, active), active)
    if parts[0][0].mask is None:
        members = np.repeat(mask_bits(present), 32)
    for at in range(len(parts[0][0].sources)):
        joined: Array | None = None
        for collective, active in parts:
            values = collective.sources[at](m, active)
            if joined is None:
                joined = m.spread(values, active).copy() if len(parts) > 1 else m.spread(values, active)
            else:
                joined[active.index] = m.compress(values, active)
        assert joined is not None
        operands.append(joined.reshape(-1, 32))
    warps = Warps(m, present.reshape(-1, 32), members.reshape(-1, 32))
    results = parts[0][0].function(warps, *operands)
    if m.checks.order is not None and parts[0][0].mask is not None:
        m.checks.order.lanes_meet(m, present, members, orders_memory=parts[0][0].orders_memory)
    for collective, active in parts:
        for write, result in zip(collective.writers, results, strict=True):
            flat = np.broadcast_to(result, (m.threads // 32, 32)).reshape(-1)
            write(m, active, flat if active.full else flat[active.index])


# The operations


def _shuffle(instruction: Instruction) -> Collective:
    m = Modifiers(instruction)
    sync = m.flag("sync")
    mode = m.choice(("up", "down", "bfly", "idx"))
    kind = m.type("b32")
    m.finish()
    target, *operands = instruction.operands
    data, predicate = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())

    def shuffle(warps: Warps, a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        source, valid = _shuffle_source(mode, b.astype(np.int64) & 31, c.astype(np.int64))
        missing = valid & ~np.take_along_axis(warps.taking_part, source, 1) & warps.taking_part
        if missing.any():
            _report_missing(warps.machine, instruction, missing)
        return np.take_along_axis(a, source, 1), valid

    mask = reader(operands[3], TYPES["u32"], instruction) if sync else None
    sources = tuple(reader(operand, kind, instruction) for operand in operands[:3])
    writers = (writer(data, kind, instruction), writer(predicate, TYPES["pred"], instruction))
    return Collective(instruction, mask, sources, writers, shuffle)


def _shuffle_source(mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """The lane that each lane reads, and whether that is another's (the ISA's ``pval``)."""
    segment, clamp = c >> 8 & 31, c & 31
    highest = (_LANES & segment) | (clamp & ~segment)
    if mode == "up":
        source = _LANES - b
        valid = source >= highest
    elif mode == "idx":
        source = (_LANES & segment) | (b & ~segment & 31)
        valid = source <= highest
    else:
        source = _LANES + b if mode == "down" else _LANES ^ b
        valid = source <= highest
    return np.where(valid, source, _LANES), valid


def _report_missing(m: Machine, instruction: Instruction, missing: Mask) -> None:
    if m.checks.sync:
        slots = np.flatnonzero(missing.reshape(-1))
        message = "reads the register of a lane that does not take part in the shuffle"
        m.report("sync", "missing lane", message, slots, instruction=instruction)


def _vote(instruction: Instruction) -> Collective:
    m = Modifiers(instruction)
    sync = m.flag("sync")
    mode = m.choice(("all", "any", "uni", "ballot"))
    kind = m.type("pred b32")
    m.finish()
    target, predicate, *rest = instruction.operands

    def vote(warps: Warps, p: Array) -> tuple[Array]:
        bits = _BITS[None, :]
        true = np.where(p & warps.taking_part, bits, np.uint32(0)).sum(1, dtype=np.uint32)[:, None]
        here = np.where(warps.taking_part, bits, np.uint32(0)).sum(1, dtype=np.uint32)[:, None]
        mine, group = true & warps.members, here & warps.members
        if mode == "ballot":
            return (mine,)
        every, some = mine == group, mine != 0
        return ({"all": every, "any": some, "uni": every | ~some}[mode],)

    mask = reader(rest[0], TYPES["u32"], instruction) if sync else None
    sources = (reader(predicate, TYPES["pred"], instruction),)
    return Collective(instruction, mask, sources, (writer(target, kind, instruction),), vote)


def _match(instruction: Instruction) -> Collective:
    m = Modifiers(instruction)
    m.choice(("sync",))
    mode = m.choice(("any", "all"))
    kind = m.type("b32 b64")
    m.finish()
    target, data, mask = instruction.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())

    def match(warps: Warps, a: Array) -> tuple[Array, ...]:
        group = _same_group(warps)
        equal = (a[:, :, None] == a[:, None, :]) & group
        if mode == "any":
            return (_pack_lanes(equal),)
        agree = (equal == group).all(2)
        return np.where(agree, _pack_lanes(group), np.uint32(0)), agree

    writers: tuple[Writer, ...] = (writer(first, TYPES["b32"], instruction),)
    if mode == "all":
        writers = (*writers, writer(second, TYPES["pred"], instruction))
    sources = (reader(data, kind, instruction),)
    return Collective(instruction, reader(mask, TYPES["u32"], instruction), sources, writers, match)


def _same_group(warps: Warps) -> Array:
    """For each warp and lane, which lanes take part with it, ``[warps, 32, 32]``."""
    named: Mask = (warps.members[:, :, None] & _BITS[None, None, :]) != 0
    return named & warps.taking_part[:, None, :]


def _pack_lanes(lanes: Array) -> Array:
    packed: Array = np.where(lanes, _BITS[None, None, :], np.uint32(0)).sum(2, dtype=np.uint32)
    return packed


_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


def _reduce(instruction: Instruction) -> Collective:
    m = Modifiers(instruction)
    m.choice(("sync",))
    name = m.choice(_REDUCTIONS)
    absolute, nan = m.flag("abs"), m.flag("NaN")
    kind = m.type("u32 s32 b32 f32")
    m.finish()
    target, data, mask = instruction.operands
    fold = _float_fold(instruction, name, nan) if kind.kind == "f" else _integer_fold(name, kind)

    def reduce(warps: Warps, a: Array) -> tuple[Array]:
        return (fold(np.abs(a) if absolute else a, _same_group(warps)),)

    sources = (reader(data, kind, instruction),)
    writers = (writer(target, kind, instruction),)
    return Collective(instruction, reader(mask, TYPES["u32"], instruction), sources, writers, reduce)


def _integer_fold(name: str, kind: PtxType) -> Callable[[Array, Array], Array]:
    limits = np.iinfo(kind.dtype)
    identity = {"and": -1, "min": limits.max, "max": limits.min}.get(name, 0)
    neutral = np.array(identity & 0xFFFFFFFF, np.uint32).view(kind.dtype)

    def fold(a: Array, group: Array) -> Array:
        values = np.where(group, a[:, None, :], neutral)
        result: Array = _REDUCTIONS[name].reduce(values, axis=2, dtype=kind.dtype)
        return result

    return fold


def _float_fold(instruction: Instruction, name: str, nan: bool) -> Callable[[Array, Array], Array]:
    modifiers = (*(("NaN",) if nan else ()), "f32")
    plain = Instruction(instruction.line, name, modifiers, (Sink(),) * 3)
    function = REAL[name](Modifiers(plain)).function

    def fold(a: Array, group: Array) -> Array:
        """Lanes outside the group are replaced by the lane's own value, which changes no minimum or maximum."""
        values = np.where(group, a[:, None, :], a[:, :, None])
        result = np.ascontiguousarray(values[:, :, 0])
        for lane in range(1, 32):
            folded = function(result, np.ascontiguousarray(values[:, :, lane]))
            assert not isinstance(folded, tuple)
            result = folded
        return result

    return fold


def _elect(instruction: Instruction) -> Collective:
    m = Modifiers(instruction)
    m.choice(("sync",))
    m.finish()
    target, mask = instruction.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())

    def elect(warps: Warps) -> tuple[Array, Array]:
        leader = _same_group(warps).argmax(2)
        return leader.astype(np.uint32), leader == _LANES

    writers = (writer(first, TYPES["b32"], instruction), writer(second, TYPES["pred"], instruction))
    return Collective(instruction, reader(mask, TYPES["u32"], instruction), (), writers, elect)


def warp_barrier(instruction: Instruction) -> Collective:
    """``bar.warp.sync``: nothing but waiting, and memory ordered among those who wait."""

    mask = reader(instruction.operands[0], TYPES["u32"], instruction)
    return Collective(instruction, mask, (), (), lambda warps: ())


def _active_mask(instruction: Instruction) -> Action:
    write = writer(instruction.operands[0], TYPES["b32"], instruction)

    def act(m: Machine, active: Active) -> None:
        warps = ballot(m, active)
        if (warps == warps[0]).all():
            write(m, active, warps[:1])
            return
        lanes = np.repeat(warps, 32)
        write(m, active, lanes if active.full else lanes[active.index])

    return act


COLLECTIVES: dict[str, Callable[[Instruction], Collective]] = {
    "shfl": _shuffle,
    "vote": _vote,
    "match": _match,
    "redux": _reduce,
    "elect": _elect,
}
"""The warp operations that may make a thread wait."""

WARP_STATE = {"activemask": _active_mask}
"""What a warp can tell without waiting."""
