"""Buffers as tensor maps describe them to the hardware that copies boxes of them.

Source: ``TmaDescriptor`` of ``emmy.compiler.ir.kernel.ir``, ``tma_descriptor`` of Emmy's
``pipeline/passes/lowering/kernel/_stage.py``, which makes them; CUDA driver API, ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from emmy.compiler.dim import Dim
from emmy.compiler.dtype import get as emmy_dtype
from emmy.compiler.ir.kernel.ir import TmaDescriptor

from ptxc.errors import CompileError, InputError, UnsupportedError
from ptxc.frontend.buffers import Buffer
from ptxc.frontend.dtypes import element_type, same_bits, slab_type
from ptxc.frontend.swizzles import hardware
from ptxc.launch import TensorMap

#: cuTensorMapEncodeTiled's names of element types (after ``CU_TENSOR_MAP_DATA_TYPE_``) of more than a byte.
_DATA_TYPES = {
    "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "i32": "INT32", "u32": "UINT32",
    "i64": "INT64", "u64": "UINT64", "u16": "UINT16", "i16": "UINT16", "f16x2": "UINT32",
}  # fmt: skip
_MOST_BOX, _MOST_RANK = 256, 5
#: What the strides, and a row of a box, are multiples of in bytes.
_UNIT = 16


def tensor_map(stmt: TmaDescriptor, buffers: dict[str, Buffer], indirect: Collection[str]) -> TensorMap:
    """What a tensor map says. Raises InputError, with the statement, for one that the driver would refuse.

    Which allocation an ``indirect`` input is in, only the launch decides: UnsupportedError, as in Emmy.
    """
    try:
        if stmt.src_buf in indirect:
            what = f"a tensor map holds one address, and the input {stmt.src_buf!r} is indirect"
            raise UnsupportedError(what, hint="choose a schedule that copies it without TMA")
        return _tensor_map(stmt, buffers)
    except CompileError as error:
        error.at(statement=f"TmaDescriptor {stmt.name}")
        raise


def _tensor_map(stmt: TmaDescriptor, buffers: dict[str, Buffer]) -> TensorMap:
    buffer = buffers.get(stmt.src_buf)
    if buffer is None:
        raise InputError(f"{stmt.src_buf!r} is no buffer of the kernel", hint="a tensor map describes a global buffer")
    stated, held = slab_type(stmt.dtype), element_type(buffer.dtype)
    if not same_bits(stated, held):
        hint = "a tensor map describes the buffer as it is: declare both with one type"
        raise InputError(f"a tensor map of {stated.name} over {buffer.name!r}, which is {held.name}", hint=hint)
    box = tuple(stmt.box_extents)
    if not 1 <= len(box) <= _MOST_RANK or not all(isinstance(n, int) and 1 <= n <= _MOST_BOX for n in box):
        raise InputError(f"boxes of {box}", hint=f"1 to {_MOST_RANK} extents, each 1 to {_MOST_BOX}")
    swizzle = hardware(stmt.swizzle)
    nbytes = emmy_dtype(buffer.dtype).nbytes
    row = box[-1] * nbytes
    if row % _UNIT or (swizzle.row and row > swizzle.row):
        most = f", at most {swizzle.row}" if swizzle.row else ""
        raise InputError(f"a row of a box is {row} bytes", hint=f"it is a multiple of {_UNIT}{most}")
    dims = _dimensions(buffer, box)
    if 0 in dims:
        raise InputError(f"{buffer.name!r} has no elements", hint="a tensor map describes at least one")
    strides: list[int | Dim] = []
    stride: int | Dim = nbytes
    for size in dims[:0:-1]:
        stride = _times(stride, size)
        strides.append(stride)
        if isinstance(stride, int) and stride % _UNIT:
            raise InputError(f"{buffer.name!r} has a stride of {stride} bytes", hint=f"it is a multiple of {_UNIT}")
    return TensorMap(
        name=stmt.name,
        buffer=buffer.name,
        data_type=_data_type(buffer, nbytes),
        dims=tuple(size if isinstance(size, int) else size.expr.pretty() for size in dims[::-1]),
        strides=tuple(size if isinstance(size, int) else size.expr.pretty() for size in strides),
        box=box[::-1],
        element_strides=(1,) * len(box),
        swizzle=swizzle.map_name,
    )


def _data_type(buffer: Buffer, nbytes: int) -> str:
    """What CUDA calls the elements. Which of several types of one byte they are makes no difference to a copy."""
    if nbytes == 1:
        return "UINT8"
    if buffer.dtype not in _DATA_TYPES:
        raise UnsupportedError(f"a tensor map of {buffer.dtype} elements", hint="copy the buffer without one")
    return _DATA_TYPES[buffer.dtype]


def _dimensions(buffer: Buffer, box: tuple[int, ...]) -> list[int | Dim]:
    """The buffer's shape with as many dimensions as the boxes have.

    Of more, those of size 1 go, the last first; of one fewer, rows are split into pieces as wide as the box.
    """
    dims = list(buffer.shape)
    if len(box) == len(dims) + 1 and isinstance(dims[-1], int) and dims[-1] % box[-1] == 0:
        return [*dims[:-1], dims[-1] // box[-1], box[-1]]
    while len(dims) > len(box) and 1 in dims:
        del dims[len(dims) - 1 - dims[::-1].index(1)]
    if len(dims) != len(box):
        shape = ", ".join(str(size if isinstance(size, int) else size.expr.pretty()) for size in buffer.shape)
        what = f"boxes of {len(box)} dimensions in {buffer.name!r}, whose shape is ({shape})"
        raise InputError(what, hint="a box has an extent for each dimension; those of size 1 may be left out")
    return dims


def _times(stride: Any, size: Any) -> Any:
    """A product of numbers and Emmy's symbolic dimensions."""
    return stride * size if isinstance(stride, int) == isinstance(size, int) or isinstance(size, int) else size * stride
