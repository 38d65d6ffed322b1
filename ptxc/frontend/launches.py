"""How a kernel is launched, from its interface: the grid, the parameters, where runtime integers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emmy.compiler.ir.expr import Var

from ptxc.errors import InputError
from ptxc.frontend.buffers import Buffer
from ptxc.frontend.signature import Parameter, Signature
from ptxc.launch import Launch, LaunchParameter, Paging, RuntimeInteger


def launch_of(signature: Signature) -> Launch:
    """The launch description. Raises InputError for a buffer whose size cannot be known."""
    _check_shapes(signature.buffers, signature.runtime)
    return Launch(
        grid=(_grid(signature), 1, 1),
        block=(signature.threads, 1, 1),
        dynamic_shared=signature.shared_bytes if signature.pool else 0,
        static_shared=0 if signature.pool else signature.shared_bytes,
        parameters=tuple(_launch_parameter(signature, parameter) for parameter in signature.parameters),
        runtime=tuple(_runtime_integer(signature, name) for name in signature.runtime),
        zero=signature.zero,
        tensor_maps=tuple(signature.tensor_maps.values()),
    )


def _grid(signature: Signature) -> int | str:
    """The number of CTAs: a number, or an expression over the runtime integers."""
    if signature.ctas is not None:
        return signature.ctas
    count: str = signature.tile.n_dim.ceil_div(signature.cells).expr.pretty()
    return count


def _launch_parameter(signature: Signature, parameter: Parameter) -> LaunchParameter:
    name, role = parameter.name, parameter.role
    type = "u64" if parameter.is_pointer else "u32"
    stands_for = parameter.buffer if parameter.buffer != name else ""
    buffer = signature.buffers.get(parameter.buffer)
    if role == "start":
        return LaunchParameter(name, role, type, "i64", (1,))
    if role == "selector":
        return LaunchParameter(name, role, type, "i32", buffer=stands_for)
    if buffer is None or role in ("slot", "runtime"):
        return LaunchParameter(name, role, type, buffer=stands_for)
    shape = tuple(size if isinstance(size, int) else size.expr.pretty() for size in buffer.shape)
    if role == "pages":
        return LaunchParameter(
            name, role, type, buffer.dtype, shape, None, stands_for, _paging(signature, buffer, shape)
        )
    value = buffer.value
    constant = role == "input" and value is not None
    if value is not None and not isinstance(value, (int, float)):
        value = value.pretty()
    role = "constant" if constant else role
    return LaunchParameter(name, role, type, buffer.dtype, shape, value if constant else None, stands_for)


def _paging(signature: Signature, buffer: Buffer, shape: tuple[int | str, ...]) -> Paging:
    paged = signature.paged[buffer.name]
    page = shape if paged.whole else (*shape[: paged.axis], paged.page, *shape[paged.axis + 1 :])
    return Paging(paged.axis, paged.page, page, paged.start, buffer.written)


def _runtime_integer(signature: Signature, name: str) -> RuntimeInteger:
    """Where an integer's value comes from: every dimension of a buffer that is just it."""
    sizes = tuple(
        (buffer.name, axis)
        for buffer in signature.buffers.values()
        for axis, size in enumerate(buffer.shape)
        if not isinstance(size, int) and isinstance(size.expr, Var) and size.expr.name == name
    )
    return RuntimeInteger(name, sizes, dict(signature.serial).get(name, 0))


def _check_shapes(buffers: Mapping[str, Buffer], runtime: Sequence[str]) -> None:
    """Raise InputError for a size that a kernel would have to be told, and is not."""
    for buffer in buffers.values():
        for extent in buffer.shape:
            unknown = set() if isinstance(extent, int) else extent.expr.free_vars().difference(runtime)
            if unknown:
                known = f"the kernel's sizes are {', '.join(runtime)}" if runtime else "the kernel takes no sizes"
                raise InputError(
                    f"the shape of {buffer.name!r} has the size {min(unknown)!r}, which the kernel does not take",
                    hint=f"{known}; write a number, or the name of an axis's extent",
                )
