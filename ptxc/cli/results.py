"""What a run gave: outputs, comparisons, findings, profiles; as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ptxc.cli.jsontext import dumps
from ptxc.cli.messages import printable, table
from ptxc.reference.buffers import Array, Problem, decoded, described
from ptxc.reference.codes import unpacked4
from ptxc.reference.compare import Difference, Tolerance, compare
from ptxc.reference.execution import Launched
from ptxc.sim.findings import Finding
from ptxc.sim.profile import LineProfile, Profile, Traffic

#: Lines that a profile's table shows.
_HOTTEST = 10


@dataclass(frozen=True)
class Listing:
    """The lines of the kernels' PTX texts, and the Kernel IR statements of lines, where they are known."""

    lines: Mapping[str, list[str]]
    #: What finds the statements: it compiles the kernels once more where they were kept.
    find: Callable[[], Mapping[int, str]]

    @cached_property
    def statements(self) -> Mapping[int, str]:
        """The statement of a line, for the lines that come from one."""
        return self.find()

    def ptx(self, kernel: str, line: int) -> str:
        """A line of a kernel's text; nothing where there is no such line."""
        lines = self.lines.get(kernel, [])
        return printable(lines[line - 1]) if 0 < line <= len(lines) else ""

    def finding_text(self, kernel: str, finding: Finding) -> str:
        """A finding with the line and the statement at fault."""
        parts = [f"{kernel}: {printable(str(finding))}"]
        ptx, statement = self.ptx(kernel, finding.line), self.statements.get(finding.line)
        if ptx:
            parts.append(f"  {finding.line} | {ptx}")
        if ptx and statement:
            parts.append(f"  {' ' * len(str(finding.line))} | {printable(statement)}")
        return "\n".join(parts)

    def finding_dict(self, kernel: str, finding: Finding) -> dict[str, Any]:
        """A finding as JSON takes it."""
        where = {"ptx": self.ptx(kernel, finding.line), "statement": self.statements.get(finding.line, "")}
        return {"kernel": kernel, **asdict(finding), **where}


class Report:
    """A run's results; ``checks`` are those that were on, ``gpu`` is the GPU's name if one executed the kernels."""

    def __init__(
        self,
        problem: Problem,
        arrays: Mapping[str, Array],
        listing: Listing,
        launched: list[Launched],
        checks: Iterable[str],
        gpu: str = "",
    ) -> None:
        self.gpu = gpu
        self.problem, self.arrays, self.listing, self.launched = problem, arrays, listing, launched
        self.checks = [name for name in ("memory", "race", "init", "sync") if name in set(checks)]
        self.findings = [(launch.step.entry, found) for launch in launched for found in launch.result.findings]
        self.completed = all(launch.result.completed for launch in launched)
        self.differences: list[Difference] = []

    @property
    def status(self) -> int:
        """The exit status: 1 where something is wrong."""
        return int(bool(self.findings) or not self.completed or any(d.wrong for d in self.differences))

    def outputs(self) -> dict[str, Array]:
        """What the kernels wrote."""
        return {buffer.name: _plain(self.arrays[buffer.name]) for buffer in self.problem.written}

    def unwritten(self) -> Iterator[tuple[str, int, int]]:
        """Outputs with elements that were never written: the name, how many, of how many."""
        for buffer in self.problem.written:
            written = self.problem.is_written(buffer.name, self.arrays[buffer.name])
            if not written.all():
                yield buffer.name, int(written.size - written.sum()), written.size

    def compare(self, expected: Mapping[str, Array], tolerance: Tolerance, *, sampled: bool) -> None:
        """Compare with what outputs should hold; of a sample of the CTAs only what these wrote."""
        for name, array in expected.items():
            where = self.problem.is_written(name, self.arrays[name]) if sampled else None
            dtype = self.problem.buffers[name].dtype
            self.differences.append(compare(name, self.arrays[name], array, dtype, tolerance, where))

    # ---------------------------------------------------------------------------------------------------- text

    def text(self) -> str:
        """The report for people."""
        parts = [self._launches(), self._buffers()]
        if self.differences:
            parts.append(differences_table([((d.name,), d) for d in self.differences], ("output",)))
        parts += [self.listing.finding_text(kernel, finding) for kernel, finding in self.findings]
        for launch in self.launched:
            if launch.result.profile is not None:
                parts.append(self._profile(launch.step.entry, launch.result.profile))
        return "\n\n".join([*parts, self._verdict()])

    def _launches(self) -> str:
        rows = [("kernel", "grid", "block", "CTAs run", "median µs" if self.gpu else "instructions of threads")]
        for launch in self.launched:
            statistics, timing = launch.result.statistics, launch.timing
            grid, block = _extents(launch.grid), _extents(launch.step.launch.block)
            last = f"{statistics.instructions:,}"
            if self.gpu:
                last = f"{timing.median:.2f}" if timing else ""
            rows.append((launch.step.entry, grid, block, f"{statistics.ctas}", last))
        return table(rows, right=(3, 4))

    def _buffers(self) -> str:
        rows: list[tuple[str, ...]] = [("buffer", "type", "", "least", "greatest", "mean")]
        for name, buffer in self.problem.buffers.items():
            figures: tuple[str, ...] = ("", "", "")
            if buffer.written:
                array = self.arrays[name]
                figures = _figures(_numbers(array[self.problem.is_written(name, array)], buffer.dtype))
            rows.append((name, described(buffer), self.problem.origins.get(name, "written"), *figures))
        return table(rows, right=(3, 4, 5))

    def _verdict(self) -> str:
        parts = [f"{d.name} differs in {d.wrong} of {d.elements} elements" for d in self.differences if d.wrong]
        if self.findings:
            parts.append(counted(len(self.findings), "finding"))
        if parts:
            return f"wrong: {', '.join(parts)}"
        checked = f"no findings ({', '.join(self.checks)})" if self.checks else "nothing was checked"
        checked = f"executed by {self.gpu}" if self.gpu else checked
        return f"right, {checked}" if self.differences else checked

    def _profile(self, kernel: str, profile: Profile) -> str:
        rows = [("kind", "warp instructions", "share", "active lanes")]
        for kind, (warps, threads) in profile.kinds().items():
            rows.append((kind, f"{warps:,}", _share(warps, profile.warps), f"{threads / max(warps, 1):.1f}"))
        rows.append(("total", f"{profile.warps:,}", "", f"{profile.active_lanes:.1f}"))
        memory: list[tuple[str, ...]] = [("memory", "requests", "", "ideal", "per request", "ideal")]
        for name, unit in (("global", "sectors"), ("shared", "passes")):
            traffic = profile.traffic(name)
            memory.append((name, f"{traffic.requests:,}", f"{traffic.taken:,} {unit}", *_ratios(traffic)))
        heading = ("line", "warp instructions", "share", "lanes", "sectors", "ideal", "passes", "ideal", "")
        hottest: list[tuple[str, ...]] = [
            heading,
            *(self._hot(kernel, line, profile.warps) for line in profile.hottest(_HOTTEST)),
        ]
        parts = (
            f"profile of {kernel}",
            table(rows, right=(1, 2, 3)),
            table(memory, right=(1, 2, 3, 4, 5)),
            table(hottest, right=range(8)),
        )
        return "\n\n".join(parts)

    def _hot(self, kernel: str, line: LineProfile, total: int) -> tuple[str, ...]:
        cells: list[str] = []
        for traffic in (line.global_memory, line.shared_memory):
            cells += [f"{traffic.taken:,}", f"{traffic.ideal:,}"] if traffic.requests else ["", ""]
        lanes = f"{line.threads / max(line.warps, 1):.1f}"
        text = self.listing.ptx(kernel, line.line) or line.instruction
        return (str(line.line), f"{line.warps:,}", _share(line.warps, total), lanes, *cells, text)

    # ---------------------------------------------------------------------------------------------------- JSON

    def json(self) -> str:
        """The report for programs."""
        kernels = [
            {
                "name": launch.step.entry,
                "grid": launch.grid,
                "block": launch.step.launch.block,
                "completed": launch.result.completed,
                "statistics": asdict(launch.result.statistics),
                "profile": launch.result.profile.to_dict() if launch.result.profile is not None else None,
                **({"microseconds": launch.timing.samples} if launch.timing else {}),
            }
            for launch in self.launched
        ]
        outputs = [{"name": b.name, "dtype": b.dtype, "shape": b.shape} for b in self.problem.written]
        report = {
            "right": not self.status,
            "device": self.gpu or "cpu",
            "checks": self.checks,
            "integers": self.problem.integers,
            "kernels": kernels,
            "outputs": outputs,
            "unwritten": {name: count for name, count, _ in self.unwritten()},
            "differences": [asdict(difference) for difference in self.differences],
            "findings": [self.listing.finding_dict(kernel, finding) for kernel, finding in self.findings],
        }
        return dumps(report)


