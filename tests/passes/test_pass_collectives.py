"""Threads meet where the collectives pass says so, and threads outside the tile do no harm, on random kernels.

The pass refuses some kernels. Of those that it lets through, every thread is executed alone, and the threads' ways are
compared: all of a CTA pass the same barriers, all of a warp the same barriers and shuffles of the warp.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from math import prod
from random import Random
from typing import NamedTuple

import pytest
from ir_machine import ACTIVE, Effect, execute
from random_programs import random_program

from ptxc.errors import DivergenceError
from ptxc.ir import opcodes
from ptxc.ir.kernel import Kernel
from ptxc.ir.text import format_kernel, parse_kernel
from ptxc.ir.verify import check
from ptxc.passes import collectives, coordinates, early_exit

SEEDS = range(200)
WARP = 32


class Run(NamedTuple):
    """What the threads of one CTA do, by their number."""

    kernel: Kernel
    cta: int
    effects: dict[int, list[Effect]]


def runs(kernel: Kernel, n: int) -> list[Run]:
    """Some threads of three CTAs, executed with the parameter ``n``."""
    lanes = sorted({tid for tid in (0, 1, 2, 5, 7, 31, 32, 33, 39, 63) if tid < kernel.threads})
    arguments = {"out": 1 << 20, "src": 1 << 22, "n": n, "m": 3}
    found = []
    for cta in (0, 1, 6):
        special = {"ctaid.x": cta, "warpid": 0}
        effects = {tid: execute(kernel, arguments, {**special, "tid.x": tid, "laneid": tid % WARP}) for tid in lanes}
        found.append(Run(kernel, cta, effects))
    return found


@cache
def accepted(seed: int, tiled: bool) -> tuple[str, Kernel] | None:
    """A random kernel's text, and the kernel after the pass; None if it is refused."""
    random = Random(seed)
    threads = random.choice((8, 40, 64, 64))
    tile = random.choice(("%n, 64", "%n, 32", "3, 100", "%n, 5", "%n, 2, 32", "7", "3, %n", "2, 64")) if tiled else ""
    kernel = random_program(seed, threads=threads, collective=random.choice(("warp", "cta")), tile=tile)
    check(kernel)
    text = format_kernel(kernel)
    try:
        collectives.run(kernel)
    except DivergenceError:
        return None
    check(kernel, "collectives")
    return text, kernel


def assert_met(run: Run) -> None:
    threads = run.kernel.threads
    meetings: dict[int, list[Effect]] = {}
    for tid, effects in run.effects.items():
        meetings[tid] = [effect for effect in effects if effect.what not in ("store", "atom")]
    whole = {tid: [m for m in found if m.what == "bar" and len(m.numbers) == 1] for tid, found in meetings.items()}
    assert len({tuple(found) for found in whole.values()}) == 1, (run.cta, whole)
    for warp in range(-(-threads // WARP)):
        lanes = [tid for tid in meetings if tid // WARP == warp]
        # The values that lanes exchange differ, the mask does not; of the active mask nothing is claimed.
        ways = {
            tid: [(m.place, m.numbers[-1]) for m in meetings[tid] if m.numbers[-1] != ACTIVE or m.what != "shfl"]
            for tid in lanes
        }
        assert len({tuple(way) for way in ways.values()}) == 1, (run.cta, ways)
        present = min(threads - warp * WARP, WARP)
        masks = {m.numbers[-1] % 2**32 for tid in lanes for m in meetings[tid] if m.what == "shfl"}
        assert masks <= {ACTIVE, 2**present - 1}


@pytest.mark.parametrize("seeds", [SEEDS[at::8] for at in range(8)], ids=lambda seeds: f"from-{seeds[0]}")
def test_threads_meet(seeds: range) -> None:
    for seed in seeds:
        found = accepted(seed, False)
        if found is not None:
            for n in (1, 6):
                for run in runs(found[1], n):
                    assert_met(run)


@pytest.mark.parametrize("much", [1, 4], ids=["around-all", "around-much"])
@pytest.mark.parametrize("seeds", [SEEDS[at::8] for at in range(8)], ids=lambda seeds: f"from-{seeds[0]}")
def test_threads_outside_the_tile(seeds: range, much: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They touch no memory and keep nobody waiting; those inside do what they would without a guard."""
    monkeypatch.setattr(early_exit, "_MUCH", much)
    for seed in seeds:
        found = accepted(seed, True)
        if found is None:
            continue
        text, kernel = found
        kernel = parse_kernel(format_kernel(kernel))
        coordinates.run(kernel)
        unguarded = parse_kernel(format_kernel(kernel))
        for block in unguarded.blocks:
            block.instrs = [instr for instr in block.instrs if instr.op is not opcodes.TILE_GUARD]
        early_exit.run(kernel)
        check(kernel, "early-exit")
        for run, free in zip(runs(kernel, 2), runs(unguarded, 2), strict=True):
            assert_met(run)
            for tid, effects in run.effects.items():
                done = [effect[:2] for effect in effects if effect.what in ("store", "atom")]
                expected = [effect[:2] for effect in free.effects[tid] if effect.what in ("store", "atom")]
                inside = is_inside(text, run.cta, tid)
                if inside is not None:
                    assert done == (expected if inside else []), (seed, run.cta, tid)


def is_inside(text: str, cta: int, tid: int) -> bool | None:
    """Whether a thread's cell lies inside the tile whose coordinates the text of a kernel takes.

    None for a CTA that no grid has: CTAs without cells are launched for a symbolic size only, or beside ragged ones.
    """
    extents = re.findall(r"tile\.coords\S* (.*)", text)[0].split(", ")
    (threads,) = map(int, re.findall(r"threads (\d+)", text))
    total = prod(2 if extent == "%n" else int(extent) for extent in extents)
    if "%n" not in extents and total % threads == 0 and cta >= total // threads:
        return None
    return cta * threads + tid < total


def test_the_kernels_are_of_every_kind() -> None:
    """Enough are let through, with barriers that only a proof lets through; guards become each of the shapes."""
    meeting = 0
    for seed in SEEDS:
        found = accepted(seed, False)
        if found is not None:
            meeting += any(block.collective for block in found[1].blocks[1:])
    assert meeting > 30
    shapes: Counter[str] = Counter()
    for seed in SEEDS:
        found = accepted(seed, True)
        if found is None:
            continue
        kernel = parse_kernel(format_kernel(found[1]))
        level = next(instr.mods[0] for instr in kernel.instrs() if instr.op is opcodes.TILE_GUARD)
        coordinates.run(kernel)
        early_exit.run(kernel)
        names = {block.name for block in kernel.blocks}
        shape = "leave" if "outside" in names else "go around" if "together" in names else "stay"
        shapes[f"{level} {shape}"] += 1
    assert shapes.keys() >= {f"{level} leave" for level in collectives.LEVELS if level != "warpgroup"}, shapes
    assert shapes.keys() >= {"cta stay", "lane go around", "lane stay"}, shapes
