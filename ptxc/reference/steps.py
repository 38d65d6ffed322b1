"""The kernels of a run in the order of their launches: from a compilation, or from a launch description's JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from ptxc.errors import InputError, TargetError, UnsupportedError
from ptxc.frontend.jsonfile import distinct_members
from ptxc.launch import Launch, LaunchParameter, Paging, RuntimeInteger, TensorMap
from ptxc.target import parse_target

if TYPE_CHECKING:
    from ptxc.compilation import CompiledKernel

#: The roles of parameters that a run can pass.
ROLES = ("input", "output", "constant", "zero", "runtime", "pages", "start", "table", "selector", "slot", "tensor_map")

#: Those that are no memory of a buffer's own.
ASIDE = ("runtime", "selector", "slot", "tensor_map")

#: The types of parameters.
_TYPES = ("u64", "u32")

#: The most dimensions of a tensor map.
_RANKS = 5

#: The swizzle modes of tensor maps.
_SWIZZLES = ("NONE", "32B", "64B", "128B")

_HINT = "give what `ptxc compile --launch-json` wrote; docs/launch.md explains it"


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel: its entry in the PTX text, and how it is launched."""

    entry: str
    launch: Launch

    def names(self, *roles: str) -> list[str]:
        """The buffers that parameters with these roles stand for; pages count as an input or as an output."""
        return [parameter.stands_for for parameter in self.launch.parameters if _role(parameter) in roles]


def _role(parameter: LaunchParameter) -> str:
    if parameter.role == "pages" and parameter.paging is not None:
        return "output" if parameter.paging.written else "input"
    return "input" if parameter.role in ("table", "start") else parameter.role


def steps_of(kernels: Iterable[CompiledKernel]) -> list[Step]:
    """Compiled kernels, those first that write what others read."""
    return in_order([Step(kernel.name, kernel.launch) for kernel in kernels if kernel.launch is not None])


def in_order(steps: Sequence[Step]) -> list[Step]:
    """``steps``, each behind those that write or zero what it reads or adds to; else as given.

    Raises UnsupportedError for a parameter that a run cannot pass, InputError where there is no such order.
    """
    writers: dict[str, list[int]] = {}
    zeroers: dict[str, list[int]] = {}
    for at, step in enumerate(steps):
        _check_roles(step)
        for name in step.names("output"):
            writers.setdefault(name, []).append(at)
        for name in step.names("zero"):
            zeroers.setdefault(name, []).append(at)
    order: TopologicalSorter[int] = TopologicalSorter()
    for at, step in enumerate(steps):
        before = [other for name in step.names("input") for other in writers.get(name, ())]
        before += [other for name in step.names("output") for other in zeroers.get(name, ())]
        order.add(at, *(other for other in before if other != at))
    try:
        return [steps[at] for at in _stable(order)]
    except CycleError as error:
        names = " and ".join(sorted({steps[at].entry for at in error.args[1]}))
        raise InputError(f"the kernels {names} each need what the other writes") from error


def _check_roles(step: Step) -> None:
    for parameter in step.launch.parameters:
        if parameter.role not in ROLES:
            what = f"parameter {parameter.name!r} is of the kind {parameter.role!r}, which is not run yet"
            raise UnsupportedError(what, kernel=step.entry)
        maps = [item.name for item in step.launch.tensor_maps]
        if parameter.role == "tensor_map" and parameter.name not in maps:
            what = f"nothing says what the tensor map {parameter.name!r} describes: it is not among `tensor_maps`"
            raise InputError(what, kernel=step.entry, hint=_HINT)
        if parameter.role == "pages" and parameter.paging is None:
            what = f"the parameter {parameter.name!r} does not say how long its pages are: it has no `paging`"
            raise InputError(what, kernel=step.entry, hint=_HINT)


def _stable(order: TopologicalSorter[int]) -> Iterable[int]:
    """A topological order that prefers low numbers."""
    order.prepare()
    ready: set[int] = set()
    while order.is_active():
        ready.update(order.get_ready())
        at = min(ready)
        ready.remove(at)
        order.done(at)
        yield at


# ------------------------------------------------------------------------------------------------- from JSON


def read_steps(text: str | bytes) -> list[Step]:
    """The steps that a launch description's JSON lists, in its order. Raises InputError for anything else."""
    try:
        value = json.loads(text, object_pairs_hook=distinct_members)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the launch description is no JSON: {error}", hint=_HINT) from error
    kernels = value.get("kernels") if isinstance(value, dict) and "kernels" in value else [value]
    if not isinstance(kernels, list) or not kernels:
        raise InputError("the launch description lists no kernels", hint=_HINT)
    steps = [_step(_Fields(kernel, f"kernels[{at}]")) for at, kernel in enumerate(kernels)]
    for step in steps:
        _check_roles(step)
    _check_names(steps)
    return steps


