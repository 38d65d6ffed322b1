"""Checks and times prepared kernels on a GPU: ptxc's builds beside nvcc's.

    python run.py [--json FILE] [--only TEXT] [--ptx] [--check]
                  [--deadline SECONDS] [--budget SECONDS] [--dry-run]

`prepare.py` writes the folder that this file lies in. It needs Python 3.12, NumPy and cuda-bindings; of ptxc only the
few files beside it in `ptxc/`.

Each case is one kernel, or several that are launched one after the other. Both builds run on the same inputs, which a
formula makes (`contents`), and what they write is compared with the expected elements and with one another. If both are
right they are timed in turn: events before and after each sample, the median of twenty, L2 filled with something else
before each. A kernel that hangs is ended after a deadline; no case is begun once the budget is spent.

--dry-run does all that needs no GPU: every file is there and is the one that was prepared, inputs come out as they did
there, arguments fit the entries.

Exit status: 0 if all is right, 1 if a case is wrong or was left out, 2 without a GPU or for a folder that is not whole.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
# With -I Python looks neither here nor for what a prepared folder has of ptxc.
sys.path.insert(0, str(HERE))

from cases import BUILDS, Array, Case, FolderError, check_case, check_files, decoded, read_manifest  # noqa: E402

from ptxc.device.gpu import GpuError  # noqa: E402
from ptxc.device.worker import Worker  # noqa: E402

#: Seconds that a launch may take, and all cases together.
DEADLINE, BUDGET = 10.0, 220.0


# ------------------------------------------------------------------------------------------------------- on the GPU


@dataclass
class Result:
    """What came of a case."""

    case: Case
    #: The largest error of each build, relative to the larger of an element and the root of their mean square.
    errors: dict[str, float] = field(default_factory=dict)
    #: The largest difference between the builds, over whole outputs.
    apart: float = 0.0
    #: Microseconds of each sample.
    times: dict[str, list[float]] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    left_out: bool = False

    @property
    def right(self) -> bool:
        """Whether both builds compute what they should."""
        return not self.messages and not self.left_out

    @property
    def medians(self) -> dict[str, float]:
        """The median time of each build."""
        return {build: statistics.median(samples) for build, samples in self.times.items()}

    @property
    def ratio(self) -> float | None:
        """ptxc's time in nvcc's."""
        return self.medians["ptxc"] / self.medians["nvcc"] if self.times else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        builds = {
            build: {
                "right": not self.left_out and build not in self.messages,
                "error": finite(self.errors.get(build)),
                "message": self.messages.get(build, ""),
                "us": self.medians.get(build),
                "samples_us": self.times.get(build, []),
            }
            for build in BUILDS
        }
        entry = self.case.entry
        return {
            "name": self.case.name, "group": entry["group"], "features": entry["features"], "right": self.right,
            "left_out": self.left_out, "builds": builds, "apart": finite(self.apart), "ratio": self.ratio,
            "message": self.messages.get("both", ""),
        }  # fmt: skip


def finite(number: float | None) -> float | str | None:
    """A number as JSON has it."""
    return number if number is None or math.isfinite(number) else str(number)


@dataclass(frozen=True)
class How:
    """How cases are run: what is loaded (``cubin`` or ``ptx``), whether they are timed too, seconds that a launch and
    that all cases may take."""

    kind: str
    timed: bool
    deadline: float
    budget: float


def run_case(case: Case, worker: Worker, how: How, deadline: float) -> Result:
    """Check both builds of a case, and time them if both are right."""
    result, buffers, found = Result(case), case.buffers(), {}
    for build in BUILDS:
        try:
            found[build] = worker.do(case.check_task(build, how.kind, buffers), deadline).arrays
        except GpuError as error:
            if error.kind in ("package", "driver", "gpu"):
                raise
            result.messages[build] = error.what
            continue
        _compare(result, build, found[build])
    if len(found) == len(BUILDS):
        _compare_builds(result, found)
    if result.right and how.timed:
        try:
            times = worker.do(case.timing_task(how.kind, buffers), deadline).times
            result.times = dict(zip(BUILDS, times, strict=True))
        except GpuError as error:
            result.messages["both"] = f"timing: {error.what}"
    return result


def _compare(result: Result, build: str, arrays: Mapping[str, Array]) -> None:
    """Compare what a build wrote with what is expected."""
    worst = 0.0
    for output, item in result.case.outputs.items():
        places, values = result.case.expected(output)
        got = decoded(arrays[output].reshape(-1)[places], item["dtype"])
        errors, scale = _errors(got, values)
        worst = max(worst, float(errors.max()))
        wrong = int((errors > item["tolerance"] + item["absolute"] / scale).sum())
        if wrong:
            at = int(errors.argmax())
            what = f"{output}[{places[at]}] is {got[at]:.7g}, not {values[at]:.7g}"
            result.messages[build] = f"{wrong} of {values.size} elements are wrong: {what}"
    result.errors[build] = worst


def _compare_builds(result: Result, found: Mapping[str, Mapping[str, Array]]) -> None:
    """Compare whole outputs of the two builds, the elements too of which nothing is expected."""
    for output, item in result.case.outputs.items():
        mine, other = (found[build][output].reshape(-1) for build in BUILDS)
        differ = np.flatnonzero(mine.view(f"u{mine.itemsize}") != other.view(f"u{other.itemsize}"))
        if not differ.size:
            continue
        a, b = (decoded(array, item["dtype"]) for array in (mine, other))
        finite_ones = b[np.isfinite(b)]
        scale = math.sqrt(np.mean(np.square(finite_ones))) if finite_ones.any() else 1.0
        with np.errstate(all="ignore"):
            errors = np.abs(a[differ] - b[differ]) / np.maximum(np.abs(b[differ]), scale)
        errors[~np.isfinite(errors)] = math.inf
        result.apart = max(result.apart, float(errors.max()))
        if (errors > 2 * (item["tolerance"] + item["absolute"] / scale)).any():
            at = int(differ[errors.argmax()])
            result.messages["both"] = f"{output}[{at}] is {a[at]:.7g} by ptxc and {b[at]:.7g} by nvcc"


def _errors(got: Array, expected: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Errors relative to the larger of an element and the root of their mean square, and that scale."""
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(expected), np.sqrt(np.mean(np.square(expected))))
        scale = np.where(scale > 0, scale, 1.0)
        errors = np.abs(got - expected) / scale
    errors[np.isnan(errors)] = math.inf
    return errors, scale


