"""The launch description: everything that a launcher needs to run a compiled kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ptxc.errors import UsageError
from ptxc.recursion import with_room


@dataclass(frozen=True, slots=True)
class Paging:
    """How a paged buffer lies in memory: equal pages along one axis, each with its elements row by row.

    Element ``i`` along ``axis`` is on page ``(start + i) / extent``, where ``start`` is the position that the i64
    buffer of that name holds, 0 where there is none.
    """

    axis: int
    #: How far a page reaches along the axis, in elements.
    extent: int
    #: The shape of a page.
    shape: tuple[int | str, ...]
    start: str | None
    written: bool


@dataclass(frozen=True, slots=True)
class LaunchParameter:
    """One parameter of the entry, in order.

    ``role`` is ``input``, ``output``, ``constant`` (an input whose one element is known: ``value``), ``zero`` (a later
    kernel's accumulator that this one zeroes), ``runtime`` (an integer), ``tensor_map``, ``start``, ``pages``,
    ``table``, ``selector`` or ``slot``. ``type`` is ``u64`` for an address of global memory, ``u32`` for an integer.
    ``shape`` holds numbers and expressions over the runtime integers.
    """

    name: str
    role: str
    type: str
    dtype: str = ""
    shape: tuple[int | str, ...] = ()
    #: A constant's element: a number, or an expression over the runtime integers.
    value: float | str | None = None
    #: The buffer that a table of addresses stands for, whose type and shape these are.
    buffer: str = ""
    #: Of ``pages`` alone.
    paging: Paging | None = None

    @property
    def stands_for(self) -> str:
        """The name of the graph's buffer."""
        return self.buffer or self.name


@dataclass(frozen=True, slots=True)
class RuntimeInteger:
    """An integer parameter: the sizes that it is taken from, as (buffer, dimension) pairs; all must agree.

    ``serial`` is the number of launches for an integer that counts them, 0 for a size.
    """

    name: str
    sizes: tuple[tuple[str, int], ...]
    serial: int = 0


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What ``cuTensorMapEncodeTiled`` takes for the parameter ``name``, dimensions innermost first as it takes them.

    Names stand for CUDA's constants that end in them (``FLOAT16`` for ``CU_TENSOR_MAP_DATA_TYPE_FLOAT16``). ``dims``
    and ``strides`` (in bytes, of all dimensions but the first) hold numbers and expressions over the runtime integers.
    """

    name: str
    buffer: str
    data_type: str
    dims: tuple[int | str, ...]
    strides: tuple[int | str, ...]
    box: tuple[int, ...]
    #: All 1: every element is copied.
    element_strides: tuple[int, ...]
    swizzle: str
    interleave: str = "NONE"
    l2_promotion: str = "NONE"
    #: What is read outside of the tensor: ``NONE`` are zeros.
    oob_fill: str = "NONE"


@dataclass(frozen=True, slots=True)
class Launch:
    """How to launch a kernel: grid (the first may be an expression over the runtime integers), block, memory."""

    grid: tuple[int | str, int, int]
    block: tuple[int, int, int]
    #: Bytes of dynamic shared memory that the launch must give.
    dynamic_shared: int
    #: Bytes that the kernel declares itself.
    static_shared: int
    parameters: tuple[LaunchParameter, ...]
    runtime: tuple[RuntimeInteger, ...]
    #: Buffers that must hold zeros before each launch.
    zero: tuple[str, ...]
    tensor_maps: tuple[TensorMap, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The description as JSON takes it; ``docs/launch.md`` explains each key."""
        description = asdict(self)
        if not self.tensor_maps:
            del description["tensor_maps"]
        for parameter in description["parameters"]:
            for key in ("buffer", "paging"):
                if not parameter[key]:
                    del parameter[key]
        return description

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Launch:
        """The launch whose :func:`dataclasses.asdict` was ``description``, lists in place of tuples."""
        fields: dict[str, Any] = _with_tuples(description)
        parameters = [
            LaunchParameter(**parameter | {"paging": Paging(**parameter["paging"]) if parameter["paging"] else None})
            for parameter in fields["parameters"]
        ]
        more = {
            "parameters": tuple(parameters),
            "runtime": tuple(RuntimeInteger(**integer) for integer in fields["runtime"]),
            "tensor_maps": tuple(TensorMap(**tensor_map) for tensor_map in fields["tensor_maps"]),
        }
        return cls(**fields | more)


def _with_tuples(value: Any) -> Any:
    """``value`` with a tuple in place of every list."""
    if isinstance(value, list | tuple):
        return tuple([_with_tuples(item) for item in value])
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    return value


def evaluate(expression: int | str, integers: Mapping[str, int]) -> int:
    """The value of a grid or shape expression, whose division rounds down.

    Raises UsageError for an integer that is not given, and for text that is no integer expression.
    """
    if isinstance(expression, int):
        return expression
    from emmy.compiler.ir.expr import parse

    try:
        # Every node has `eval`.
        value: Any = with_room(lambda: parse(expression).eval(dict(integers)))  # type: ignore[attr-defined]
        return int(value)
    except KeyError as error:
        given = ", ".join(f"{name}={value}" for name, value in integers.items()) or "none"
        what = f"the extent {expression!r} needs the runtime integer {error.args[0]!r}"
        raise UsageError(what, hint=f"give it in `integers` ({given} is given)") from error
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        raise UsageError(f"{expression!r} is no expression over {dict(integers)}: {error}") from error
