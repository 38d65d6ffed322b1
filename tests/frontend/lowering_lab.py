"""Small kernels of Emmy's statements, compiled and executed: what the tests of the lowering are made with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from emmy.compiler.graph import Graph, Hints
from emmy.compiler.ir import stmt as _stmt
from emmy.compiler.ir.base import ConstantOp, InputOp
from emmy.compiler.ir.expr import Var
from emmy.compiler.ir.kernel import ir as _kernel
from kernel_ir import KernelOp, Load, Spec, Write, lit, tensor, tile
from numpy.typing import NDArray

import ptxc
from ptxc.compilation import CompiledKernel
from ptxc.errors import CompileError, InternalError
from ptxc.launch import Launch, LaunchParameter, evaluate
from ptxc.reference.emmy import compile_cuda, cuda_texts
from ptxc.sim.device import CpuDevice

Array = NDArray[Any]
#: NumPy's types for buffers; bfloat16, fp8 and fp4 are their bits.
DTYPES = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
    "f8e4m3": np.uint8, "f8e5m2": np.uint8, "f4e2m1x2": np.uint8,
}  # fmt: skip

SANITIZERS = ("memory", "race", "init", "sync")


# ------------------------------------------------------------------------------------------------------ building


def kernel_graph(
    body: Any, inputs: Mapping[str, Spec], outputs: Mapping[str, Spec], *,
    hints: Mapping[str, Any] | None = None, constants: Mapping[str, Any] | None = None, name: str = "k", **fields: Any,
) -> Graph:  # fmt: skip
    """A graph of one kernel. ``constants`` are the values of inputs that are scalar constants."""
    graph = Graph()
    for buffer, spec in inputs.items():
        known = constants is not None and buffer in constants
        made = ConstantOp(name=buffer, value=(constants or {})[buffer]) if known else InputOp()
        graph.add_node(made, [], output=tensor(buffer, spec), node_id=buffer)
    tensors = tuple(tensor(buffer, spec) for buffer, spec in outputs.items())
    stmts = _stmt.Body((body,) if isinstance(body, _kernel.Tile) else tuple(body))
    first = next(iter(outputs))
    graph.add_node(KernelOp(body=stmts, name=name, **fields), [*inputs], outputs=tensors, node_id=first)
    graph.inputs, graph.outputs = [*inputs], [*outputs]
    if hints:
        graph.hints = Hints.from_dict(dict(hints))
    return graph


#: The cell, its element of ``x``, and its element of ``y``.
AT = Var("i")
LOAD, WRITE = Load("a", "x", (AT,)), Write("y", (AT,), "a")


def pointwise(*stmts: Any, inputs: Any = None, outputs: Any = None, threads: int | None = 64, **fields: Any) -> Graph:
    """A kernel over 64 cells whose tile holds ``LOAD``, the statements and ``WRITE``."""
    body = tile({"i": 64}, [LOAD, *stmts, WRITE], threads)
    return kernel_graph(body, inputs or {"x": (64,)}, outputs or {"y": (64,)}, **fields)


# ------------------------------------------------------------------------------------------------------ running


def compiled(graph: Graph, target: str = "sm_90", **options: Any) -> CompiledKernel:
    """The one kernel of a graph, compiled with the verifier on."""
    options.setdefault("verify_each", True)
    (kernel,) = ptxc.compile(graph, target=target, **options)
    return kernel


def run(
    graph: Graph, arrays: Mapping[str, Any], target: str = "sm_90", *, device: CpuDevice | None = None,
    sanitize: Iterable[str] = SANITIZERS, **options: Any,
) -> dict[str, Array]:  # fmt: skip
    """What the kernel of ``graph`` writes, given its inputs; the CPU device must find nothing wrong."""
    kernel = compiled(graph, target, **options)
    assert kernel.launch is not None
    return launch(kernel.ptx, kernel.name, kernel.launch, arrays, sanitize, device)


def launch(
    ptx: str, name: str, description: Launch, arrays: Mapping[str, Any], sanitize: Iterable[str] = SANITIZERS,
    device: CpuDevice | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Execute an entry. ``arrays`` holds inputs, runtime integers, and whatever else parameters stand for."""
    given = dict(arrays)
    sizes = {item.name: _size(item.name, item.sizes, given) for item in description.runtime}
    outputs: dict[str, Array] = {}
    for parameter in description.parameters:
        if parameter.role in ("output", "zero") and parameter.name not in given:
            outputs[parameter.name] = _fresh(parameter, sizes, parameter.name in description.zero)
    module = (device or CpuDevice()).load(ptx)
    result = module.launch(
        name,
        [evaluate(extent, sizes) for extent in description.grid],
        description.block,
        [_argument(p, given, outputs, sizes) for p in description.parameters],
        shared=description.dynamic_shared,
        sanitize=tuple(sanitize),
    )
    assert not result.findings, "\n".join(map(str, result.findings))
    assert result.completed
    return outputs | {name: given[name] for name in (p.name for p in description.parameters) if name in given}


