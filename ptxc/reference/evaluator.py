"""Kernel IR, evaluated directly: what its statements mean, with neither PTX nor CUDA between.

All threads of a batch of CTAs execute a statement together, each value an array with one element a thread; a mask
says which threads take part. So a barrier orders nothing, and an asynchronous copy or product is done at once: the
result is what the kernel means, and one that lacks a barrier or a wait differs from it. Only where the two branches of
a condition wait for one another (a producer of copies and its consumers) does each go on by itself, until it must wait
(``progress``). A wait that cannot end is an error.

:class:`Evaluator` holds the state; what each statement does is in the modules that ``statements`` lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from emmy.compiler.ir.expr import Expr
from emmy.compiler.ir.kernel.ir import KernelOp, RegStore, Smem, Tile
from emmy.compiler.ir.stmt import Write

from ptxc.errors import CompileError, InputError, UnsupportedError
from ptxc.recursion import with_room
from ptxc.reference.barriers import Barriers
from ptxc.reference.buffers import Array, Problem
from ptxc.reference.expressions import Fixed
from ptxc.reference.memory import Memory, Store
from ptxc.reference.sample import ALL, Sample
from ptxc.reference.values import FLOATS, Numbers, Value, element_type, index

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ptxc.reference.progress import Ready

#: How many threads are evaluated together.
BATCH_THREADS = 1 << 15

DEFAULT_BLOCK = 256


@dataclass(slots=True)
class Evaluation:
    """What the evaluation of a graph's kernels gave: what they wrote, and accesses outside of any buffer."""

    outputs: dict[str, Array]
    faults: list[str] = field(default_factory=list)


def evaluate_kernels(
    kernels: Sequence[KernelOp], problem: Problem, *, exact: bool = True, sample: Sample = ALL
) -> Evaluation:
    """Evaluate kernels one after the other on the arrays of ``problem``, which stay as they are.

    ``exact``: floats are computed, and kept in what is written, in float64; else each operation is rounded to its
    type. ``sample`` are the CTAs to evaluate. What is not written is NaN where it is a float. Raises UnsupportedError
    for statements that cannot be evaluated, with their place.
    """
    return with_room(lambda: _evaluate(kernels, problem, exact, sample))


def _evaluate(kernels: Sequence[KernelOp], problem: Problem, exact: bool, sample: Sample) -> Evaluation:
    arrays = problem.arrays()
    for buffer in problem.written:
        if exact and buffer.dtype in FLOATS:
            array = arrays[buffer.name]
            numbers = Numbers(exact=True).load(array, buffer.dtype).array
            arrays[buffer.name] = np.where(problem.is_written(buffer.name, array), numbers, np.nan)
    faults: list[str] = []
    for op in kernels:
        for name in zeroed(op):
            arrays[name][...] = 0
        for serial in _serial(op):
            evaluator = Evaluator(op, problem, arrays, {**problem.integers, **serial}, exact=exact)
            try:
                evaluator.run(sample)
            except CompileError as error:
                error.at(kernel=op.name)
                raise
            faults += [f"{op.name}: {fault}" for fault in evaluator.memory.faults]
    return Evaluation({buffer.name: arrays[buffer.name] for buffer in problem.written}, faults)


def zeroed(op: KernelOp) -> list[str]:
    """What must be zero before the launch: the buffers that the kernel adds to, unless another kernel zeroes them."""
    added: dict[str, None] = {}
    for stmt in op.body.iter():
        if isinstance(stmt, Write) and stmt.atomic:
            added[stmt.output] = None
        elif isinstance(stmt, RegStore):
            added |= {cell.dst_buffer: None for cell in (stmt, *stmt.run) if cell.atomic}
    # Shared arrays are the kernel's own, for it to initialise.
    return [name for name in added if name not in op.zero_delegated and name not in op.smem_buffers]


def _serial(op: KernelOp) -> Iterator[dict[str, int]]:
    """The values of the integers that count launches."""
    if not op.serial:
        yield {}
        return
    extents = [axis.extent.as_static() for axis in op.serial]
    for place in np.ndindex(*extents):
        yield {axis.name: int(at) for axis, at in zip(op.serial, place, strict=True)}


