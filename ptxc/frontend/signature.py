"""A kernel's interface, as Emmy's CUDA lowering derives it: parameters, launch geometry, shared memory.

The PTX that ptxc makes takes the place of Emmy's cubin, so all of this must equal what Emmy tells its launcher
(``pipeline/passes/lowering/cuda/010_lower_kernelop.py``, ``ir/kernel/render.py``: the signature, ``_launch_bounds_for``
and ``pack_smem``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from emmy.compiler.dim import spans_one_page
from emmy.compiler.ir.base import ConstantOp
from emmy.compiler.ir.kernel.ir import (
    CpAsyncCopy,
    KernelOp,
    LdmatrixLoad,
    MmaSyncPtx,
    RegFragment,
    RegStore,
    Smem,
    Tile,
    TmaDescriptor,
    WgmmaDescriptor,
    WgmmaMma,
)
from emmy.compiler.ir.stmt import Accum, Assign, Init, Load, Write, ZeroPrologue

from ptxc.errors import InputError, TargetError, UnsupportedError
from ptxc.frontend.buffers import Buffer
from ptxc.frontend.dtypes import element_type
from ptxc.frontend.tensor_maps import tensor_map
from ptxc.launch import TensorMap
from ptxc.target import Target

#: The block of a kernel whose tile names none (Emmy's scalar tier).
DEFAULT_THREADS = 256
#: Beyond this, the shared arrays are one dynamic pool: no array may be declared larger.
STATIC_SHARED_LIMIT = 48 * 1024
MAX_THREADS = 1024
MAX_CTAS = 2**31 - 1
#: Bodies that may be open at once where statements are in each other: the lowering calls itself for each, and in the
#: compiled build nothing but the end of the stack would stop it.
_MOST_PENDING = 3000
#: The bytes that a shared array may be aligned to: more than any GPU has.
_MAX_ALIGN = 1 << 20
#: Why PTX takes no other name of those that look like one.
_NO_NAMES = {"_": "PTX has no name of an underscore alone", "WARP_SZ": "WARP_SZ is a constant of PTX"}
#: What PTX takes for a name, and C too.
_NAME = re.compile(r"(?!WARP_SZ$)(?:[A-Za-z]\w*|_\w+)", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the entry, in order.

    ``role``: ``input``, ``output``, ``zero`` (another kernel's accumulator, which this one zeroes), ``tensor_map``,
    ``start`` (a device scalar that places a paged write), ``pages`` (a table of a paged buffer's pages),
    ``table``/``selector``/``slot`` (an indirect input's three) or ``runtime`` (an integer).
    ``buffer`` is the graph buffer that it stands for, or the runtime integer's name.
    """

    name: str
    role: str
    buffer: str

    @property
    def is_pointer(self) -> bool:
        """Whether it is a 64-bit address; the others are 32-bit integers."""
        return self.role not in ("runtime", "slot")


@dataclass(frozen=True, slots=True)
class Paged:
    """A buffer that is a table of equal pages along ``axis`` (the hint ``cuda.paged_buffers``)."""

    axis: int
    page: int
    start: str | None
    #: One page spans the buffer, so its base is the table's only entry.
    whole: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """Everything about a kernel that its body does not say."""

    name: str
    parameters: tuple[Parameter, ...]
    buffers: dict[str, Buffer]
    tile: Tile
    #: Threads of a CTA.
    threads: int
    #: Static CTA count, or None where it depends on runtime integers.
    ctas: int | None
    runtime: tuple[str, ...]
    serial: tuple[tuple[str, int], ...]
    zero: tuple[str, ...]
    zero_prologues: tuple[str, ...]
    shared: dict[str, Smem]
    #: Byte offsets into the dynamic pool; empty where the arrays are static.
    pool: dict[str, int]
    shared_bytes: int
    paged: dict[str, Paged] = field(default_factory=dict)
    indirect: tuple[str, ...] = ()
    tensor_maps: dict[str, TensorMap] = field(default_factory=dict)
    #: The fragments that products of a warpgroup hold while they run.
    held: tuple[str, ...] = ()
    #: Whether a warpgroup's product reads shared memory that threads wrote, not bulk copies.
    written_operands: bool = False

    @property
    def cells(self) -> int:
        """The threads of a CTA that have a cell of the tile of their own (all but the auxiliary ones)."""
        return self.threads - self.tile.aux_threads