def _size(name: str, places: Sequence[tuple[str, int]], given: Mapping[str, Any]) -> int:
    if name in given:
        return int(given[name])
    found = {given[buffer].shape[at] for buffer, at in places if buffer in given}
    assert len(found) == 1, f"{name} is {sorted(found)}"
    return int(found.pop())


def _fresh(parameter: LaunchParameter, sizes: dict[str, int], zero: bool) -> Array:
    kind = np.dtype(DTYPES[parameter.dtype])
    shape = [evaluate(extent, sizes) for extent in parameter.shape]
    return np.full(shape, 0 if zero else np.nan if kind.kind == "f" else 77, kind)


def _argument(
    parameter: LaunchParameter, given: dict[str, Any], outputs: dict[str, Array], sizes: dict[str, int]
) -> Any:
    if parameter.role == "runtime":
        return sizes[parameter.name]
    if parameter.name in outputs:
        return outputs[parameter.name]
    if parameter.role == "constant" and parameter.name not in given:
        number = evaluate(parameter.value, sizes) if isinstance(parameter.value, str) else parameter.value
        return np.full([evaluate(extent, sizes) for extent in parameter.shape], number, DTYPES[parameter.dtype])
    value = given[parameter.name]
    if isinstance(value, np.ndarray) and parameter.role == "input":
        value = np.ascontiguousarray(value, DTYPES[parameter.dtype]).view()
        value.flags.writeable = False
    return value


def refused(make: Callable[[], Graph], target: str = "sm_90") -> CompileError:
    """The error of a kernel that ptxc must refuse: one line, and not ptxc's own fault."""
    graph = make()
    try:
        compiled(graph, target)
    except CompileError as caught:
        error = caught
    else:
        raise AssertionError("it is compiled")
    assert not isinstance(error, InternalError), error
    assert error.exit_status == 2
    text = str(error)
    assert "\n" not in text
    assert "Error" not in text
    assert len(text) < 600
    assert error.kernel
    return error


# -------------------------------------------------------------------------------------------- Emmy's own kernel


def run_emmy(
    graph: Graph, arrays: Mapping[str, Any], target: str = "sm_90", *, device: CpuDevice | None = None
) -> dict[str, Array]:
    """What nvcc's PTX for Emmy's CUDA text of the same kernel writes. Needs nvcc."""
    kernel = compiled(graph, target)
    assert kernel.launch is not None
    (text,) = cuda_texts(graph, target)
    return launch(nvcc_ptx(text.source, target), kernel.name, kernel.launch, arrays, ("memory",), device)


@cache
def nvcc_ptx(source: str, target: str) -> str:
    """nvcc's PTX for CUDA text."""
    return compile_cuda(source, target)[0]


# ---------------------------------------------------------------------------------------- many cases in one kernel


