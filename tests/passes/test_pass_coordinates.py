"""The tile's coordinates, executed for threads of many grids, against the C text that Emmy makes of the same tile."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from emmy.compiler.ir.axis import Axis
from emmy.compiler.ir.kernel.ir import Tile
from emmy.compiler.ir.stmt.base import RenderCtx
from emmy.compiler.ir.stmt.body import Body
from ir_machine import execute

from ptxc.ir.kernel import Kernel
from ptxc.ir.text import parse_kernel
from ptxc.ir.verify import check
from ptxc.passes import coordinates, cse, simplify

#: The sizes that are known at run time only.
SIZES = {"m": 5, "n": 37}


class Geometry(NamedTuple):
    """Axes, outermost first; ``group`` tiles of axis ``grouped`` come before axis ``other`` advances."""

    extents: tuple[int | str, ...]
    cells: int
    aux: int = 0
    group: int = 0
    grouped: int = 0
    other: int = 0

    @property
    def sizes(self) -> list[int]:
        return [SIZES[extent] if isinstance(extent, str) else extent for extent in self.extents]

    @property
    def total(self) -> int:
        return math.prod(self.sizes)

    @property
    def guarded(self) -> bool:
        return bool(self.total % self.cells) or any(isinstance(extent, str) for extent in self.extents)


GEOMETRIES = [
    Geometry((10, 128), 128),
    Geometry((6, 5, 4, 32), 128),
    Geometry((3, 4, 8), 32),
    Geometry((3, 5), 1),
    Geometry((7, 1, 64, 1), 64),
    Geometry((10, 100), 128),
    Geometry((64, 96), 128),
    Geometry((1000,), 256),
    Geometry((70000, 70000), 256),
    Geometry((3, 50000, 50000), 256),
    Geometry((2147483600,), 256),
    Geometry((2**31 - 256, 1), 256),
    Geometry((3000000, 1024), 1024),
    Geometry(("m", "n"), 64),
    Geometry(("m", "n", 64), 64),
    Geometry((3, "n"), 32),
    Geometry(("m", 3, 100), 64),
    Geometry(("n",), 32),
    Geometry((), 32),
    Geometry((), 1),
    # Grouped: whole groups, a ragged last one, both orientations, axes around and inside.
    Geometry((8, 3, 64), 64, 0, 4, 0, 1),
    Geometry((10, 3, 64), 64, 0, 4, 0, 1),
    Geometry((3, 8, 64), 64, 0, 4, 1, 0),
    Geometry((3, 10, 64), 64, 0, 4, 1, 0),
    Geometry((5, 10, 3, 48), 64, 0, 4, 1, 2),
    Geometry((2, 5, 3, 10, 8, 4), 32, 0, 3, 3, 2),
    Geometry((5, 64), 64, 0, 2, 0, 1),
    Geometry((7, 9), 32, 0, 4, 0, 1),
    Geometry((3, 3, 32), 32, 0, 8, 0, 1),
    Geometry((1, 9, 32), 32, 0, 8, 0, 1),
    Geometry((70000, 70000, 2), 256, 0, 16, 0, 1),
    Geometry((2, 70000, 70000), 256, 0, 16, 2, 1),
    Geometry(("m", "n", 64), 64, 0, 4, 0, 1),
    Geometry(("m", "n", 48), 64, 0, 4, 1, 0),
    Geometry((2, "m", "n", 48), 64, 0, 2, 1, 2),
    Geometry(("n", "m"), 64, 0, 8, 0, 1),
    Geometry(("m", 10, 64), 64, 0, 8, 0, 1),
    # Threads beyond the cells.
    Geometry((10, 128), 128, 32),
    Geometry((10, 100), 128, 32),
    Geometry(("m", 128), 128, 64),
    Geometry(("m", "n"), 96, 32, 4, 1, 0),
    Geometry((70000, 70000), 128, 32),
]


def kernel_of(geometry: Geometry) -> Kernel:
    """Stores each coordinate, then whether the cell lies inside."""
    names = [f"%a{at}:b32" for at in range(len(geometry.extents))]
    extents = ", ".join(f"%{extent}" if isinstance(extent, str) else f"{extent}" for extent in geometry.extents)
    mods = f"cells={geometry.cells}.aux={geometry.aux}"
    group = geometry.group
    if group and not any(isinstance(extent, str) for extent in geometry.extents):
        group = min(group, int(geometry.extents[geometry.grouped]))
    if group > 1:
        mods += f".group={group}.grouped={geometry.grouped}.other={geometry.other}"
    stores = "".join(f"    st.global.b32 [%out], %a{at}\n" for at in range(len(names)))
    kernel = parse_kernel(
        f"""\
kernel k target sm_80 threads {geometry.cells + geometry.aux}
  param out: u64 align 4
  param m: u32
  param n: u32

