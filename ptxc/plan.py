"""The launch plan of a graph: its kernels in order, the buffers that they share, and what executes that.

A plan is what a launcher needs beside the PTX text: in which order the entries are launched, with which geometry and
arguments, which buffers are filled with zeros before which launch, and how large each buffer is. It is plain data, to
JSON and back (``ptxc compile --launch-json``; ``docs/launch.md`` explains the keys).

What executes plans is a :class:`Device`, whatever it is made of: :func:`run` hands it the memory, by the names of the
buffers, and takes the outputs from there. The CPU device is one, a GPU another (:class:`OnDevice`); :data:`DEVICES`
names all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from ptxc.errors import InputError, UsageError
from ptxc.launch import LaunchParameter, evaluate
from ptxc.reference.steps import ASIDE, Step, read_steps, steps_of

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph

    from ptxc.compilation import CompiledKernel
    from ptxc.reference.buffers import Array

#: What a buffer is for. A temporary is written by a kernel and read by later ones; nothing else sees it.
ROLES = ("input", "constant", "output", "temporary")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer in global memory, row by row. ``shape`` holds numbers and expressions over the runtime integers.

    ``value`` is a constant's one element, a number or an expression over the runtime integers; None for a constant that
    the caller gives, such as a weight.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    role: str
    value: float | str | None = None

    def bytes(self, integers: Mapping[str, int]) -> int:
        """Its size. Raises UsageError for an integer that is not given, UnsupportedError for its element type."""
        from ptxc.reference.buffers import dtype_of

        return prod(evaluate(extent, integers) for extent in self.shape) * dtype_of(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Plan:
    """Kernels in the order of their launches, and every buffer that one of them has, inputs first as they appear.

    ``step.launch.zero`` are the buffers to fill with zeros before a step.
    """

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]

    def named(self, *roles: str) -> list[str]:
        """The names of the buffers with these roles."""
        return [buffer.name for buffer in self.buffers if buffer.role in roles]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON takes it."""
        kernels = [{"name": step.entry, **step.launch.to_dict()} for step in self.steps]
        return {"kernels": kernels, "buffers": [asdict(buffer) for buffer in self.buffers]}

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """The plan that JSON describes. Raises InputError for anything else."""
        steps = read_steps(text)
        described = json.loads(text).get("buffers")
        if not isinstance(described, list):
            raise InputError("the launch description lists no buffers", hint="give a plan, as --launch-json writes it")
        return cls(tuple(steps), tuple(map(_buffer, described)))


def _buffer(fields: Any) -> Buffer:
    """A buffer from JSON."""
    match fields:
        case {"name": str(name), "dtype": str(dtype), "shape": list(shape), "role": str(role), **rest}:
            value = rest.get("value")
            extents = all(isinstance(extent, int | str) for extent in shape)
            if role in ROLES and extents and (value is None or isinstance(value, int | float | str)):
                return Buffer(name, dtype, tuple(shape), role, value)
    what = "a buffer has a name, a dtype, a shape, and one of the roles " + ", ".join(ROLES)
    raise InputError(what, statement="buffers", hint="give a plan, as --launch-json writes it")


def plan_of(graph: Graph, kernels: Iterable[CompiledKernel]) -> Plan:
    """The plan of a graph's kernels, compiled. Raises UnsupportedError, InputError where they have no order."""
    from emmy.compiler.ir.base import ConstantOp

    steps = steps_of(kernels)
    written = {name for step in steps for name in step.names("output", "zero")}
    constants = {name for name, node in graph.nodes.items() if isinstance(node.op, ConstantOp)}
    outputs = set(graph.outputs)
    found: dict[str, Buffer] = {}
    # What a kernel zeroes for another is as that one declares it.
    for parameter in sorted(_parameters(steps), key=lambda parameter: parameter.role == "zero"):
        name = parameter.stands_for
        role = "constant" if name in constants else "input"
        if name in written:
            role = "output" if name in outputs else "temporary"
        found.setdefault(name, Buffer(name, parameter.dtype, parameter.shape, role, parameter.value))
    ordered = sorted(found.values(), key=lambda buffer: ROLES.index(buffer.role))
    return Plan(tuple(steps), tuple(ordered))