class Cases:
    """Pointwise cases, each some statements and the name of their result, all in one kernel over ``count`` cells.

    Inputs are arrays of one element a cell; a statement reads them at the axis ``i``. Results are stored as ``kind``.
    """

    def __init__(self, count: int, inputs: Mapping[str, tuple[str, Array]]) -> None:
        self.count = count
        self.inputs = inputs
        self._stmts: list[Any] = [Load(name, f"in_{name}", (Var("i"),)) for name in inputs]
        self._results: dict[str, list[tuple[str, str]]] = {}
        self._expected: dict[str, Array] = {}
        #: How far a result may be off, relative and absolute.
        self._near: dict[str, tuple[float, float]] = {}
        self._names = 0

    def fresh(self) -> str:
        """A name for a value."""
        self._names += 1
        return f"v{self._names}"

    def add(self, label: str, stmts: Iterable[Any], result: str, kind: str, expected: Any, near: float = 0.0) -> None:
        """One case, whose result must equal ``expected``, or be as near to it, relative to it or to 1."""
        self._stmts += stmts
        self._results.setdefault(kind, []).append((label, result))
        assert label not in self._expected, label
        self._expected[label] = np.broadcast_to(np.asarray(expected), (self.count,))
        self._near[label] = (near, near)

    def graph(self) -> Graph:
        writes = [
            Write(f"out_{kind}", (lit(at), Var("i")), result)
            for kind, rows in self._results.items()
            for at, (_, result) in enumerate(rows)
        ]
        buffers = {f"in_{name}": ((self.count,), kind) for name, (kind, _) in self.inputs.items()}
        outputs = {f"out_{kind}": ((len(rows), self.count), kind) for kind, rows in self._results.items()}
        return kernel_graph(tile({"i": self.count}, [*self._stmts, *writes]), buffers, outputs)

    def check(self, runner: Callable[..., dict[str, Array]] | None = None, **options: Any) -> None:
        """Execute, by ptxc's PTX or what ``runner`` makes, and compare every case."""
        got = (runner or run)(
            self.graph(), {f"in_{name}": array for name, (_, array) in self.inputs.items()}, **options
        )
        wrong = []
        for kind, rows in self._results.items():
            for at, (label, _) in enumerate(rows):
                wrong += self._compare(label, kind, got[f"out_{kind}"][at])
        assert not wrong, "\n".join(wrong)

    def _compare(self, label: str, kind: str, got: Array) -> list[str]:
        expected, (relative, absolute) = self._expected[label], self._near[label]
        if kind == "bf16":
            got = of_bfloat(got)
        if np.allclose(got.astype(np.float64), expected.astype(np.float64), relative, absolute, equal_nan=True) and (
            relative or np.array_equal(got, expected.astype(got.dtype), equal_nan=got.dtype.kind == "f")
        ):
            return []
        at = int(np.flatnonzero(~np.isclose(got, expected, relative, absolute, equal_nan=True))[:1].sum())
        inputs = {name: array[at] for name, (_, array) in self.inputs.items()}
        return [f"{label}: {got[at]}, not {expected[at]}, for {inputs}"]


def of_bfloat(bits: Array) -> NDArray[np.float32]:
    """The numbers that bfloat16 bits spell."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat(numbers: Array) -> NDArray[np.uint16]:
    """Numbers as bfloat16 bits, to nearest even."""
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


#: The integer types.
INTEGERS = ("u8", "i16", "u16", "i32", "u32", "i64", "u64")


def bits_of(kind: str) -> int:
    return int(kind[1:])


def wrap(value: Any, kind: str) -> Array:
    """Python integers wrapped into an integer type."""
    width = bits_of(kind)
    masked = [int(v) & ((1 << width) - 1) for v in value]
    if kind.startswith("i"):
        masked = [v - (1 << width) if v >> (width - 1) else v for v in masked]
    return np.array(masked, DTYPES[kind])


def integers(kind: str, seed: int, count: int = 64) -> Array:
    """Integers of a type: any, small ones and those at the ends."""
    random = np.random.default_rng(seed)
    info = np.iinfo(DTYPES[kind])
    small = random.integers(max(-9, info.min), 10, count)
    whole = random.integers(info.min, info.max, count, DTYPES[kind], endpoint=True)
    ends = np.array([info.min, info.max], whole.dtype)[random.integers(0, 2, count)]
    return np.choose(random.integers(0, 3, count), [whole, small.astype(whole.dtype), ends])