entry:
    %out:b64 = ld.param.u64 [out]
    %m:b32 = ld.param.u32 [m]
    %n:b32 = ld.param.u32 [n]
    {", ".join([*names, "%inside:pred"])} = tile.coords.{mods} {extents}
{stores}\
    %flag:b32 = selp.b32 1, 0, %inside
    st.global.b32 [%out], %flag
    ret
"""
    )
    check(kernel)
    return kernel


def emmys(geometry: Geometry) -> Callable[[int, int], tuple[int, ...] | None]:
    """What Emmy's text computes for a CTA's thread: the coordinates, or None for one that it masks."""
    axes = tuple(Axis(f"a{at}", extent) for at, extent in enumerate(geometry.extents))  # type: ignore[arg-type]
    tile = Tile(
        axes=axes,
        body=Body(()),
        block_threads=geometry.cells,
        aux_threads=geometry.aux,
        raster_axes=tuple(f"a{at}" for at in sorted((geometry.grouped, geometry.other))) if geometry.group else None,  # type: ignore[arg-type]
        raster_group=geometry.group or None,
        raster_orient="m" if geometry.grouped < geometry.other else "n",
    )
    steps: list[tuple[str, str]] = []
    for line in tile.render(RenderCtx()):
        text = line.strip().replace("(long long)", "").replace("/", "//")
        for name, value in {"blockIdx.x": "ctaid", "threadIdx.x": "tid", "blockDim.x": str(geometry.cells)}.items():
            text = text.replace(name, value)
        match = re.fullmatch(r"(?:int|long long) (\w+) = (.*);|if \((.*)\) \{|\}", text)
        assert match is not None, line
        if text != "}":
            steps.append((match[1] or "", match[2] or match[3]))
    compiled = [(name, compile(text, "emmy", "eval")) for name, text in steps]

    def run(ctaid: int, tid: int) -> tuple[int, ...] | None:
        names: dict[str, Any] = {**SIZES, "ctaid": ctaid, "tid": tid, "min": min}
        for name, code in compiled:
            value = eval(code, names)
            if name:
                names[name] = value
            elif not value:
                return None
        return tuple(names[axis.name] for axis in axes)

    return run


def threads(geometry: Geometry) -> Iterator[tuple[int, int]]:
    """All threads of a small grid, some of a large one; of a grid that has a guard one CTA more than it needs."""
    ctas = -(-geometry.total // geometry.cells)
    count = geometry.cells + geometry.aux
    numbers: set[int] = {0, 1, 2, 7, ctas // 3, ctas // 2, ctas - 2, ctas - 1, ctas}
    lanes = {0, 1, 2, 31, 32, count // 3, count // 2, geometry.cells - 1, geometry.cells, count - 1}
    if geometry.total < 1000:
        numbers, lanes = {*range(ctas), *numbers}, {*range(0, count, 5), *lanes}
    for cta in sorted(numbers):
        for tid in sorted(lanes):
            if 0 <= cta < ctas + geometry.guarded and tid < count:
                yield cta, tid


@pytest.mark.parametrize(
    "geometry", GEOMETRIES, ids=lambda geometry: "-".join(map(str, (*geometry.extents, *geometry[1:])))
)
def test_coordinates_are_emmys(geometry: Geometry) -> None:
    kernel = kernel_of(geometry)
    coordinates.run(kernel)
    check(kernel, "coordinates")
    optimized = kernel_of(geometry)
    for run in (coordinates.run, simplify.run, cse.run):
        run(optimized)
    check(optimized, "cse")
    expected = emmys(geometry)
    seen = set()
    for cta, tid in threads(geometry):
        special = {"ctaid.x": cta, "tid.x": tid}
        *found, inside = (effect.numbers[1] for effect in execute(kernel, {"out": 0, **SIZES}, special))
        *again, still = (effect.numbers[1] for effect in execute(optimized, {"out": 0, **SIZES}, special))
        cell = cta * geometry.cells + tid % geometry.cells
        assert inside == still == (cell < geometry.total), (cta, tid)
        seen.add(inside)
        if inside:
            assert tuple(found) == tuple(again) == expected(cta, tid), (cta, tid)
            assert all(0 <= at < size for at, size in zip(found, geometry.sizes, strict=True)), (cta, tid)
        else:
            assert expected(cta, tid) is None
    assert seen == ({0, 1} if geometry.guarded else {1})


def test_each_cell_is_somebodys() -> None:
    """Grouping permutes the cells: each thread of the cells has one, and none is left out."""
    for geometry in GEOMETRIES:
        if geometry.group and geometry.total < 1500:
            kernel = kernel_of(geometry)
            coordinates.run(kernel)
            found = set()
            for cell in range(geometry.total):
                special = {"ctaid.x": cell // geometry.cells, "tid.x": cell % geometry.cells}
                effects = execute(kernel, {"out": 0, **SIZES}, special)
                found.add(tuple(effect.numbers[1] for effect in effects))
            assert len(found) == geometry.total, geometry