def run_all(cases: Iterable[Case], worker: Worker, how: How) -> Iterator[Result]:
    """The results of all cases, as they come; of those that the budget leaves no time for, that they were left out."""
    start = time.monotonic()
    for case in cases:
        left = how.budget - (time.monotonic() - start)
        yield (
            run_case(case, worker, how, min(how.deadline, max(left, 1.0))) if left > 0 else Result(case, left_out=True)
        )


# ----------------------------------------------------------------------------------------------------------- output


def line(result: Result) -> str:
    """A case as a line of the table."""
    medians, ratio = result.medians, result.ratio
    times = "".join(f"{medians[build]:10.2f}" if build in medians else f"{'':10}" for build in BUILDS)
    errors = "".join(f"{result.errors[build]:10.1e}" if build in result.errors else f"{'':10}" for build in BUILDS)
    said = "; ".join(f"{build}: {message}" for build, message in result.messages.items())
    verdict = "left out" if result.left_out else "right" if result.right else f"WRONG {said}"
    return f"{result.case.name[:56]:56}{times}{f'{ratio:8.2f}' if ratio else ' ' * 8}{errors}  {verdict}"


HEADING = f"{'case':56}{'ptxc µs':>10}{'nvcc µs':>10}{'ratio':>8}{'ptxc err':>10}{'nvcc err':>10}"


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """How many cases are right, and the geometric mean of the ratios."""
    ratios = [result.ratio for result in results if result.ratio]
    mean = math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None
    wrong = sum(not result.right and not result.left_out for result in results)
    return {
        "cases": len(results), "right": sum(result.right for result in results), "wrong": wrong,
        "left_out": sum(result.left_out for result in results), "timed": len(ratios), "ratio_geometric_mean": mean,
    }  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="do what needs no GPU")
    parser.add_argument(
        "--json", type=Path, default=Path("results.json"), metavar="FILE", help="(default: %(default)s)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    parser.add_argument("--ptx", action="store_true", help="have the driver assemble PTX, in place of cubins")
    parser.add_argument("--check", action="store_true", help="take no times")
    for name, seconds, what in (("deadline", DEADLINE, "what a launch may take"), ("budget", BUDGET, "all cases")):
        shown = f"{what} (default: {seconds:g})"
        parser.add_argument(f"--{name}", type=float, default=seconds, metavar="SECONDS", help=shown)
    parser.add_argument("--folder", type=Path, default=HERE, help=argparse.SUPPRESS)
    return parser.parse_args()


def dry_run(folder: Path, manifest: Mapping[str, Any], cases: Sequence[Case]) -> None:
    """Do what needs no GPU. Raises FolderError."""
    start = time.monotonic()
    size = check_files(folder, manifest)
    for case in cases:
        check_case(case)
    took = time.monotonic() - start
    print(f"{len(cases)} cases, {len(manifest['files'])} files, {size:,} bytes: whole ({took:.1f} s)")


def measure(manifest: Mapping[str, Any], cases: Sequence[Case], how: How, file: Path) -> int:
    """Run all cases, print the table, keep ``file`` up to date after each. Raises GpuError without a GPU."""
    start, worker = time.monotonic(), Worker()
    gpu = worker.describe()
    print(f"{gpu['name']}, {gpu['sm']}, CUDA {gpu['cuda']}; builds for {manifest['target']}\n{HEADING}")
    results: list[Result] = []
    for result in run_all(cases, worker, how):
        results.append(result)
        print(line(result), flush=True)
        report = {
            "gpu": gpu, "target": manifest["target"], "tools": manifest["tools"], "loaded": how.kind,
            "seconds": time.monotonic() - start, "summary": summary(results), "cases": [r.to_dict() for r in results],
        }  # fmt: skip
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    worker.close()
    print(", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in summary(results).items()))
    return int(not all(result.right for result in results))


def main() -> int:
    args = arguments()
    try:
        manifest = read_manifest(args.folder)
        cases = [Case(args.folder, entry) for entry in manifest["cases"] if args.only in entry["name"]]
        if args.dry_run:
            dry_run(args.folder, manifest, cases)
            return 0
        check_files(args.folder, manifest)
        how = How("ptx" if args.ptx else "cubin", not args.check, args.deadline, args.budget)
        return measure(manifest, cases, how, args.json)
    except (FolderError, GpuError) as error:
        what = f"no GPU to run on: {error.what}" if isinstance(error, GpuError) else error
        print(f"run.py: {what}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