def _check_names(steps: Sequence[Step]) -> None:
    """Raise InputError where a description names a buffer, a dimension or an integer that it does not describe."""
    parameters = [parameter for step in steps for parameter in step.launch.parameters if parameter.role not in ASIDE]
    shapes = {parameter.stands_for: parameter.shape for parameter in parameters if parameter.role != "zero"}
    known = {parameter.stands_for for parameter in parameters}
    hint = f"buffers are {', '.join(sorted(known))}" if known else "no parameter stands for a buffer"
    for at, step in enumerate(steps):
        launch, path = step.launch, f"kernels[{at}]"
        named = [(f"{path}.zero[{i}]", name) for i, name in enumerate(launch.zero)]
        named += [(f"{path}.tensor_maps[{i}].buffer", item.buffer) for i, item in enumerate(launch.tensor_maps)]
        for where, name in named:
            if name not in known:
                raise InputError(f"there is no buffer {name!r}", statement=where, hint=hint)
        for i, integer in enumerate(launch.runtime):
            for buffer, axis in integer.sizes:
                if buffer not in shapes or not 0 <= axis < len(shapes[buffer]):
                    where = f"{path}.runtime[{i}].sizes"
                    raise InputError(f"there is no dimension {axis} of a buffer {buffer!r}", statement=where, hint=hint)
        integers = {integer.name for integer in launch.runtime}
        for i, parameter in enumerate(launch.parameters):
            if parameter.role == "runtime" and parameter.name not in integers:
                what = f"nothing says which size {parameter.name!r} is: it is not among `runtime`"
                raise InputError(what, statement=f"{path}.parameters[{i}]", hint=_HINT)


class _Fields:
    """A JSON object whose members are asked for by name and type."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            raise InputError("an object is needed here", statement=path, hint=_HINT)
        self._value, self.path = value, path

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The member ``name``, which is of ``kind``; without a default it must be there."""
        value = self._value.get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            wanted = " or ".join(_KINDS[kind] for kind in kinds)
            raise InputError(f"{wanted} is needed here", statement=f"{self.path}.{name}", hint=_HINT)
        return value

    def flag(self, name: str) -> bool:
        """The member ``name``, which is true or false."""
        value = self._value.get(name)
        if not isinstance(value, bool):
            raise InputError("true or false is needed here", statement=f"{self.path}.{name}", hint=_HINT)
        return value

    def objects(self, name: str) -> list[_Fields]:
        """The member ``name``, a list of objects; none where it is left out."""
        return [_Fields(value, f"{self.path}.{name}[{at}]") for at, value in enumerate(self.get(name, list, []))]

    def natural(self, name: str) -> int:
        """The member ``name``, a number of at least 0; 0 where it is left out."""
        value = int(self.get(name, int, 0))
        if value < 0:
            raise InputError("a number of at least 0 is needed here", statement=f"{self.path}.{name}", hint=_HINT)
        return value

    def one_of(self, name: str, known: Iterable[str], default: str | None = None) -> str:
        """The member ``name``, one of some words."""
        value = str(self.get(name, str, default))
        if value not in known:
            what = f"{value!r} is none of {', '.join(known)}"
            raise InputError(what, statement=f"{self.path}.{name}", hint=_HINT)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """The member ``name``, a list of texts; none where it is left out."""
        value = self.get(name, list, [])
        if not all(isinstance(item, str) for item in value):
            raise InputError("a list of texts is needed here", statement=f"{self.path}.{name}", hint=_HINT)
        return tuple(value)

    def extents(self, name: str, count: int, least: int = 0) -> list[Any]:
        """The member ``name``: ``count`` extents, numbers of at least ``least`` or expressions."""
        value = self.get(name, list)
        if len(value) != count or not all(_is_extent(item, least) for item in value):
            what = f"{count} numbers of at least {least}, or expressions, are needed here"
            raise InputError(what, statement=f"{self.path}.{name}", hint=_HINT)
        return list(value)


_KINDS: dict[type, str] = {
    str: "text", int: "an integer", list: "a list", float: "a number", dict: "an object", type(None): "null",
}  # fmt: skip


