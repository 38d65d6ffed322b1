"""Writes a folder of kernels to be checked and timed on a GPU elsewhere. It needs no GPU, but nvcc and ptxas.

    python benchmarks/gpu/prepare.py FOLDER [--target sm_90a] [--only TEXT ...] [--jobs N]

The folder holds `run.py` with the few files that it needs, and for each case PTX and cubins of ptxc's build and of
nvcc's build of Emmy's CUDA text, how to launch them, and what is expected. Inputs are not stored: a formula makes them
(`cases.contents`), and the manifest has their hashes.

The cases are the 15 problems of ../shared/bench15 in full sizes, each under the first, the middle and the last of its
schedules, and the kernels of ../shared/emmy-corpus that `kernels.txt` lists, which says how they were chosen. What is
expected comes from Emmy's NumPy evaluation of a problem's program in float64, and for a kernel of the corpus from the
Kernel IR, evaluated in float64 for four of its CTAs, or for all where they add to one another's results.

Exit status: 0, 1 where a case could not be prepared or the folder is too large, 2 where something is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(HERE.parent)]

from cases import BUILDS, MANIFEST, MOST_BYTES, contents  # noqa: E402
from shared import SHARED  # noqa: E402
from tolerances import of_kernel  # noqa: E402

import ptxc  # noqa: E402
from ptxc.errors import CompileError, UnsupportedError  # noqa: E402
from ptxc.frontend.reader import kernel_nodes, read_graph  # noqa: E402
from ptxc.launch import LaunchParameter, TensorMap  # noqa: E402
from ptxc.reference.buffers import Array, Buffer, Problem, extents, problem_of  # noqa: E402
from ptxc.reference.emmy import compile_cuda, cuda_kernels, evaluate_program, suffixed  # noqa: E402
from ptxc.reference.evaluator import evaluate_kernels  # noqa: E402
from ptxc.reference.sample import ALL, Sample  # noqa: E402
from ptxc.reference.steps import Step, in_order, steps_of  # noqa: E402
from ptxc.toolchain import assemble, find_tool, run_timed  # noqa: E402

PACKAGE = Path(ptxc.__file__).resolve().parent
BENCH15, CORPUS = SHARED / "bench15", SHARED / "emmy-corpus"

#: The files that a prepared folder needs to run, and where they are.
PARTS = {
    "run.py": HERE / "run.py",
    "cases.py": HERE / "cases.py",
    **{f"ptxc/{name}": PACKAGE / name for name in ("__init__.py", "errors.py", "version.py", "device/__init__.py")},
    **{f"ptxc/device/{name}": PACKAGE / "device" / name for name in ("gpu.py", "worker.py")},
}

#: Whose schedules of a problem are taken.
SCHEDULED_FOR = "sm_90"
#: The error of a problem in its full size, in which sums of a million elements are made one after the other.
PROBLEM_TOLERANCE = 5e-5
#: How many CTAs of a kernel of the corpus are evaluated.
CTAS = 4
#: Of an output with more elements than this that are known, so many are kept.
MOST_EXPECTED = 1 << 20
#: What tells features of the hardware in PTX.
FEATURES = {"wgmma": "wgmma.mma_async", "tma": "cp.async.bulk.tensor", "mma": "mma.sync", "cp.async": "cp.async.c"}


@dataclass(frozen=True)
class Chosen:
    """What becomes a case: files of kernels that are launched one after the other."""

    name: str
    group: str
    files: tuple[Path, ...]
    integers: Mapping[str, int]
    #: What the expected elements are called, and the program that they come from; none: they come from Kernel IR.
    expected: str
    program: Path | None = None


# ---------------------------------------------------------------------------------------------------------- choosing


def problems() -> Iterator[Chosen]:
    """The 15 problems in full sizes, each under the first, the middle and the last of its schedules."""
    launches = json.loads((BENCH15 / "MANIFEST.json").read_text())["launches"]
    full = [row for row in launches if row["size"].startswith("full") and row["target"] == SCHEDULED_FOR]
    for (problem, size), group in groupby(full, key=lambda row: (row["problem"], row["size"])):
        rows = list(group)
        for at in sorted({0, len(rows) // 2, len(rows) - 1}):
            files = tuple(BENCH15 / name for name in rows[at]["sequence"])
            name = f"{problem}.{size}"
            program = BENCH15 / "programs" / f"{name}.json"
            yield Chosen(f"{name}.{rows[at]['variant']}", "bench15", files, {}, name, program)


def corpus() -> Iterator[Chosen]:
    """The kernels of the corpus that ``kernels.txt`` lists."""
    lines = (HERE / "kernels.txt").read_text().splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    for line in (CORPUS / "MANIFEST.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["file"] in listed:
            name = f"{row['card']}.{row['file'].split('.')[1]}.{row['kernel']}"
            yield Chosen(name, "corpus", (CORPUS / row["file"],), row["bindings"], name)


# --------------------------------------------------------------------------------------------------------- preparing


class Preparation:
    """The folder that is being written."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder, self.target = folder, target
        self.files: dict[str, str] = {}
        self._known: dict[str, dict[str, dict[str, Any]]] = {}

    def write(self, name: str, data: bytes) -> str:
        """Write a file; returns its name."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.files[name] = hashlib.sha256(data).hexdigest()
        return name

    def forget(self, case: str) -> None:
        """Remove what was written of a case that failed."""
        shutil.rmtree(self.folder / case, ignore_errors=True)
        self.files = {name: digest for name, digest in self.files.items() if not name.startswith(f"{case}/")}

    def case(self, chosen: Chosen, pool: ThreadPoolExecutor) -> dict[str, Any]:
        """Prepare a case: what the manifest says of it. Raises CompileError."""
        kernels = [kernel for file in chosen.files for kernel in ptxc.compile(file, target=self.target)]
        steps = steps_of(kernels)
        problem, fills = problem_for(steps, chosen.integers)
        texts = {kernel.name: (kernel.ptx, kernel.target) for kernel in kernels}
        built = {"ptxc": [(step, *texts[step.entry]) for step in steps], "nvcc": self._with_nvcc(chosen, problem, pool)}
        builds = {who: self._build(f"{chosen.name}/{who}", parts, problem, pool) for who, parts in built.items()}
        return {
            "name": chosen.name,
            "group": chosen.group,
            "features": [name for name, sign in FEATURES.items() if any(sign in kernel.ptx for kernel in kernels)],
            "buffers": {name: self._buffer(problem, name, fills) for name in problem.buffers},
            "builds": builds,
            "outputs": self._outputs(chosen, problem, steps),
        }

    def _with_nvcc(self, chosen: Chosen, problem: Problem, pool: ThreadPoolExecutor) -> list[tuple[Step, str, str]]:
        """nvcc's kernels: step, PTX, target."""
        kernels = [kernel for file in chosen.files for kernel in cuda_kernels(read_graph(file), self.target, problem)]
        targets = [suffixed(self.target, kernel.specific) for kernel in kernels]
        texts = [done[0] for done in pool.map(compile_cuda, [kernel.source for kernel in kernels], targets)]
        order = in_order([kernel.step for kernel in kernels])
        found = [(kernel.step, text, target) for kernel, text, target in zip(kernels, texts, targets, strict=True)]
        return sorted(found, key=lambda part: order.index(part[0]))

    def _build(
        self, name: str, parts: Sequence[tuple[Step, str, str]], problem: Problem, pool: ThreadPoolExecutor
    ) -> dict[str, Any]:
        """Assemble and write a build."""
        assemblies = pool.map(assemble, [ptx for _, ptx, _ in parts], [target for *_, target in parts])
        modules = [
            {"ptx": self.write(f"{name}.{at}.ptx", ptx.encode()), "cubin": self.write(f"{name}.{at}.cubin", made.cubin)}
            for at, ((_, ptx, _), made) in enumerate(zip(parts, assemblies, strict=True))
        ]
        return {"modules": modules, "launches": [launch_of(step, at, problem) for at, (step, *_) in enumerate(parts)]}

    def _buffer(self, problem: Problem, name: str, fills: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """A buffer, and the hash of what it holds at first."""
        buffer = problem.buffers[name]
        made = {"dtype": buffer.dtype, "shape": buffer.shape, "fill": fills.get(name) or _fill(problem, buffer)}
        return {**made, "sha256": hashlib.sha256(contents(made).tobytes()).hexdigest()}

    def _outputs(self, chosen: Chosen, problem: Problem, steps: Sequence[Step]) -> dict[str, dict[str, Any]]:
        """What is expected, which is the same for all schedules of a problem. Raises CompileError."""
        if chosen.expected not in self._known:
            arrays, tolerance = _reference(chosen, problem, steps)
            kept: dict[str, Array] = {}
            for name, array in arrays.items():
                kept |= _kept(name, array, problem.buffers[name].dtype)
            file = f"expected/{chosen.expected}.npz"
            (self.folder / "expected").mkdir(exist_ok=True)
            np.savez_compressed(self.folder / file, allow_pickle=False, **kept)
            self.write(file, (self.folder / file).read_bytes())
            self._known[chosen.expected] = {
                name: {"file": file, "dtype": problem.buffers[name].dtype, "tolerance": tolerance, "absolute": 0.0}
                for name in arrays
            }
        return self._known[chosen.expected]

    def finish(self, cases: Sequence[dict[str, Any]]) -> int:
        """Write the rest; how many bytes the folder has."""
        for name, path in PARTS.items():
            self.write(name, path.read_bytes())
        tools = {tool: run_timed([str(find_tool(tool)), "--version"], 30.0)[1].split("\n")[-2] for tool in _TOOLS}
        tools |= {"ptxc": ptxc.__version__, "emmy-ml": version("emmy-ml"), "numpy": np.__version__}
        manifest = {"target": self.target, "tools": tools, "files": self.files, "cases": list(cases)}
        (self.folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


_TOOLS = ("nvcc", "ptxas")


# ----------------------------------------------------------------------------------------------------- buffers


def problem_for(steps: Sequence[Step], integers: Mapping[str, int]) -> tuple[Problem, dict[str, dict[str, Any]]]:
    """The memory of a case, and how the inputs that a formula makes are filled. Raises CompileError."""
    written = {name for step in steps for name in step.names("output", "zero")}
    parameters = [parameter for step in steps for parameter in step.launch.parameters]
    fills, given = {}, {}
    for parameter in parameters:
        if parameter.role == "input" and parameter.name not in written:
            fills[parameter.name] = fill = _numbers(parameter, extents(parameter.shape, integers))
            buffer = {"dtype": parameter.dtype, "shape": extents(parameter.shape, integers), "fill": fill}
            given[parameter.name] = contents(buffer)
    return problem_of(steps, integers, given), fills


def _numbers(parameter: LaunchParameter, shape: tuple[int, ...]) -> dict[str, Any]:
    """Random numbers. Those of matrices are small, so that sums of products are about 1: an exponential multiplies the
    roundoff of what it is taken of by its size."""
    matrix = len(shape) > 1 and max(shape) > 64 and parameter.dtype not in ("f8e4m3", "f8e5m2")
    width = 2.0 ** round(math.log2(2 * math.sqrt(3 / max(shape)))) if matrix else 1.0
    return {"kind": "numbers", "seed": zlib.crc32(parameter.name.encode()), "width": width}


def _fill(problem: Problem, buffer: Buffer) -> dict[str, Any]:
    """How a buffer is filled that is no input: a constant, or an output."""
    if buffer.name in problem.begin:
        return {"kind": "bytes", "bytes": problem.begin[buffer.name].tobytes().hex()}
    return {"kind": "zeros" if buffer.zeroed else "unwritten"}


# ----------------------------------------------------------------------------------------------------- launches


def launch_of(step: Step, module: int, problem: Problem) -> dict[str, Any]:
    """A launch with numbers for expressions. Raises UnsupportedError for what `run.py` does not pass."""
    launch = step.launch
    if any(integer.serial for integer in launch.runtime):
        raise UnsupportedError("launches are counted", kernel=step.entry)
    maps = {item.name: item for item in launch.tensor_maps}
    return {
        "module": module,
        "entry": step.entry,
        "grid": extents(launch.grid, problem.integers),
        "block": launch.block,
        "shared": launch.dynamic_shared,
        "arguments": [_argument(parameter, maps, problem) for parameter in launch.parameters],
        "zero": launch.zero,
    }


def _argument(parameter: LaunchParameter, maps: Mapping[str, TensorMap], problem: Problem) -> tuple[str, Any]:
    if parameter.role == "runtime":
        return "value", problem.integers[parameter.name].to_bytes(4, "little").hex()
    if parameter.role == "tensor_map":
        item = maps[parameter.name]
        dims, strides = extents(item.dims, problem.integers), extents(item.strides, problem.integers)
        named = {"buffer": item.buffer, "data_type": item.data_type, "swizzle": item.swizzle}
        return "map", {
            **named,
            "dims": dims,
            "strides": strides,
            "box": item.box,
            "element_strides": item.element_strides,
        }
    if parameter.role not in ("input", "output", "constant", "zero"):
        raise UnsupportedError(f"the parameter {parameter.name!r} is of the kind {parameter.role!r}")
    return "address", parameter.name


# ----------------------------------------------------------------------------------------------------- what is expected


def _reference(chosen: Chosen, problem: Problem, steps: Sequence[Step]) -> tuple[dict[str, Array], float]:
    """What outputs should hold in float64, NaN where that is not known, and how far an element may be off."""
    if chosen.program is not None:
        values = evaluate_program(chosen.program.read_bytes(), problem)
        return {
            buffer.name: values[buffer.name] for buffer in problem.written if buffer.name in values
        }, PROBLEM_TOLERANCE
    ops = {node.name: node.op for node in kernel_nodes(read_graph(chosen.files[0]))}
    kernels = [ops[step.entry] for step in steps]
    sample = ALL if any(step.launch.zero for step in steps) else Sample(CTAS)
    found = evaluate_kernels(kernels, problem, sample=sample)
    if found.faults:
        raise UnsupportedError(f"the Kernel IR leaves its buffers: {found.faults[0]}")
    outputs = {buffer.name: buffer.dtype for buffer in problem.written}
    tolerance = max(of_kernel(op, outputs.values(), problem.arrays()) for op in kernels)
    return dict(found.outputs), tolerance


def _kept(name: str, array: Array, dtype: str) -> dict[str, Array]:
    """The arrays that say what is expected of an output: values, and their places unless they are all.

    Of more than a million elements those of a stride are kept.
    """
    flat = array.reshape(-1)
    places = np.flatnonzero(~np.isnan(flat)) if flat.dtype.kind == "f" else np.arange(flat.size)
    if not places.size:
        raise UnsupportedError(f"nothing is known of the output {name!r}")
    places = places[:: -(-places.size // MOST_EXPECTED)]
    values = flat[places].astype(np.float64 if dtype in ("f64", "i64", "u64") else np.float32)
    if places.size == flat.size:
        return {f"{name}.values": values}
    return {f"{name}.values": values, f"{name}.places": places.astype(np.int32 if flat.size < 1 << 31 else np.int64)}


# ----------------------------------------------------------------------------------------------------------- running


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder to write, which must not be there")
    parser.add_argument(
        "--target", default="sm_90a", metavar="SM", help="the GPU's architecture (default: %(default)s)"
    )
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="only cases whose name contains TEXT, or one of"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="compilers at a time (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    chosen = [item for item in (*problems(), *corpus()) if any(text in item.name for text in args.only or [""])]
    try:
        for tool in _TOOLS:
            find_tool(tool)
        args.folder.mkdir(parents=True)
    except (CompileError, OSError) as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return 2
    preparation, cases, failed = Preparation(args.folder, args.target), [], 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for item in chosen:
            start = time.monotonic()
            try:
                cases.append(preparation.case(item, pool))
            except CompileError as error:
                failed += 1
                preparation.forget(item.name)
                print(f"prepare.py: {item.name}: {error}", file=sys.stderr)
                continue
            print(f"{item.name} ({time.monotonic() - start:.1f} s)", flush=True)
    size = preparation.finish(cases)
    print(f"{len(cases)} cases of {len(BUILDS)} builds, {size:,} bytes")
    return int(bool(failed) or size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
