"""The figures as tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from peers import PeerCost
from rich.table import Table

from compilation.bars import Bar
from compilation.costs import Cost
from compilation.growth import Size


def to_ptx(costs: Mapping[str, Cost]) -> Table:
    """Each problem's kernel: ptxc and ``nvcc --ptx``."""
    table = _table("to PTX", ["problem", "kernel"], ["PTX lines", "ptxc ms", "us/line", "nvcc --ptx ms", "nvcc / ptxc"])
    for problem, cost in costs.items():
        figures = [str(cost.lines), f"{cost.ptxc_ms:.2f}", f"{cost.us_per_line:.1f}"]
        table.add_row(problem, cost.kernel, *figures, _text(cost.nvcc_ptx_ms, ".0f"), _text(cost.ptx_ratio, ".0f"))
    lines, ms = sum(cost.lines for cost in costs.values()), sum(cost.ptxc_ms for cost in costs.values())
    if costs:
        table.add_section()
        table.add_row("all", "", str(lines), f"{ms:.2f}", f"{ms * 1e3 / lines:.1f}")
    return table


def to_cubin(costs: Mapping[str, Cost]) -> Table:
    """Each problem's kernel: the whole way to machine code, by ptxc and ptxas, and as Emmy goes it."""
    heads = ["ptxc ms", "ptxas ms", "together", "nvcc --cubin ms", "share"]
    table = _table("to a cubin", ["problem"], heads)
    for problem, cost in costs.items():
        figures = [_text(figure, ".1f") for figure in (cost.ptxas_ms, cost.cubin_ms, cost.nvcc_cubin_ms)]
        table.add_row(problem, f"{cost.ptxc_ms:.1f}", *figures, _text(cost.cubin_share, ".3f"))
    shares = [cost.cubin_share for cost in costs.values() if cost.cubin_share is not None]
    if shares:
        table.add_section()
        table.add_row("geometric mean", *[""] * 4, f"{statistics.geometric_mean(shares):.3f}")
        table.add_row("worst", *[""] * 4, f"{max(shares):.3f}")
    return table


def beside_peers(ours: Mapping[str, PeerCost], others: Sequence[Sequence[PeerCost]]) -> Table:
    """Problems that several compilers take to PTX: CPU time and number of kernels, and how many times ptxc's time.

    ``others`` has the costs of a compiler each.
    """
    others = [costs for costs in others if costs]
    heads = [head for costs in others for head in (f"{costs[0].compiler} ms", "/ ptxc")]
    table = _table("to PTX, the same problem from each compiler's own form (kernels)", ["problem"], ["ptxc ms", *heads])
    ratios: list[list[float]] = [[] for _ in others]
    for problem, own in ours.items():
        row = [_time(own)]
        for costs, found in zip(others, ratios):
            theirs = next((cost for cost in costs if cost.problem == problem), None)
            if theirs is not None:
                found.append(theirs.ms / own.ms)
            row += ["-", "-"] if theirs is None else [_time(theirs), f"{found[-1]:.0f}"]
        table.add_row(problem, *row)
    if any(ratios):
        table.add_section()
        means = [f"{statistics.geometric_mean(found):.0f}" if found else "-" for found in ratios]
        table.add_row("geometric mean", "", *[cell for mean in means for cell in ("", mean)])
    return table


def growth(sizes: Sequence[Size]) -> Table:
    """The kernel at growing size."""
    table = _table("growth", [], ["statements", "PTX lines", "ptxc ms", "us/line", "us/statement"])
    for size in sizes:
        us = 1e3 * size.ms
        figures = (f"{size.ms:.0f}", f"{us / size.lines:.1f}", f"{us / size.statements:.1f}")
        table.add_row(str(size.statements), str(size.lines), *figures)
    return table


def bars(found: Sequence[Bar]) -> Table:
    """What is to be reached."""
    table = _table("bars", ["CPU time"], ["figure", "demanded", ""])
    for bar in found:
        table.add_row(bar.name, f"{bar.value:.3g}", bar.bound, "reached" if bar.reached else "MISSED")
    return table


def _table(title: str, texts: Sequence[str], figures: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for head in texts:
        table.add_column(head, no_wrap=True)
    for head in figures:
        table.add_column(head, justify="right")
    return table


def _time(cost: PeerCost) -> str:
    return f"{cost.ms:.2f} ({cost.kernels})"


def _text(figure: float | None, form: str) -> str:
    return "-" if figure is None else format(figure, form)
