"""What ptxc's builds are to reach beside nvcc's, over many kernels, and which kernels do not."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ptxc.comparison.builds import Build
from ptxc.comparison.pairs import Comparison

#: How many registers more than nvcc's build are let pass, and how many times its instructions for a unit of work.
REGISTERS_MORE, PER_WORK_MOST = 8, 1.10


@dataclass(frozen=True)
class Bar:
    """One figure over all kernels; where it is a bar for each, also those that miss it, the worst first."""

    name: str
    #: The figure as people read it, and as a number.
    figure: str
    value: float
    #: The kernels that miss the bar, each with what it has; None where there is no bar for a single kernel.
    missed: tuple[tuple[Comparison, str], ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The bar as JSON takes it."""
        missed = [{"file": row.file, "kernel": row.kernel, "figure": text} for row, text in self.missed or ()]
        return {"name": self.name, "value": self.value} | ({} if self.missed is None else {"missed": missed})


def bars_of(comparisons: Sequence[Comparison]) -> list[Bar]:
    """All bars; of the kernels that both compilers build."""
    rows = [row for row in comparisons if row.both]
    if not rows:
        return []
    spills = _spills(rows)
    return [*spills, *_registers(rows), _occupancy(rows), *_instructions(rows), *_seconds(rows)]


def _spills(rows: Sequence[Comparison]) -> list[Bar]:
    def text(ours: Build, theirs: Build) -> str:
        return f"{ours.spilled} bytes, nvcc {theirs.spilled}"

    def excess(ours: Build, theirs: Build) -> float:
        return ours.spilled - theirs.spilled

    return [
        _counted("spills where nvcc has none", rows, lambda a, b: bool(a.spilled and not b.spilled), excess, text),
        _counted("more bytes spilled than nvcc", rows, lambda a, b: a.spilled > b.spilled, excess, text),
    ]


def _registers(rows: Sequence[Comparison]) -> list[Bar]:
    def text(ours: Build, theirs: Build) -> str:
        return f"{ours.resources.registers} registers, nvcc {theirs.resources.registers}"

    def excess(ours: Build, theirs: Build) -> float:
        return ours.resources.registers - theirs.resources.registers

    within = [excess(*row.both) <= 0 for row in rows if row.both]
    share = sum(within) / len(within)
    return [
        Bar("registers at most nvcc's", _percent(share), share),
        _shared(f"registers at most nvcc's + {REGISTERS_MORE}", rows, excess, text, REGISTERS_MORE),
    ]


def _occupancy(rows: Sequence[Comparison]) -> Bar:
    def text(ours: Build, theirs: Build) -> str:
        shares = f"{_percent(ours.occupancy.share)}, nvcc {_percent(theirs.occupancy.share)}"
        return f"{shares} (limited by {ours.occupancy.limit})"

    def lack(ours: Build, theirs: Build) -> float:
        return theirs.occupancy.share - ours.occupancy.share

    return _shared("occupancy at least nvcc's", rows, lack, text, 0.0)


def _instructions(rows: Sequence[Comparison]) -> list[Bar]:
    ratios = [(row.per_work, row) for row in rows if row.per_work is not None]
    above = sorted((pair for pair in ratios if pair[0] > PER_WORK_MOST), key=lambda pair: -pair[0])
    missed = tuple((row, f"{ratio:.2f} times nvcc's, {_both_loops(row)}") for ratio, row in above)
    mean = statistics.geometric_mean(ratio for ratio, _ in ratios)
    alike = [ratio for ratio, row in ratios if row.alike]
    in_all = statistics.geometric_mean(a.code.size / b.code.size for a, b in (row.both for row in rows if row.both))
    name = "SASS for a unit of work in the hottest loop, ptxc / nvcc, geometric mean"
    return [
        Bar(name, f"{mean:.3f}", mean),
        *_mean_of_alike(alike),
        Bar(f"more than {PER_WORK_MOST:.2f} of nvcc's SASS for a unit of work", str(len(above)), len(above), missed),
        Bar("SASS in all, ptxc / nvcc, geometric mean", f"{in_all:.3f}", in_all),
    ]


def _mean_of_alike(ratios: Sequence[float]) -> list[Bar]:
    """The same of those whose hottest regions are of one sort, where there are any."""
    if not ratios:
        return []
    mean = statistics.geometric_mean(ratios)
    return [Bar(f"  of the {len(ratios)} whose regions are alike", f"{mean:.3f}", mean)]


def _both_loops(row: Comparison) -> str:
    """The instructions for a unit of work of both builds."""
    ours, theirs = row.hottest
    assert ours is not None
    assert theirs is not None
    unlike = "" if row.alike else " (regions not alike)"
    return f"{ours.per_work(row.unit):.2f} and {theirs.per_work(row.unit):.2f} instructions for a {row.unit}{unlike}"


def _seconds(rows: Sequence[Comparison]) -> list[Bar]:
    pairs = [row.both for row in rows if row.both]
    to_ptx = [theirs.ptx_seconds / ours.ptx_seconds for ours, theirs in pairs]
    to_cubin = statistics.median(theirs.seconds / ours.seconds for ours, theirs in pairs)
    lines, seconds = (sum(getattr(ours, name) for ours, _ in pairs) for name in ("ptx_lines", "ptx_seconds"))
    per_line, median, least = 1e6 * seconds / lines, statistics.median(to_ptx), min(to_ptx)
    return [
        Bar("CPU time to PTX, nvcc / ptxc, median", f"{median:.1f}", median),
        Bar("CPU time to PTX, nvcc / ptxc, least", f"{least:.1f}", least),
        Bar("CPU time of ptxc for a PTX line", f"{per_line:.1f} us", per_line),
        Bar("CPU time to machine code, nvcc / ptxc, median", f"{to_cubin:.1f}", to_cubin),
    ]


# ------------------------------------------------------------------------------------------------------------ pieces

type _Figure = Callable[[Build, Build], float]
type _Text = Callable[[Build, Build], str]


def _missing(
    rows: Sequence[Comparison], misses: Callable[[Build, Build], bool], by: _Figure, text: _Text
) -> tuple[tuple[Comparison, str], ...]:
    """The kernels that miss a bar, those that do so by most first."""
    found = [(by(*row.both), row, text(*row.both)) for row in rows if row.both and misses(*row.both)]
    return tuple((row, said) for _, row, said in sorted(found, key=lambda item: -item[0]))


def _counted(
    name: str, rows: Sequence[Comparison], misses: Callable[[Build, Build], bool], by: _Figure, text: _Text
) -> Bar:
    """A bar that is given as the number of kernels that miss it."""
    missed = _missing(rows, misses, by, text)
    return Bar(name, str(len(missed)), len(missed), missed)


def _shared(name: str, rows: Sequence[Comparison], by: _Figure, text: _Text, most: float) -> Bar:
    """A bar that is given as the share of the kernels that reach it."""
    missed = _missing(rows, lambda ours, theirs: by(ours, theirs) > most, by, text)
    share = 1 - len(missed) / len(rows)
    return Bar(name, _percent(share), share, missed)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