# ------------------------------------------------------------------------------------------------------- pieces


def differences_table(rows: Iterable[tuple[tuple[str, ...], Difference]], heading: tuple[str, ...]) -> str:
    """Differences, each behind the cells that say what is compared."""
    lines = [(*heading, "elements", "wrong", "absolute", "relative", "ulp", "worst")]
    for cells, d in rows:
        got, expected = (f"{n}" if isinstance(n, int) else f"{n:.9g}" for n in (d.got, d.expected))
        place = f"{got}, not {expected}, at [{', '.join(map(str, d.place))}]" if d.place else ""
        figures = (f"{d.elements:,}", f"{d.wrong:,}", f"{d.absolute:.2e}", f"{d.relative:.2e}", f"{d.ulp:.1f}")
        lines.append((*cells, *figures, place))
    first = len(heading)
    return table(lines, right=range(first, first + 5))


def counted(count: int, what: str) -> str:
    """``1 finding``, ``2 findings``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _figures(numbers: Array) -> tuple[str, ...]:
    """The least and greatest of some numbers and their mean; dashes where there are none."""
    if not numbers.size:
        return ("-",) * 3
    with np.errstate(all="ignore"):
        wide = numbers.astype(np.float64)
        return tuple(f"{number:.6g}" for number in (wide.min(), wide.max(), wide.mean()))


def _plain(array: Array) -> Array:
    """An array whose elements of type bool are 0 or 1, even where nothing was written."""
    return array.view(np.uint8) != 0 if array.dtype == np.bool_ else array


def _numbers(array: Array, dtype: str) -> Array:
    """The numbers in an array, of a packed pair both."""
    return unpacked4(array) if dtype == "f4e2m1x2" else decoded(_plain(array), dtype)


def _extents(extents: Iterable[int]) -> str:
    x, y, z = extents
    return f"{x}" if y == z == 1 else f"{x}, {y}, {z}"


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else ""


def _ratios(traffic: Traffic) -> tuple[str, ...]:
    if not traffic.requests:
        return ("0", "", "")
    each = (traffic.taken / traffic.requests, traffic.ideal / traffic.requests)
    return (f"{traffic.ideal:,}", *(f"{ratio:.2f}" for ratio in each))
