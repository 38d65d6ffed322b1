"""From a graph of any of Emmy's stages to its kernels, by Emmy's own passes for a target.

Emmy's stages are a traced program (``LinearOp``, ``SdpaOp``), its tensor form, loops, tiles, and Kernel IR. What is
not Kernel IR yet goes through the passes that it still needs. Which schedule a kernel gets is Emmy's decision: by its
model of kernels' times, or by pins (``TILE=...``), which a recorded row of one of its golden files holds too. What is
measured on this machine, Emmy's tuning database, has no part in it, nor have the knobs that the environment pins
(``EMMY_TILE``): the result is a function of graph and options.

Emmy fuses all that it can, and a whole layer becomes one kernel or a few large ones, unless somebody measured better
cuts; deciding them takes it minutes. :func:`separated` is the way around that: an operation, a kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ptxc.errors import InputError, UnsupportedError, UsageError
from ptxc.frontend.emmys import emmys_failures, emmys_target, no_ambient_knobs
from ptxc.frontend.reader import check_names, computing_nodes, kernel_nodes, read_wire
from ptxc.frontend.vocabulary import shown

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph
    from emmy.compiler.pipeline.search.golden import GoldenFile


@dataclass(frozen=True, slots=True)
class Schedule:
    """What decides how a graph that is not Kernel IR yet becomes kernels."""

    #: Emmy's knobs, by their names: ``{"TILE": "n16/u2x4"}``.
    pins: Mapping[str, str] = field(default_factory=dict)
    #: Whether Emmy may trade precision for speed (its FAST_MATH) where neither a pin nor a row says.
    fast: bool = False
    #: A golden file of Emmy's and the row in it whose schedule is to be taken.
    golden: str = ""
    realization: str = ""
    #: Whether each operation of the graph that reduces becomes a kernel, and nothing is fused but what leads to one.
    separate: bool = False

    def __bool__(self) -> bool:
        return bool(self.pins or self.golden or self.realization or self.separate)


def kernel_graph(graph: Graph | None, schedule: Schedule, target: str) -> Graph:
    """The kernels of a graph; without a graph, of the one that the row of the golden file is about.

    Raises UsageError for a schedule of a graph that is Kernel IR and has one, or that is not what a kernel came to,
    InputError for a golden file that is none, UnsupportedError for a graph past Kernel IR or that Emmy's passes refuse.
    """
    if graph is not None and _is_lowered(graph):
        if schedule:
            named = {
                "pins (--pins)": schedule.pins,
                "the golden file (--golden)": schedule.golden,
                "the realization (--realization)": schedule.realization,
                "separate (--separate)": schedule.separate,
            }
            given = " and ".join(name for name, value in named.items() if value)
            raise UsageError("the graph is Kernel IR, which has its schedule", hint=f"leave out {given}")
        return graph
    _check_knobs(schedule.pins, "pins")
    recorded = _Recorded.read(schedule)
    if recorded is not None:
        _check_knobs(recorded.row.knobs or {}, f"the row {recorded.row.name!r}", schedule.golden)
    if graph is None:
        if recorded is None:
            raise UsageError("there is no graph", hint="give one, or a golden file and a realization")
        graph = recorded.graph()
    pins = {"FAST_MATH": int(schedule.fast), **(recorded.pins if recorded is not None else {}), **schedule.pins}
    with emmys_failures("lowering"), _emmys(target, pins):
        lowered = separated(graph, target) if schedule.separate else _through_passes(graph, target)
    _check_pins(schedule.pins, lowered)
    _name_apart(lowered)
    check_names(lowered)
    return lowered


def _is_lowered(graph: Graph) -> bool:
    """Whether a graph's computing nodes are all kernels. Raises UnsupportedError for one that is past that."""
    stages = {node.op.dialect for node in computing_nodes(graph)}
    if "cuda" in stages:
        raise UnsupportedError("the graph is CUDA already", hint="give the graph before Emmy's lowering/cuda passes")
    return stages <= {"kernel"}


# ---------------------------------------------------------------------------------------------------- Emmy's passes