def _parameters(steps: Iterable[Step]) -> list[LaunchParameter]:
    """The parameters of steps that are memory of a buffer."""
    return [parameter for step in steps for parameter in step.launch.parameters if parameter.role not in ASIDE]


# ------------------------------------------------------------------------------------------------------ execution


class Device(Protocol):
    """What executes plans."""

    def execute(self, plan: Plan, ptx: str, arrays: Mapping[str, Array], integers: Mapping[str, int]) -> None:
        """Launch a plan's steps in order, each after its zero fills; ``ptx`` is the module with their entries.

        ``arrays`` hold every buffer of the plan, inputs and constants filled, in the types of
        :data:`ptxc.reference.buffers.DTYPES`; what kernels write is in them when this returns. ``integers`` are the
        runtime integers but for those that count launches (``RuntimeInteger.serial``). Raises CompileError for what
        the device cannot execute.
        """


class OnDevice:
    """A device of :func:`ptxc.device`'s: ``cpu``, or ``cuda`` for a GPU, each with its options.

    ``checks`` are those of ``ptxc run --sanitize``, for the CPU device alone; none by default.
    """

    def __init__(self, kind: str = "cpu", checks: Iterable[str] = (), **options: Any) -> None:
        self._kind, self._options, self._checks = kind, options, frozenset(checks)

    def execute(self, plan: Plan, ptx: str, arrays: Mapping[str, Array], integers: Mapping[str, int]) -> None:
        """See :class:`Device`. Raises UsageError for a launch that ends early, or that a check finds fault with."""
        from ptxc.device import device
        from ptxc.reference import execution

        open_device: Any = device
        modules = execution.load({step.entry: ptx for step in plan.steps}, open_device(self._kind, **self._options))
        settings = execution.Settings(sanitize=self._checks)
        for launched in execution.execute(modules, plan.steps, arrays, integers, settings):
            if launched.result.findings or not launched.result.completed:
                found = "; ".join(map(str, launched.result.findings[:3])) or "it does not complete"
                raise UsageError(f"the launch is wrong: {found}", kernel=launched.step.entry)


#: What executes plans, by name.
DEVICES: dict[str, Callable[[], Device]] = {"cpu": OnDevice, "cuda": partial(OnDevice, "cuda")}


def run(
    plan: Plan, ptx: str, inputs: Mapping[str, Array], *, device: str | Device = "cpu", keep: bool = False
) -> dict[str, Array]:
    """Execute a plan on ``inputs``, arrays for its inputs and for the constants without a value, by buffer.

    Sizes known at run time follow from the arrays' shapes. ``device`` is one of :data:`DEVICES`, or a Device. Gives the
    outputs by buffer; with ``keep`` the temporaries too. Raises UsageError for an input that is missing or does not
    fit, and what the device raises.
    """
    from ptxc.reference.buffers import integers_of, problem_of

    if isinstance(device, str):
        if device not in DEVICES:
            raise UsageError(f"there is no device {device!r}", hint=f"it is one of {', '.join(DEVICES)}")
        device = DEVICES[device]()
    needed = [b.name for b in plan.buffers if b.role == "input" or (b.role == "constant" and b.value is None)]
    if missing := [name for name in needed if name not in inputs]:
        raise UsageError(f"there is no array for {missing[0]!r}", hint=f"the plan needs {', '.join(needed)}")
    integers = {name: integer.value for name, integer in integers_of(plan.steps, {}, inputs).items()}
    problem = problem_of(plan.steps, integers, inputs)
    arrays = problem.arrays()
    device.execute(plan, ptx, arrays, integers)
    return {name: arrays[name] for name in plan.named("output", *(["temporary"] if keep else []))}
