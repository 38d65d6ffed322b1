"""The ratios of many kernels, drawn with matplotlib, which is asked for only here."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxc.comparison.builds import Build
from ptxc.comparison.pairs import Comparison
from ptxc.comparison.work import Unit
from ptxc.errors import ToolchainError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {Unit.PRODUCT: "tab:blue", Unit.FLOAT: "tab:orange", Unit.WORD: "tab:green", Unit.KERNEL: "tab:gray"}
_SUFFIXES = (".svg", ".png")


def check_picture(path: Path) -> None:
    """Raise UsageError for a file's name that tells no format, ToolchainError where there is no matplotlib."""
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"{str(path)!r} is no picture's name", hint=f"it ends with {' or '.join(_SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ToolchainError(
            "a picture needs matplotlib, which is not installed", hint="get it with: pip install 'ptxc[compare]'"
        ) from error


def draw(comparisons: Sequence[Comparison], form: str) -> bytes:
    """A file of the format ``svg`` or ``png`` with four clouds of points, one for each kernel built by both."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = [row for row in comparisons if row.both]
    figure = Figure(figsize=(12, 8), layout="constrained")
    panels: Sequence[tuple[str, str, _Figure, _Figure]] = (
        ("registers of a thread", "nvcc's registers", _of(lambda build: build.resources.registers), _registers),
        ("SASS for a unit of work, hottest loop", "nvcc's instructions for it", _theirs_per_work, _per_work),
        ("SASS in all", "nvcc's instructions", _of(lambda build: build.code.size), _size),
        ("CPU time to PTX", "lines of ptxc's PTX", _lines, _seconds),
    )
    for axes, panel in zip(figure.subplots(2, 2).flat, panels, strict=True):
        _panel(axes, rows, *panel)
    handles, labels = figure.axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels) or 1, title="unit of work")
    file = io.BytesIO()
    # The same rows make the same file: no date in it, no names at random.
    with matplotlib.rc_context({"svg.hashsalt": "ptxc"}):
        figure.savefig(file, format=form, dpi=120, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


type _Figure = Callable[[Comparison, Build, Build], float]


def _panel(axes: Axes, rows: Sequence[Comparison], title: str, below: str, x: _Figure, y: _Figure) -> None:
    for unit, colour in _COLOURS.items():
        points = [(x(row, *row.both), y(row, *row.both)) for row in rows if row.both and row.unit is unit]
        if points:
            across, up = zip(*points, strict=True)
            axes.scatter(across, up, s=14, color=colour, alpha=0.6, label=str(unit))
    axes.axhline(1, color="black", linewidth=0.8)
    ratio = "nvcc / ptxc" if y is _seconds else "ptxc / nvcc"
    axes.set(xscale="log", yscale="log", title=title, xlabel=below, ylabel=ratio)
    axes.grid(alpha=0.3)
    for axis in (axes.xaxis, axes.yaxis):  # 0.6, not 6 x 10^-1
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}" if axis is axes.yaxis else "")


def _of(figure: Callable[[Build], float]) -> _Figure:
    """nvcc's figure."""
    return lambda row, ours, theirs: figure(theirs)


def _registers(row: Comparison, ours: Build, theirs: Build) -> float:
    return ours.resources.registers / theirs.resources.registers


def _theirs_per_work(row: Comparison, *_: Any) -> float:
    region = row.hottest[1]
    return region.per_work(row.unit) if region else 1.0


def _per_work(row: Comparison, *_: Any) -> float:
    return row.per_work or 1.0


def _size(row: Comparison, ours: Build, theirs: Build) -> float:
    return ours.code.size / theirs.code.size


def _lines(row: Comparison, ours: Build, theirs: Build) -> float:
    return ours.ptx_lines


def _seconds(row: Comparison, ours: Build, theirs: Build) -> float:
    return theirs.ptx_seconds / ours.ptx_seconds