@contextmanager
def _emmys(target: str, pins: Mapping[str, Any]) -> Iterator[None]:
    """Emmy set to a target and to pins, without its measurements and the environment's pins; one thread at a time."""
    from emmy.compiler.pipeline.search.golden import evidence_scope
    from emmy.compiler.pipeline.search.pins import pinned_knobs

    with emmys_target(target), no_ambient_knobs(), evidence_scope([]), pinned_knobs(dict(pins)):
        yield


def _through_passes(graph: Graph, target: str) -> Graph:
    """A graph's kernels, by all of Emmy's passes."""
    from emmy.compiler.context import Context
    from emmy.compiler.pipeline import KERNEL_PASSES, Pipeline
    from emmy.compiler.target import parse_sm

    context = Context.from_target(parse_sm(target.rstrip("af")))
    lowered = Pipeline.build(KERNEL_PASSES).run(graph.copy(), ctx=context)
    left = sorted({type(node.op).__name__ for node in computing_nodes(lowered)} - {"KernelOp"})
    if left:
        hint = "see what `emmy compile` says of it"
        raise UnsupportedError(f"Emmy's passes leave {', '.join(left)} where kernels should be", hint=hint)
    return lowered


def _check_knobs(pins: Mapping[str, Any], whose: str, file: str = "") -> None:
    """Raise UsageError for a knob that Emmy does not have, or a value that the knob cannot have."""
    import difflib

    from emmy.compiler.pipeline.knob import KnobType, family_of, registry, validate_family_value

    known = registry()
    for name, value in pins.items():
        family = family_of(name).upper()
        if family not in known:
            near = difflib.get_close_matches(family, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "they are WORK, TILE, REDUCE, STAGE and others of Emmy's"
            raise UsageError(f"{whose}: Emmy has no knob {shown(name)}", hint=hint, file=file)
        try:
            validate_family_value(family, value)
            if known[family].type is not KnobType.BINMASK:  # whose values depend on the kernel
                known[family].parse(str(value))
        except Exception as error:  # whatever is at hand
            what = f"{whose}: {name} cannot be {shown(value)}: {str(error)[:200]}"
            raise UsageError(what, hint="see Emmy's documentation of the knob", file=file) from error


def _check_pins(pins: Mapping[str, str], graph: Graph) -> None:
    """Raise UsageError for a pin that no kernel has come to: Emmy ignores one that is not in its catalogue."""
    from emmy.compiler.pipeline.search.pins import unreproducible_pin_flag

    said = unreproducible_pin_flag(dict(pins), [dict(node.op.knobs) for node in kernel_nodes(graph)]) if pins else None
    if said:
        raise UsageError(f"Emmy does not take {said.removeprefix('unreproducible pin: ')}", hint="choose another value")


def _name_apart(graph: Graph) -> None:
    """Give kernels that have one name (the same computation on other buffers) numbers behind it."""
    taken: set[str] = set()
    for kernel in kernel_nodes(graph):
        name = kernel.name
        numbered = (f"{name}_{number}" for number in range(2, len(graph.nodes) + 2))
        own = name if name not in taken else next(other for other in numbered if other not in taken)
        taken.add(own)
        if own != kernel.op.name:
            graph.nodes[kernel.node_id].op = replace(kernel.op, name=own)


# --------------------------------------------------------------------------------------------------- golden files


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A row of a golden file."""

    document: GoldenFile
    row: Any

    @classmethod
    def read(cls, schedule: Schedule) -> _Recorded | None:
        """The row that a schedule names, None where it names none; the fastest, where several have the name."""
        if not schedule.golden and not schedule.realization:
            return None
        if not schedule.golden or not schedule.realization:
            raise UsageError("a golden file and a realization go together", hint="give both")
        document = _golden_file(schedule.golden)
        rows = _named(document.rows, schedule)
        return cls(document, min(rows, key=lambda row: row.measurements.emmy_us if row.measured else float("inf")))

    @property
    def pins(self) -> dict[str, Any]:
        """Its schedule, and what was pinned when it was measured."""
        return {**self.row.pins, **(self.row.knobs or {})}

    def graph(self) -> Graph:
        """The kernel that it is about, as loops."""
        kernel = self.document.kernel(self.row.kernel)
        if not kernel.formed:
            what = f"the kernel of {self.row.name!r} is a piece of another, with no form of its own"
            raise UnsupportedError(what, hint="choose another realization")
        with emmys_failures("lowering"):
            read_wire(kernel.loop_ir)
            return self.document.executable(kernel, self.row.bindings)


def _golden_file(name: str) -> GoldenFile:
    """A golden file of Emmy's. Raises UsageError or InputError."""
    from emmy.compiler.pipeline.search.golden import GoldenFile

    hint = "give one such as Emmy's wheel holds, in emmy/compiler/pipeline/search/golden/records"
    try:
        return GoldenFile.load(name, repository=False)
    except OSError as error:
        raise UsageError(f"cannot read {name!r}: {error.strerror}", hint=hint) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(cause := error.__cause__, OSError):
            raise UsageError(f"cannot read {name!r}: {cause.strerror}", hint=hint) from error
        raise InputError(f"this is no golden file of Emmy's: {str(error)[:300]}", hint=hint, file=name) from error


def _named(rows: list[Any], schedule: Schedule) -> list[Any]:
    """The rows of a name, or of the only name that contains it. Raises UsageError for none, or several names."""
    import difflib

    name = schedule.realization
    found = [row for row in rows if row.name == name] or [row for row in rows if name in row.name]
    names = sorted({row.name for row in found})
    if not names:
        near = difflib.get_close_matches(name, [row.name for row in rows], n=1)
        question = f"did you mean {near[0]}? " if near else ""
        hint = f"{question}`emmy golden` lists what a file records"
        raise UsageError(f"no realization is called {name!r}", hint=hint, file=schedule.golden)
    if len(names) > 1:
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        raise UsageError(f"{len(names)} realizations have {name!r} in their names", hint=f"choose one: {shown}")
    return found


# ------------------------------------------------------------------------------------- an operation, a kernel


def separated(graph: Graph, target: str) -> Graph:
    """A program's kernels, its operations lowered one by one: nothing is fused but what leads to one operation.

    An operation that only changes shapes or is elementwise goes with the one that reads it, where there is one; each
    group becomes one kernel, or the few that Emmy makes of it. Kernels that are alike are lowered once. The buffers
    between groups keep their names in the program.
    """
    if stages := {node.op.dialect for node in computing_nodes(graph)} - {None}:
        raise UsageError(f"a graph of the {min(stages)} stage is not separated", hint="give the traced program")
    whole = _boundary(graph)
    known: dict[str, tuple[list[str], Graph]] = {}
    for group in _groups(graph):
        piece = _piece(graph, group)
        names, form = _names(piece), _form(piece)
        if form not in known:
            known[form] = names, _through_passes(piece, target)
        lowered = _renamed(known[form][1], dict(zip(known[form][0], names, strict=True)))
        _rename_inside(lowered, whole, graph)
        for node_id in lowered.topological_order():
            if node_id not in whole.nodes:
                node = lowered.nodes[node_id]
                whole.add_node(node.op, list(node.inputs), outputs=node.outputs, node_id=node_id)
    whole.outputs = list(graph.outputs)
    return whole


def _names(graph: Graph) -> list[str]:
    """The buffers of a graph, producers first."""
    return [name for node_id in graph.topological_order() for name in graph.nodes[node_id].buffer_names()]


def _form(piece: Graph) -> str:
    """What two pieces have in common that differ in the names of their buffers alone."""
    number = {name: at for at, name in enumerate(_names(piece))}
    nodes = [
        (
            item["op"],
            item.get("attrs"),
            [number[name] for name in item.get("inputs", ())],
            [(dtype, shape) for _, dtype, shape in item["outputs"]],
        )
        for item in piece.to_wire()["nodes"]
    ]
    return json.dumps([nodes, [number[name] for name in piece.outputs]], default=repr)


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """A copy of a graph with other names for those of its buffers that it has; names may change places."""
    copy = graph.copy()
    changed = [(old, new) for old, new in names.items() if old != new and copy.producer(old) is not None]
    for at, (old, _) in enumerate(changed):
        copy.rename_buffer(old, f"__{at}")
    for at, (_, new) in enumerate(changed):
        if copy.producer(new) is not None:  # something that Emmy made inside
            copy.rename_buffer(new, f"{new}__{at}")
        copy.rename_buffer(f"__{at}", new)
    return copy


def _groups(graph: Graph) -> list[list[str]]:
    """The operations that go together, by their ids: each group in order, and behind those that it reads from.

    Only the last operation of a group is read by others, so no group needs, by way of others, what it makes itself.
    """
    group_of: dict[str, list[str]] = {}
    groups: list[list[str]] = []
    computing = {node.id for node in computing_nodes(graph)}
    for node_id in reversed([node_id for node_id in graph.topological_order() if node_id in computing]):
        readers = graph.users(node_id)
        goes_along = _is_light(graph.nodes[node_id].op) and len(readers) == 1 and node_id not in graph.outputs
        if goes_along:
            group = group_of[next(iter(readers))]
        else:
            groups.append(group := [])
        group.insert(0, node_id)
        group_of[node_id] = group
    order = {node_id: at for at, node_id in enumerate(graph.topological_order())}
    return sorted(groups, key=lambda group: order[group[-1]])


def _is_light(op: Any) -> bool:
    """Whether an operation computes nothing twice when it is done where it is read: it moves elements or maps each."""
    from emmy.compiler.ir.frontend import ir as frontend
    from emmy.compiler.ir.tensor import ir as tensor

    moves = (frontend.TransposeOp, frontend.ReshapeOp, frontend.SliceOp, frontend.UnsqueezeOp, tensor.IndexMapOp)
    return isinstance(op, (*moves, tensor.ElementwiseOp))


def _boundary(graph: Graph) -> Graph:
    """A graph with the inputs and the constants of another, and its hints."""
    from emmy.compiler.graph import Graph

    computing = {node.id for node in computing_nodes(graph)}
    found = Graph()
    for node_id, node in graph.nodes.items():
        if node_id not in computing:
            found.add_node(node.op, [], outputs=node.outputs, node_id=node_id)
    found.inputs, found.hints = list(graph.inputs), graph.hints
    return found


def _piece(graph: Graph, group: list[str]) -> Graph:
    """The program of a group: what it reads from other groups is an input."""
    from emmy.compiler.graph import Graph
    from emmy.compiler.ir.base import ConstantOp, InputOp

    piece = Graph()
    for node_id in group:
        node = graph.nodes[node_id]
        for name in node.inputs:
            maker, tensor = graph.producer(name), graph.buffer(name)
            if name not in piece.nodes and maker is not None and tensor is not None and maker.id not in group:
                op = maker.op if isinstance(maker.op, ConstantOp) else InputOp()
                piece.add_node(op, [], outputs=(replace(tensor, name=name),), node_id=name)
                if isinstance(op, InputOp):
                    piece.inputs.append(name)
        piece.add_node(node.op, list(node.inputs), outputs=node.outputs, node_id=node_id)
    piece.outputs = [*graph.nodes[group[-1]].buffer_names()]
    return piece


def _rename_inside(piece: Graph, whole: Graph, program: Graph) -> None:
    """Give what Emmy made inside a piece names that nothing else has; what the program names stays.

    A constant of the program that Emmy has laid out in another way is one that it made.
    """
    from emmy.compiler.ir.base import ConstantOp

    theirs = {name for node in program.nodes.values() for name in node.buffer_names()}
    taken = theirs | {name for node in whole.nodes.values() for name in node.buffer_names()}
    changed = {
        node_id
        for node_id, node in piece.nodes.items()
        if isinstance(node.op, ConstantOp) and node_id in whole.nodes and node.op != whole.nodes[node_id].op
    }
    inside = [
        name for node in piece.nodes.values() for name in node.buffer_names() if name not in theirs or name in changed
    ]
    for name in inside:
        if name in taken:
            own = next(other for number in range(2, len(taken) + 3) if (other := f"{name}_{number}") not in taken)
            piece.rename_buffer(name, own)
            name = own
        taken.add(name)