def signature_of(
    op: KernelOp, node_id: str, hints: Mapping[str, Any], constants: Mapping[str, ConstantOp]
) -> Signature:
    """Derive a kernel's interface.

    ``constants`` are the graph's scalar constants by name, ``hints`` the graph's (``cuda.indirect_inputs``,
    ``cuda.paged_buffers``). Raises InputError for a kernel without exactly one tile, with more than 1,024 threads,
    or with hints that fit no buffer.
    """
    tiles = [stmt for stmt in op.body if type(stmt) is Tile]
    if len(tiles) != 1:
        raise InputError(
            f"the kernel has {len(tiles)} tiles at its top level",
            hint="a kernel is one Tile, after what must run before it",
        )
    (tile,) = tiles
    cells = tile.block_threads if tile.block_threads is not None else DEFAULT_THREADS
    threads = cells + tile.aux_threads
    _check_threads(cells, tile.aux_threads)
    ctas = -(-tile.n_elements // cells) if tile.is_static_grid else None
    if ctas is not None and ctas > MAX_CTAS:
        raise InputError(
            f"the tile takes {ctas} CTAs",
            statement="Tile",
            hint=f"a grid has at most {MAX_CTAS}; enlarge block_threads",
        )
    name = op.name or f"k_{node_id}"
    _check_name(name, "kernel")
    body = _Body(op)
    buffers = _buffers(op, body, constants)
    paged = _paged(op, body, hints, buffers)
    indirect = tuple(name for name in _entries(hints, "cuda.indirect_inputs") if name in op.inputs)
    runtime = tuple(dict.fromkeys((*body.symbols, *(axis.name for axis in op.serial))))
    pool, shared_bytes = pack_shared(body.shared)
    parameters = _parameters(op, body, paged, indirect, runtime)
    if name in (parameter.name for parameter in parameters):
        raise InputError(f"the kernel and a parameter are called {name!r}", hint="rename one of them")
    return Signature(
        name=name,
        parameters=parameters,
        buffers=buffers,
        tile=tile,
        threads=threads,
        ctas=ctas,
        runtime=runtime,
        serial=tuple((axis.name, axis.extent.as_static()) for axis in op.serial),
        zero=tuple(n for n in body.atomic if n not in op.zero_delegated and n not in body.shared),
        zero_prologues=tuple(body.zeroed),
        shared=body.shared,
        pool=pool if shared_bytes > STATIC_SHARED_LIMIT else {},
        shared_bytes=shared_bytes,
        paged=paged,
        indirect=indirect,
        tensor_maps={stmt.name: tensor_map(stmt, buffers, indirect) for stmt in body.tensor_maps.values()},
        held=tuple(body.held),
        written_operands=not body.operands.isdisjoint(body.stored),
    )


def with_runtime(signature: Signature, names: tuple[str, ...]) -> Signature:
    """The signature with its runtime integers in another order. Raises InputError for other integers."""
    if sorted(names) != sorted(signature.runtime):
        what = f"the kernel takes the runtime integers {signature.runtime}, the launcher passes {names}"
        raise InputError(what, hint="give the node as Emmy made it")
    integers = {parameter.name: parameter for parameter in signature.parameters if parameter.role == "runtime"}
    others = tuple(parameter for parameter in signature.parameters if parameter.role != "runtime")
    return replace(signature, runtime=names, parameters=(*others, *(integers[name] for name in names)))


def _buffers(op: KernelOp, body: _Body, constants: Mapping[str, ConstantOp]) -> dict[str, Buffer]:
    buffers = {}
    for tensors, written in ((op.inputs, False), (op.outputs, True)):
        for name, tensor in tensors.items():
            shape = tuple(d.as_static() if d.is_static else d for d in tensor.shape)
            constant = constants.get(name)
            value = (
                None if constant is None else constant.value if constant.value is not None else constant.context_value
            )
            buffers[name] = Buffer(name, tensor.dtype.name, shape, written, value)
    for name, words in body.zeroed.items():
        if name not in buffers:
            # Another kernel's accumulator: only its size is known here.
            buffers[name] = Buffer(name, "i32", (words,), True)
    return buffers


def _parameters(
    op: KernelOp, body: _Body, paged: dict[str, Paged], indirect: tuple[str, ...], runtime: tuple[str, ...]
) -> tuple[Parameter, ...]:
    """Inputs, outputs, the starts of paged writes, tensor maps, runtime integers: Emmy's order."""
    found: list[Parameter] = []
    for name in op.inputs:
        if name in indirect:
            found += [Parameter(f"{name}__{suffix}", role, name) for suffix, role in _INDIRECT]
        elif name in paged:
            found.append(Parameter(f"{name}__pages", "pages", name))
        else:
            found.append(Parameter(name, "input", name))
    for name in dict.fromkeys((*op.outputs, *body.zeroed)):
        if name in paged:
            found.append(Parameter(f"{name}__pages", "pages", name))
        else:
            found.append(Parameter(name, "zero" if name in body.zeroed else "output", name))
    starts = dict.fromkeys(page.start for page in paged.values() if page.start is not None)
    found += [Parameter(name, "start", name) for name in starts if name not in op.inputs]
    found += [Parameter(name, "tensor_map", name) for name in body.tensor_maps]
    found += [Parameter(name, "runtime", name) for name in runtime]
    names = set()
    for parameter in found:
        _check_name(parameter.name, "parameter")
        if parameter.name in names:
            raise InputError(
                f"two parameters are called {parameter.name!r}", hint="rename the buffer or the symbolic size"
            )
        names.add(parameter.name)
    return tuple(found)


def _check_threads(cells: int, auxiliary: int) -> None:
    """Raise InputError for a CTA that the hardware does not run: of so many threads with cells, and so many without."""
    threads = cells + auxiliary
    if cells >= 1 and auxiliary >= 0 and threads <= MAX_THREADS:
        return
    what = f"the tile asks for {threads} threads a CTA"
    if auxiliary < 0:
        what, hint = f"the tile asks for {auxiliary} auxiliary threads", "aux_threads is 0 or more"
    elif cells < 1:
        what, hint = f"the tile asks for {cells} threads a CTA", "block_threads is 1 or more"
    else:
        hint = "choose a smaller block_threads" + (" or aux_threads" if auxiliary else "")
        hint = f"the hardware runs 1 to {MAX_THREADS}; {hint}"
    raise InputError(what, statement="Tile", hint=hint)


def _check_name(name: str, what: str) -> None:
    """Raise InputError where PTX cannot call a kernel, a parameter or an array ``name``."""
    if not _NAME(name):
        hint = _NO_NAMES.get(name, "names are letters, digits and underscores, and do not begin with a digit")
        raise InputError(f"a {what} cannot be called {name!r}", hint=hint)


#: What an indirect input's three parameters are called, after its name, and their roles.
_INDIRECT = (("table", "table"), ("sel", "selector"), ("slot", "slot"))


def _paged(op: KernelOp, body: _Body, hints: Mapping[str, Any], buffers: dict[str, Buffer]) -> dict[str, Paged]:
    """The paged buffers of the kernel, from the hint's (name, axis, page, start) entries."""
    paged = {}
    for name, axis, page, start in map(_page_entry, _entries(hints, "cuda.paged_buffers")):
        if name not in buffers:
            continue
        if name in _entries(hints, "cuda.indirect_inputs"):
            raise InputError(f"the hints make {name!r} both paged and indirect", hint="take it out of one of them")
        shape = buffers[name].shape
        if not (0 <= axis < len(shape) and page > 0):
            raise InputError(
                f"the hint cuda.paged_buffers pages axis {axis!r} of {name!r} by {page!r}",
                hint=f"{name} has {len(shape)} axes, and a page has at least one element",
            )
        tensor = op.inputs.get(name) or op.outputs.get(name)
        whole = start is None and tensor is not None and spans_one_page(tensor.shape, axis, page)
        paged[name] = Paged(axis, page, start, whole)
    _refuse_staging(op, body, paged)
    return paged


def _page_entry(entry: Any) -> tuple[str, int, int, str | None]:
    """One entry of the hint ``cuda.paged_buffers``."""
    match entry:
        case [str(name), int(axis), int(page), start] if start is None or isinstance(start, str):
            return name, axis, page, start
    raise InputError(
        f"the hint cuda.paged_buffers holds {entry!r}", hint="an entry is [buffer, axis, page size, start or null]"
    )


def _entries(hints: Mapping[str, Any], hint: str) -> Sequence[Any]:
    """The entries of a hint that is a list."""
    entries = hints.get(hint, ())
    if not isinstance(entries, list | tuple):
        raise InputError(f"the hint {hint} is {entries!r}", hint="it is a list")
    return entries


def _refuse_staging(op: KernelOp, body: _Body, paged: dict[str, Paged]) -> None:
    """A page's base is resolved by loads and stores alone: nothing else may take a paged buffer's address."""
    split = {name for name, page in paged.items() if not page.whole}
    if not paged:
        return
    for stmt in op.body.iter():
        if not hasattr(stmt, "index"):
            cells = (stmt, *stmt.run) if isinstance(stmt, RegStore) else (stmt,)
            touched = split.intersection(
                name for cell in cells for name in (*cell.external_reads(), *cell.external_writes())
            )
            if touched:
                raise UnsupportedError(
                    f"{type(stmt).__name__} takes the address of the paged buffer {min(touched)!r}",
                    hint="choose a schedule that reads it directly",
                )
    zeroed = paged.keys() & {*body.atomic, *body.zeroed}
    if zeroed:
        raise UnsupportedError(
            f"the paged buffer {min(zeroed)!r} would have to be zero before the launch",
            hint="a page table cannot be cleared; choose a schedule without atomic writes",
        )


#: Of these there are most, and they say nothing about the interface but in their expressions.
_SILENT = frozenset((Accum, Assign, Init, LdmatrixLoad, Load, MmaSyncPtx, RegFragment))


class _Body:
    """What a kernel's body says about its interface, found in one walk; everything in order of appearance."""

    def __init__(self, op: KernelOp) -> None:
        self.shared: dict[str, Smem] = {}
        #: Buffers that atomic writes accumulate into: they must be zero before the launch.
        self.atomic: dict[str, None] = {}
        #: Accumulators of other kernels that this one zeroes, with their 32-bit words.
        self.zeroed: dict[str, int] = {}
        self.tensor_maps: dict[str, TmaDescriptor] = {}
        #: Fragments of a warpgroup's products, the arrays that these read, and those that threads write.
        self.held: dict[str, None] = {}
        self.operands: set[str] = set()
        self.stored: set[str] = set()
        #: Symbolic sizes. Those of axes count wherever they appear; names in other expressions only where a
        #: buffer's shape has them, since the rest are loop variables and values.
        self.symbols: dict[str, None] = {}
        tensors = (*op.inputs.values(), *op.outputs.values())
        sizes = [dim.expr for tensor in tensors for dim in tensor.shape if not dim.is_static]
        self._shaped = frozenset[str]().union(*(size.free_vars() for size in sizes))
        pending = [iter(op.body)]
        while pending:
            for stmt in pending[-1]:
                self._visit(stmt)
                bodies = stmt.nested()
                if bodies:
                    pending += [iter(body) for body in reversed(bodies)]
                    if len(pending) > _MOST_PENDING:
                        raise InputError("the kernel nests too deeply", hint="split its expressions or its loops")
                    break
            else:
                pending.pop()

    def _visit(self, stmt: Any) -> None:
        if type(stmt) not in _SILENT:
            self._note(stmt)
        if self._shaped:
            for expr in stmt.exprs():
                if not hasattr(expr, "free_vars"):
                    what = f"{type(stmt).__name__} holds a value of type {type(expr).__name__}"
                    hint = "give the node as Emmy made it"
                    raise InputError(f"{what} where an expression must stand", hint=hint)
                self.symbols.update(dict.fromkeys(sorted(self._shaped.intersection(expr.free_vars()))))

    def _note(self, stmt: Any) -> None:
        """Note what ``stmt`` says of arrays, buffers, fragments and axes."""
        kind = type(stmt)  # not isinstance: Emmy's classes answer that twenty times slower
        if kind is Smem:
            check_array(stmt)
            if stmt.name in self.shared:
                raise InputError(f"the shared array {stmt.name!r} is declared twice", hint="rename one of them")
            self.shared[stmt.name] = stmt
        elif kind is Write:
            self.stored.add(stmt.output)
            if stmt.atomic:
                self.atomic[stmt.output] = None
        elif kind is RegStore:
            for cell in (stmt, *stmt.run):
                self.stored.add(cell.dst_buffer)
                if cell.atomic:
                    self.atomic[cell.dst_buffer] = None
        elif kind is CpAsyncCopy:
            self.stored.add(stmt.smem)
        elif kind is ZeroPrologue:
            self.zeroed.setdefault(stmt.dst, int(stmt.words))
        elif kind is TmaDescriptor:
            self._tensor_map(stmt)
        elif kind is WgmmaDescriptor:
            self.operands.add(stmt.smem)
        elif kind is WgmmaMma:
            self.held.update(dict.fromkeys(stmt.c_frags))
            if stmt.a_frag is not None:
                self.held[stmt.a_frag] = None
        for axis in stmt.axes if kind is Tile else (getattr(stmt, "axis", None),):
            if axis is not None and not axis.extent.is_static:
                # Sorted: Emmy takes a set's order, which differs from run to run.
                self.symbols.update(dict.fromkeys(sorted(axis.extent.expr.free_vars())))

    def _tensor_map(self, stmt: TmaDescriptor) -> None:
        if self.tensor_maps.setdefault(stmt.name, stmt) != stmt:
            what = f"the tensor map {stmt.name!r} is declared twice"
            raise InputError(what, statement=f"TmaDescriptor {stmt.name}", hint="rename one of them")


def check_array(stmt: Smem) -> None:
    """Raise InputError, or UnsupportedError for its element type, where a shared array cannot be declared."""
    _check_name(stmt.name, "shared array")
    what = f"the shared array {stmt.name!r}"
    if any(not isinstance(extent, int) or extent < 1 for extent in stmt.extents):
        raise InputError(f"{what} has the extents {stmt.extents}", hint="extents are numbers, at least 1")
    if not (0 <= stmt.align <= _MAX_ALIGN and stmt.align & (stmt.align - 1) == 0):
        hint = f"an alignment is a power of two, up to {_MAX_ALIGN}"
        raise InputError(f"{what} is aligned to {stmt.align} bytes", hint=hint)
    try:
        element_type(stmt.dtype)
    except UnsupportedError as error:
        error.at(statement=f"Smem {stmt.name}")
        raise


def pack_shared(arrays: dict[str, Smem]) -> tuple[dict[str, int], int]:
    """Byte offsets of the shared arrays in one pool, each aligned as it needs, and the pool's size."""
    from emmy.compiler.ir.kernel.ir import pack_smem

    offsets, total = pack_smem(arrays.values())
    return dict(offsets), int(total)


def check_shared(signature: Signature, target: Target) -> None:
    """Raise TargetError when the kernel's shared memory exceeds what the target lets a CTA have."""
    limit = target.max_shared_dynamic if signature.pool else target.max_shared_static
    if signature.shared_bytes > limit:
        raise TargetError(
            f"the kernel uses {signature.shared_bytes} bytes of shared memory, {target} has {limit} for a CTA",
            hint="choose smaller tiles or fewer stages",
        )
