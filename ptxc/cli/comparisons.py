"""Comparisons of builds, as text and as JSON."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence

from ptxc.cli.messages import printable, table
from ptxc.comparison import Bar, Build, Comparison, bars_of
from ptxc.comparison.sass import Kind
from ptxc.comparison.work import Region, Unit

_NONE = "-"

#: Characters of a kernel's name in the table.
_LONGEST = 72

#: What a unit of work is called.
_UNITS = {
    Unit.PRODUCT: "2,048 multiply-adds of a warp (an HMMA.16816)",
    Unit.FLOAT: "an operation on floats",
    Unit.WORD: "4 bytes of global memory",
    Unit.KERNEL: "the kernel",
}

#: The units' abbreviations in the table.
_SHORT = {Unit.PRODUCT: "mma", Unit.FLOAT: "float", Unit.WORD: "word", Unit.KERNEL: "kernel"}


#: What is said where a ratio compares regions of different sorts.
_UNLIKE = "the regions are not alike: a loop that one compiler unrolled, or moved work out of"


def _is_unlike(row: Comparison) -> bool:
    return row.per_work is not None and not row.alike


def report(rows: Sequence[Comparison]) -> str:
    """The report for people."""
    if len(rows) == 1:
        return _in_full(rows[0])
    parts = [_lines(rows)]
    notes = _notes(rows)
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join([*parts, *_summary(rows)])


def to_json(rows: Sequence[Comparison]) -> str:
    """The report for programs."""
    from ptxc.cli.jsontext import dumps

    return dumps({"kernels": [row.to_dict() for row in rows], "bars": [bar.to_dict() for bar in bars_of(rows)]})


# ---------------------------------------------------------------------------------------------------------- one kernel


def _in_full(row: Comparison) -> str:
    heading = f"{printable(row.kernel)} for {row.target}"
    builds = (row.ptxc, row.nvcc)
    lines: list[tuple[str, ...]] = [("", "ptxc", "nvcc", "ptxc / nvcc")]
    for name, figure, form in _FIGURES:
        lines.append(_line(name, [figure(build) if build else None for build in builds], form))
    lines.append(("occupancy limited by", *(build.occupancy.limit if build else _NONE for build in builds), ""))
    parts = [heading, table(lines, right=(1, 2, 3))]
    if any(builds):
        parts += [_hottest(row), _loops(row)]
    parts += [printable(note) for note in row.notes]
    parts += [_UNLIKE] if _is_unlike(row) else []
    return "\n\n".join(filter(None, parts))


#: The rows of the table of one kernel: the figure, and how it is printed.
_FIGURES: Sequence[tuple[str, Callable[[Build], float], str]] = (
    ("CPU ms to PTX", lambda build: 1e3 * build.ptx_seconds, ",.1f"),
    ("CPU ms of ptxas", lambda build: 1e3 * build.ptxas_seconds, ",.1f"),
    ("PTX lines", lambda build: build.ptx_lines, ",d"),
    ("registers", lambda build: build.resources.registers, "d"),
    ("spill stores, bytes", lambda build: build.resources.spill_stores, "d"),
    ("spill loads, bytes", lambda build: build.resources.spill_loads, "d"),
    ("stack, bytes", lambda build: build.resources.stack, "d"),
    ("static shared memory, bytes", lambda build: build.resources.shared, "d"),
    ("occupancy, %", lambda build: 100 * build.occupancy.share, ".1f"),
    ("SASS instructions", lambda build: build.code.size, ",d"),
)


def _hottest(row: Comparison) -> str:
    """What the hottest regions take for a unit of work, by kind."""
    unit, regions = row.unit, row.hottest
    lines: list[tuple[str, ...]] = [("hottest region", "ptxc", "nvcc", "ptxc / nvcc")]
    lines.append(("where", *(_place(region) if region else _NONE for region in regions), ""))
    lines.append(_line("instructions", [region.instructions if region else None for region in regions], ",d"))
    lines.append(_line("units of work", [region.work[unit] if region else None for region in regions], ",.4g"))
    whole = [region.per_work(unit) if region else None for region in regions]
    lines.append(_line("instructions for a unit", whole, ",.3f"))
    for kind in Kind:
        found = [region.per_work(unit, kind) if region else None for region in regions]
        if any(found):
            lines.append(_line(f"  {kind}", found, ",.3f"))
    return f"{table(lines, right=(1, 2, 3))}\n\na unit of work is {_UNITS[unit]}"


def _loops(row: Comparison) -> str:
    """All loops of both builds; empty where there is none."""
    lines: list[tuple[str, ...]] = [("loops", "at", "depth", "instructions", "units of work")]
    for who, build, hottest in zip(("ptxc", "nvcc"), (row.ptxc, row.nvcc), row.hottest, strict=True):
        for loop in sorted(build.code.loops, key=lambda loop: loop.address or 0) if build else ():
            at = f"{'  ' * (loop.depth - 1)}{loop.address:#x}"
            mark = "  hottest" if loop is hottest else ""
            lines.append((who, at, f"{loop.depth}", f"{loop.instructions:,}", f"{loop.work[row.unit]:,.4g}{mark}"))
    return table(lines, right=(2, 3)) if len(lines) > 1 else ""


def _place(region: Region) -> str:
    return "the kernel" if region.address is None else f"loop at {region.address:#x}"


def _line(name: str, figures: Sequence[float | None], form: str) -> tuple[str, ...]:
    """A figure of both builds, and the ratio where there is one."""
    ours, theirs = figures
    ratio = f"{ours / theirs:.3f}" if ours is not None and theirs else ""
    return (name, *(_NONE if figure is None else format(figure, form) for figure in figures), ratio)


# -------------------------------------------------------------------------------------------------------- many kernels


def _lines(rows: Sequence[Comparison]) -> str:
    """A line for each kernel, each figure as ptxc's and nvcc's."""
    heading = ("kernel", "target", "registers", "spills", "occupancy", "SASS", "work", "SASS for it", "ratio", "CPU")
    lines: list[tuple[str, ...]] = [heading]
    for name, row in zip(_names(rows), rows, strict=True):
        builds = (row.ptxc, row.nvcc)
        faster = f"{row.nvcc.ptx_seconds / row.ptxc.ptx_seconds:.0f}x" if row.ptxc and row.nvcc else _NONE
        lines.append(
            (
                name,
                row.target,
                _pair(builds, lambda build: f"{build.resources.registers}"),
                _pair(builds, lambda build: f"{build.spilled}"),
                _pair(builds, lambda build: f"{100 * build.occupancy.share:.0f}"),
                _pair(builds, lambda build: f"{build.code.size}"),
                _SHORT[row.unit] if any(builds) else _NONE,
                "/".join(f"{region.per_work(row.unit):.2f}" if region else _NONE for region in row.hottest),
                _ratio(row),
                faster,
            )
        )
    return table(lines, right=range(2, len(heading)))


def _pair(builds: Sequence[Build | None], figure: Callable[[Build], str]) -> str:
    return "/".join(figure(build) if build else _NONE for build in builds)


def _ratio(row: Comparison) -> str:
    """The ratio of the SASS for a unit of work, marked where the regions are not alike."""
    return _NONE if row.per_work is None else f"{row.per_work:.2f}{'' if row.alike else '*'}"


def _notes(rows: Sequence[Comparison]) -> list[str]:
    """What is to be said of rows; what is said of many, once."""
    counts = Counter(note for row in rows for note in row.notes)
    said = [f"{count} kernels: {printable(note)}" for note, count in counts.items() if count > 1]
    said += [f"{printable(row.file)}: {printable(note)}" for row in rows for note in row.notes if counts[note] == 1]
    if any(map(_is_unlike, rows)):
        said.append(f"* {_UNLIKE}")
    return said


def _names(rows: Sequence[Comparison]) -> list[str]:
    """What tells the rows apart: the files' names below their common folder, the kernels' where a file has several."""
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(row.file)) for row in rows])
    files = [os.path.relpath(row.file, folder).removesuffix(".json").removesuffix(".ir") for row in rows]
    names = [f"{file}: {row.kernel}" if files.count(file) > 1 else file for file, row in zip(files, rows, strict=True)]
    return [_shortened(printable(name)) for name in names]


def _shortened(name: str) -> str:
    """A name without its middle where it is long."""
    half = _LONGEST // 2 - 2
    return name if len(name) <= _LONGEST else f"{name[:half]}...{name[-half:]}"


def _summary(rows: Sequence[Comparison]) -> list[str]:
    """The bars, and after them the kernels that miss them."""
    bars = bars_of(rows)
    if not bars:
        return ["no kernel was built by both compilers"]
    both = sum(row.both is not None for row in rows)
    lines = [(f"{both} kernels built by both, of {len(rows)}", "", "missed by")]
    lines += [(bar.name, bar.figure, "" if bar.missed is None else str(len(bar.missed))) for bar in bars]
    return [table(lines, right=(1, 2)), *(_missed(bar) for bar in bars if bar.missed)]


def _missed(bar: Bar) -> str:
    lines = [f"  {printable(row.file)}: {text}" for row, text in bar.missed or ()]
    return "\n".join([f"{bar.name}, missed by:", *lines])