class Evaluator:
    """The state of one kernel's evaluation.

    ``lanes`` threads are evaluated together; ``mask`` says which of them take part, None for all. ``tid`` and
    ``cta`` are each thread's places, ``base`` is the first lane of its CTA, ``number`` counts the batch's CTAs.
    """

    def __init__(
        self, op: KernelOp, problem: Problem, arrays: Mapping[str, Array], integers: Mapping[str, int], *, exact: bool
    ) -> None:
        self.op = op
        self.integers = integers
        self.numbers = Numbers(exact=exact)
        self.memory = Memory(self)
        self.tile = self._only_tile()
        self.cells = self.tile.block_threads if self.tile.block_threads is not None else DEFAULT_BLOCK
        self.threads = self.cells + self.tile.aux_threads
        self.scopes: list[dict[str, Value]] = [{name: index(value) for name, value in integers.items()}]
        self.extents = [self.extent(axis) for axis in self.tile.axes]
        self.total = int(np.prod(self.extents, dtype=np.int64))
        self.grid = -(-self.total // self.cells)
        self.memory.stores |= {
            name: Store(name, buffer.dtype, buffer.shape, arrays[name].reshape(-1), arrays[name].size)
            for name, buffer in problem.buffers.items()
        }
        self.path = ""
        self.mask: NDArray[np.bool_] | None = None
        self.lanes = 0
        self.builtins: dict[str, Value] = {}
        self.fixed = Fixed()
        self.barriers = Barriers(0)
        #: What tensor maps and descriptors of matrices were made, by name.
        self.tensor_maps: dict[str, Any] = {}
        self.matrices: dict[str, Any] = {}

    def _only_tile(self) -> Tile:
        tiles = [stmt for stmt in self.op.body if isinstance(stmt, Tile)]
        if len(tiles) != 1:
            raise InputError(f"the kernel has {len(tiles)} tiles at its top level")
        return tiles[0]

    # ------------------------------------------------------------------------------------------------- execution

    def run(self, sample: Sample = ALL) -> None:
        """Evaluate CTAs, a batch at a time."""
        places = sample.places((self.grid, 1, 1))
        numbers = range(self.grid) if places is None else [x for x, _, _ in places]
        step = max(1, BATCH_THREADS // self.threads)
        with np.errstate(all="ignore"):
            for start in range(0, len(numbers), step):
                self._batch(np.asarray(numbers[start : start + step], np.int64))

    def _batch(self, ctas: NDArray[np.int64]) -> None:
        self.lanes = ctas.size * self.threads
        self.tid = np.tile(np.arange(self.threads), ctas.size)
        self.cta = np.repeat(ctas, self.threads)
        self.number = np.repeat(np.arange(ctas.size), self.threads)
        self.base = self.number * self.threads
        fixed = {"thread_idx": 0, "block_idx": 0, "block_dim": 1, "grid_dim": 1}
        self.builtins = {f"{kind}.{axis}": index(value) for kind, value in fixed.items() for axis in "yz"}
        self.builtins |= {
            "thread_idx.x": index(self.tid),
            "block_idx.x": index(self.cta),
            "block_dim.x": index(self.threads),
            "grid_dim.x": index(self.grid),
            "warp_size": index(32),
        }
        for array in self.op.smem_buffers.values():
            self.memory.stores[array.name] = self._shared(array, ctas.size)
        self.barriers = Barriers(ctas.size)
        self.fixed = Fixed()
        self.mask = None
        for _ in self.body(self.op.body, "body"):
            raise self.barriers.hang()

    def _shared(self, array: Smem, ctas: int) -> Store:
        """A shared array of every CTA; floats that nothing has written are NaN."""
        # Emmy's reading: an array of bytes holds pairs of e2m1.
        type = "f4e2m1x2" if array.dtype == "unsigned char" else element_type(array.dtype)
        size = int(np.prod(array.extents))
        dtype = self.numbers.dtype(type)
        elements = np.full(ctas * size, np.nan if dtype.kind == "f" else 77, dtype)
        return Store(array.name, type, tuple(array.extents), elements, size, shared=True)

    def body(self, stmts: Iterable[Any], path: str) -> Iterator[Ready]:
        """Execute statements in order. An error gets the place of the statement.

        Yields where threads must wait for others, what says whether they still must.
        """
        from ptxc.reference.statements import STATEMENTS

        for at, stmt in enumerate(stmts):
            here = f"{path}[{at}]"
            rule = STATEMENTS.get(type(stmt))
            try:
                if rule is None:
                    raise UnsupportedError(f"the reference does not evaluate {type(stmt).__name__}")
                self.path = here
                steps = rule(self, stmt, here)
                if steps is not None:
                    yield from steps
            except CompileError as error:
                error.at(statement=here)
                raise

    @contextmanager
    def taking(self, mask: Array) -> Iterator[bool]:
        """Only those threads take part in which ``mask`` holds; yields whether there are any."""
        before = self.mask
        if mask.size > 1 or not mask.all():
            mask = self.spread(mask) if before is None else before & mask
            self.mask = None if mask.all() else mask
        try:
            yield self.mask is None or bool(self.mask.any())
        finally:
            self.mask = before

    @contextmanager
    def scope(self, **names: Value) -> Iterator[None]:
        """A scope of C's, which begins with ``names``."""
        self.scopes.append(dict(names))
        try:
            yield
        finally:
            self.scopes.pop()

    # ----------------------------------------------------------------------------------------------------- names

    def find(self, name: str) -> Value:
        """The value of a name. Raises InputError where it is unknown."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        if name == "lane":
            return index(self.tid % 32)
        if name == "warp":
            return index(self.tid // 32)
        raise InputError(f"{name!r} is not defined")

    def declare(self, name: str, value: Value) -> None:
        """Bind a name in the innermost scope."""
        self.scopes[-1][name] = value

    def assign(self, name: str, value: Value) -> None:
        """Give a declared name a new value, of the type that it was declared with, in the threads that take part."""
        for scope in reversed(self.scopes):
            if name in scope:
                old = scope[name]
                new = self.numbers.convert(value, old.type).array
                if self.mask is not None:
                    mask = self.mask if new.ndim < 2 else self.mask[:, None]
                    new = np.where(mask, new, old.array)
                scope[name] = Value(new, old.type)
                return
        raise InputError(f"{name!r} is assigned but not declared")

    def spread(self, array: Array) -> Array:
        """``array`` with one element a thread."""
        return np.broadcast_to(array, self.lanes)

    def extent(self, axis: Any) -> int:
        """The extent of an axis."""
        return axis.extent.as_static() if axis.extent.is_static else int(axis.extent.expr.eval(dict(self.integers)))

    def place(self, buffer: str, indices: tuple[Expr, ...]) -> Value:
        """The place of ``buffer[indices]``, of the type that C gives it."""
        return self.memory.place(buffer, indices)

    def flat(self, buffer: str, indices: tuple[Expr, ...]) -> Array:
        """The place of ``buffer[indices]``."""
        return self.memory.flat(buffer, indices)