def _is_extent(value: Any, least: int = 0) -> bool:
    return isinstance(value, str) or _is_number(value, least)


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _step(fields: _Fields) -> Step:
    x, y, z = fields.extents("grid", 3)
    block = fields.extents("block", 3, least=1)
    if not all(isinstance(extent, int) for extent in (y, z, *block)):
        raise InputError("only the grid's first extent may be an expression", statement=fields.path, hint=_HINT)
    if fields.get("target", str, ""):
        try:
            parse_target(fields.get("target", str))
        except TargetError as error:
            raise InputError(error.what, statement=f"{fields.path}.target", hint=error.hint) from error
    launch = Launch(
        grid=(x, y, z),
        block=(block[0], block[1], block[2]),
        dynamic_shared=fields.natural("dynamic_shared"),
        static_shared=fields.natural("static_shared"),
        parameters=tuple(map(_parameter, fields.objects("parameters"))),
        runtime=tuple(map(_runtime, fields.objects("runtime"))),
        zero=fields.texts("zero"),
        tensor_maps=tuple(map(_tensor_map, fields.objects("tensor_maps"))),
    )
    return Step(fields.get("name", str), launch)


def _parameter(fields: _Fields) -> LaunchParameter:
    shape, paging = fields.get("shape", list, []), fields.get("paging", (dict, type(None)))
    if not all(_is_extent(extent) for extent in shape):
        raise InputError("numbers or expressions are needed here", statement=f"{fields.path}.shape", hint=_HINT)
    return LaunchParameter(
        name=fields.get("name", str),
        role=fields.get("role", str),
        type=fields.one_of("type", _TYPES, "u64"),
        dtype=fields.get("dtype", str, ""),
        shape=tuple(shape),
        value=fields.get("value", (int, float, str, type(None))),
        buffer=fields.get("buffer", str, ""),
        paging=_paging(_Fields(paging, f"{fields.path}.paging"), len(shape)) if paging is not None else None,
    )


def _paging(fields: _Fields, dimensions: int) -> Paging:
    axis, extent, shape = fields.get("axis", int), fields.get("extent", int), fields.get("shape", list)
    if not 0 <= axis < dimensions:
        raise InputError(f"the buffer has no axis {axis}", statement=f"{fields.path}.axis", hint=_HINT)
    if extent < 1:
        raise InputError("a page has at least one element", statement=f"{fields.path}.extent", hint=_HINT)
    if len(shape) != dimensions or not all(_is_extent(size) for size in shape):
        raise InputError("a page has as many extents as the buffer", statement=f"{fields.path}.shape", hint=_HINT)
    start = fields.get("start", (str, type(None)))
    return Paging(axis, extent, tuple(shape), start, fields.flag("written"))


def _tensor_map(fields: _Fields) -> TensorMap:
    rank = len(fields.get("dims", list))
    if not 1 <= rank <= _RANKS:
        raise InputError(f"1 to {_RANKS} dimensions are needed here", statement=f"{fields.path}.dims", hint=_HINT)
    numbers = {name: fields.get(name, list) for name in ("box", "element_strides")}
    for name, values in numbers.items():
        if len(values) != rank or not all(_is_number(value, 1) for value in values):
            what = f"{rank} numbers of at least 1 are needed here"
            raise InputError(what, statement=f"{fields.path}.{name}", hint=_HINT)
    return TensorMap(
        name=fields.get("name", str),
        buffer=fields.get("buffer", str),
        data_type=fields.get("data_type", str),
        dims=tuple(fields.extents("dims", rank, least=1)),
        strides=tuple(fields.extents("strides", rank - 1, least=1)),
        box=tuple(numbers["box"]),
        element_strides=tuple(numbers["element_strides"]),
        swizzle=fields.one_of("swizzle", _SWIZZLES),
        interleave=fields.one_of("interleave", ("NONE",), "NONE"),
        l2_promotion=fields.one_of("l2_promotion", ("NONE",), "NONE"),
        oob_fill=fields.one_of("oob_fill", ("NONE",), "NONE"),
    )


def _runtime(fields: _Fields) -> RuntimeInteger:
    sizes = fields.get("sizes", list)
    if not all(
        isinstance(size, list) and len(size) == 2 and isinstance(size[0], str) and _is_number(size[1], 0)
        for size in sizes
    ):
        raise InputError("pairs [buffer, dimension] are needed here", statement=f"{fields.path}.sizes", hint=_HINT)
    pairs = tuple((buffer, axis) for buffer, axis in sizes)
    return RuntimeInteger(fields.get("name", str), pairs, fields.natural("serial"))
