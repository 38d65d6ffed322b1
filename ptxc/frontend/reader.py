"""From a file to Emmy's graph, without evaluating anything that the file says.

The input is the JSON of Emmy's ``Graph.to_dict()``, in which statements are Python reprs in strings.
``Graph.from_dict`` hands those to ``eval``; here :mod:`ptxc.frontend.reprs` reads them, and every field of every
node is held against what Emmy's class takes. Graphs may be of any stage but tiles and CUDA. The graph is the one that
``Graph.from_dict`` makes, except that

- a composite dimension, ``"(((seq_len + 63) / 64) * 64)"``, is the expression it spells, where Emmy makes a
  variable of that name;
- every statement of Kernel IR can be read, ``FlatIndex`` and ``ZeroPrologue`` among them;
- text becomes a term only where a field takes a term, not wherever it looks like one.

The JSON of ``Graph.to_wire()``, in which Emmy stores programs, is read by Emmy itself, which evaluates nothing there.

A file may be hostile: its size, its depth and the work that it causes are bounded by the constants of this
module, :mod:`ptxc.frontend.jsonfile` and :mod:`ptxc.frontend.reprs`, and whatever is wrong becomes an InputError
with the JSON path and the place in the statement.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, BinaryIO

from ptxc.errors import CompileError, InputError, UnsupportedError
from ptxc.frontend.jsonfile import file_name, read_json
from ptxc.frontend.reprs import MAX_DEPTH, Budget, TermReader
from ptxc.frontend.vocabulary import (
    IDENTIFIER,
    Kind,
    Refusal,
    constructor_of,
    dim,
    elementwise,
    has_64_bits,
    import_operations,
    op_class,
    shown,
)

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph, Node
    from emmy.compiler.ir.kernel.ir import KernelOp
    from emmy.compiler.tensor import Tensor

#: How many graphs and operations may stand inside one another (a constant's ``source_graph``, ``load_ops``).
MAX_NESTING = 8
#: How many dimensions a buffer may have.
MAX_RANK = 64

#: What nodes, values of fields and dimensions cost, as :data:`ptxc.frontend.reprs.MAX_WORK` counts.
_NODE_WORK, _VALUE_WORK, _DIM_WORK = 500, 50, 20

_HINT_DUMP = "give the JSON of Emmy's Graph.to_dict(), unchanged"
_HINT_STAGE = "give the graph that Emmy dumps (EMMY_DUMP_DIR) after its lowering/kernel passes, or of a stage before"
_HINT_WIRE = "give the JSON of Emmy's Graph.to_wire(), unchanged"


@dataclass(frozen=True, slots=True)
class KernelNode:
    """One kernel of a graph: its node, and Emmy's KernelOp with the Tensors of its buffers in it."""

    node_id: str
    op: KernelOp

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.op.name or f"k_{self.node_id}"


def read_graph(source: str | os.PathLike[str] | BinaryIO | Mapping[str, Any]) -> Graph:
    """Emmy's graph from a path, ``-`` for standard input, a binary file, or the mapping that JSON gave.

    Files are plain or gzip, told apart by their first bytes. Raises InputError for what is unreadable, no graph,
    inconsistent or beyond a bound, and UnsupportedError for a graph that Emmy has lowered to CUDA, or without anything
    to compute. Both name the file and the JSON path.
    """
    if isinstance(source, Mapping):
        return _build(source)
    try:
        return _build(read_json(source))
    except CompileError as error:
        error.at(file=file_name(source))
        raise


def kernel_nodes(graph: Graph) -> list[KernelNode]:
    """The kernels of a graph, in the order of its nodes."""
    from emmy.compiler.ir.kernel.ir import KernelOp

    return [KernelNode(nid, node.op) for nid, node in graph.nodes.items() if isinstance(node.op, KernelOp)]


def computing_nodes(graph: Graph) -> list[Node[Any]]:
    """The nodes of a graph that are neither an input nor a constant."""
    from emmy.compiler.ir.base import ConstantOp, InputOp

    return [node for node in graph.nodes.values() if not isinstance(node.op, InputOp | ConstantOp)]


def _build(value: Any) -> Graph:
    """The graph that a JSON value describes.

    Reading needs no recursion, but Emmy's classes walk the expressions that they are given, a Python frame a
    level; a kernel too deep for that is read once more with room for it.
    """
    try:
        return _checked_graph(value)
    except RecursionError:
        pass
    try:
        with _room_for_recursion():
            return _checked_graph(value)
    except RecursionError as error:
        raise InputError("the graph nests too deeply", hint=_HINT_DUMP) from error


_RECURSION_LIMIT = threading.Lock()


@contextmanager
def _room_for_recursion() -> Iterator[None]:
    """Python's recursion limit raised, for one thread at a time, as the limit is the process's."""
    with _RECURSION_LIMIT:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + 4 * MAX_DEPTH)
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)


def _checked_graph(value: Any) -> Graph:
    """The graph of a file: something to compute, and where that is kernels, names that PTX can carry."""
    is_wire = isinstance(value, Mapping) and isinstance(value.get("nodes"), list)
    graph = read_wire(value) if is_wire else _GraphReader().graph(value, "", 0)
    if not computing_nodes(graph):
        ops = sorted({type(node.op).__name__ for node in graph.nodes.values()})
        raise UnsupportedError(f"no node holds a KernelOp, only {', '.join(ops[:5]) or 'nothing'}", hint=_HINT_STAGE)
    if kernel_nodes(graph):
        check_names(graph)
    return graph


def check_names(graph: Graph) -> None:
    """Raise InputError for a kernel or a buffer of a graph of kernels that PTX cannot name so."""
    named = [(node.id, name) for node in graph.nodes.values() for name in node.buffer_names()]
    named += [(kernel.node_id, kernel.op.name) for kernel in kernel_nodes(graph) if kernel.op.name]
    for node_id, name in named:
        if not IDENTIFIER.fullmatch(name):
            hint = "kernels and their parameters carry these names in PTX"
            place = _member("nodes", node_id)
            raise InputError(f"the name {shown(name)} is no C identifier", hint=hint, statement=place)


def read_wire(value: Any) -> Graph:
    """Emmy's graph from its wire form, whose elementwise operations are held against those that there are.

    Raises InputError for what is none. Emmy resolves an operation's name to any attribute of numpy.
    """
    from emmy.compiler.graph import Graph
    from emmy.compiler.wire import rewrite

    import_operations()
    try:
        _check_wire(value)
        graph = Graph.from_wire(value)
        for node in graph.nodes.values():
            rewrite(node.op, _known_operation)
            if any(len(tensor.shape) > MAX_RANK for tensor in node.outputs):
                raise Refusal(f"{shown(node.id)} has more than {MAX_RANK} dimensions")
    except Refusal as refusal:
        raise InputError(f"{refusal}", hint=_HINT_WIRE) from refusal
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}" if isinstance(error, LookupError | ArithmeticError) else f"{error}"
        raise InputError(f"this is no program of Emmy's: {what[:200]}", hint=_HINT_WIRE) from error
    return graph


#: In an expression's text: a number that may have more than 64 bits, a shift, and one by less than 64.
_LONG_NUMBER = re.compile(r"(?<![\w.])\d{20,}(?![\w.])", re.ASCII)
_SMALL_SHIFT = re.compile(r"<<\s*(?:[0-9]|[1-5][0-9]|6[0-3])(?![\w.]|\s*[-+*/%])", re.ASCII)


def _check_wire(value: Any) -> None:
    """Raise Refusal for a wire form beyond the bounds of a file, before Emmy computes with what is in it.

    Emmy folds constants, and a shift by a large one fills the memory.
    """
    budget = Budget()
    left = [value]
    while left:
        item = left.pop()
        budget.spend(_VALUE_WORK)
        if isinstance(item, Mapping):
            left += item.keys()
            left += item.values()
        elif isinstance(item, list | tuple):
            left += item
        elif isinstance(item, str):
            budget.spend(len(item))
            numbers = _LONG_NUMBER.findall(item) if len(item) >= 20 else ()
            if any(len(number) > 20 or not has_64_bits(int(number)) for number in numbers):
                raise Refusal(f"a number of more than 64 bits in {shown(item)}")
            if "<<" in item and item.count("<<") != len(_SMALL_SHIFT.findall(item)):
                raise Refusal(f"{shown(item)} shifts by something else than a number below 64")
        elif isinstance(item, int) and not has_64_bits(item):
            raise Refusal(f"{shown(item)} where 64 are enough")


def _known_operation(value: object) -> None:
    """Raise Refusal for an elementwise operation that there is not; look into everything else."""
    from emmy.compiler.ir.elementwise import ElementwiseImpl

    if isinstance(value, ElementwiseImpl):
        elementwise(value.name)


@dataclass(slots=True)
class _Node:
    """A node before its operation is read: where it stands, its JSON, its edges."""

    node_id: str
    place: str
    fields: dict[str, Any]
    inputs: list[str]
    outputs: tuple[Tensor, ...]

    def buffers(self) -> dict[str, Tensor]:
        """What it writes, as Emmy names it: the first after the node, the others after their tensors."""
        names = [self.node_id, *(tensor.name for tensor in self.outputs[1:])]
        if len(set(names)) < len(names):
            raise _wrong("two outputs of one name", self.place)
        return dict(zip(names, self.outputs))


class _GraphReader:
    """Reads the graphs of one file: its own, and those inside its constants."""

    def __init__(self) -> None:
        self._budget = Budget()
        self._terms = TermReader(self._budget)

    def graph(self, value: Any, path: str, level: int) -> Graph:
        """The graph of a JSON object, its edges and its operations checked."""
        from emmy.compiler.graph import Graph, Hints

        fields = _mapping(value, path)
        path_of_nodes = _member(path, "nodes")
        nodes = [
            self._node(node_id, _member(path_of_nodes, node_id), node)
            for node_id, node in _mapping(fields.get("nodes"), path_of_nodes).items()
        ]
        buffers = _buffers(nodes)
        graph = Graph()
        for node in _producers_first(nodes, buffers):
            op = self._op(
                node.fields.get("op"),
                node.fields.get("op_fields", {}),
                _member(node.place, "op_fields"),
                level,
                inputs={name: buffers[name][1] for name in node.inputs},
                outputs=node.buffers(),
            )
            graph.add_node(op, [*node.inputs], outputs=node.outputs, node_id=node.node_id)
            hints = _mapping(node.fields.get("hints", {}), _member(node.place, "hints"))
            graph.nodes[node.node_id].hints = Hints.from_dict(hints)
        graph.nodes = {node.node_id: graph.nodes[node.node_id] for node in nodes}
        graph.inputs = _known_buffers(fields.get("inputs"), buffers, _member(path, "inputs"))
        graph.outputs = _known_buffers(fields.get("outputs"), buffers, _member(path, "outputs"))
        graph.hints = Hints.from_dict(_mapping(fields.get("hints", {}), _member(path, "hints")))
        return graph

    def _op(self, name: Any, fields: Any, path: str, level: int, **buffers: Any) -> Any:
        """The operation ``name`` with the fields at ``path``: a node's, or one inside another's field."""
        cls = op_class(name) if isinstance(name, str) else None
        if cls is None:
            raise _wrong(f"Emmy has no operation {shown(name)}", path)
        if cls.dialect in ("tile", "cuda"):
            what = (
                f"{cls.__name__} is of Emmy's {cls.dialect} stage, and a file holds Kernel IR or what is before tiles"
            )
            raise UnsupportedError(what, hint=_HINT_STAGE, statement=path)
        maker = constructor_of(cls)
        values = {}
        for key, value in _mapping(fields, path).items():
            if key not in maker.fields:
                raise _wrong(f"{cls.__name__} has no field {shown(key)}", path)
            values[key] = self._value(value, maker.fields[key], _member(path, key), level)
        with _refusals(path):
            return maker.call(0, list(values)).build(list(values.values()), **buffers)

    def _value(self, value: Any, kind: Kind, path: str, level: int) -> Any:
        """What a field of ``kind`` holds, from its JSON: terms are text, tuples lists, the rest tagged objects."""
        with _refusals(path):
            self._budget.spend(_VALUE_WORK)
            if isinstance(value, list | tuple):
                return tuple(
                    self._value(item, item_kind, f"{path}[{index}]", level)
                    for index, (item, item_kind) in enumerate(zip(value, kind.elements(len(value))))
                )
            if isinstance(value, str) and str not in kind.classes:
                value = self._term(value, kind)
            elif isinstance(value, Mapping):
                value = self._tagged(value, path, level + 1)
            elif isinstance(value, int) and not has_64_bits(value):
                raise Refusal(f"{shown(value)} where 64 are enough")
            if not kind.admits(value):
                raise Refusal(f"must be {kind.text}, not {shown(value)}")
            return value

    def _term(self, text: str, kind: Kind) -> Any:
        """The term that ``text`` spells; an elementwise operation may be its bare name."""
        from emmy.compiler.ir.elementwise import ElementwiseImpl

        if "(" not in text and ElementwiseImpl in kind.bases:
            return elementwise(text)
        return self._terms.read(text)

    def _tagged(self, value: Mapping[str, Any], path: str, level: int) -> Any:
        """A dimension, an operation or a graph inside a field."""
        if level > MAX_NESTING:
            raise Refusal(f"more than {MAX_NESTING} operations inside one another")
        match dict(value):
            case {"__dim__": extent, **rest} if not rest:
                return self._tagged_dim(extent)
            case {"__op__": name, **rest} if rest.keys() <= {"fields"}:
                return self._op(name, rest.get("fields", {}), _member(path, "fields"), level)
            case {"__graph__": graph, **rest} if not rest:
                return self.graph(graph, _member(path, "__graph__"), level)
        raise Refusal("an object here is a __dim__, an __op__ or a __graph__")

    def _node(self, node_id: str, place: str, value: Any) -> _Node:
        """A node of the JSON; older dumps have one ``output``, not ``outputs``."""
        fields = _mapping(value, place)
        path = _member(place, "outputs")
        outputs = fields["outputs"] if "outputs" in fields else [fields.get("output")]
        if not isinstance(outputs, list | tuple) or not outputs:
            raise _wrong("a list of tensors is needed here", path)
        tensors = tuple(self._tensor(item, f"{path}[{index}]") for index, item in enumerate(outputs))
        return _Node(node_id, place, fields, _names(fields.get("inputs"), _member(place, "inputs")), tensors)

    def _tensor(self, value: Any, path: str) -> Tensor:
        """The descriptor of a buffer."""
        from emmy.compiler.dtype import get
        from emmy.compiler.tensor import Tensor

        fields = _mapping(value, path)
        name, shape, dtype = fields.get("name"), fields.get("shape"), fields.get("dtype", "f32")
        if not isinstance(name, str) or not isinstance(shape, list | tuple) or not isinstance(dtype, str):
            raise _wrong("a tensor has a name, a shape and a dtype", path)
        with _refusals(path):
            self._budget.spend(_NODE_WORK)
            if len(shape) > MAX_RANK:
                raise Refusal(f"more than {MAX_RANK} dimensions")
            try:
                return Tensor(name=name, shape=tuple(map(self._extent, shape)), dtype=get(dtype))
            except ValueError as error:
                raise Refusal(f"Emmy has no element type {shown(dtype)}") from error

    def _extent(self, value: Any) -> Any:
        """One dimension of a shape: a size, a name, or the text of an expression over names."""
        if isinstance(value, str) or (type(value) is int and 0 <= value < 1 << 63):
            return self._dim(value)
        raise Refusal(f"a dimension is a size or an expression over sizes, not {shown(value)}")

    def _tagged_dim(self, value: Any) -> Any:
        """The Dim that Emmy writes as an integer, ``{sym, hint}`` or ``{expr, hint}``."""
        if type(value) is int and has_64_bits(value):
            return self._dim(value)
        match value:
            case {"sym": str(text), **rest} | {"expr": str(text), **rest} if rest.keys() <= {"hint"}:
                hint = rest.get("hint")
                if hint is None or (type(hint) is int and has_64_bits(hint)):
                    return self._dim(text, hint)
        raise Refusal("a dimension is an integer, {sym, hint} or {expr, hint}")

    def _dim(self, value: int | str, hint: int | None = None) -> Any:
        self._budget.spend(_DIM_WORK * (len(value) if isinstance(value, str) else 1))
        return dim(value, hint)


def _buffers(nodes: Iterable[_Node]) -> dict[str, tuple[str, Tensor]]:
    """Every buffer, with the one node that writes it."""
    buffers: dict[str, tuple[str, Tensor]] = {}
    for node in nodes:
        for name, tensor in node.buffers().items():
            if name in buffers:
                raise _wrong(f"{shown(name)} is written by the node {shown(buffers[name][0])} too", node.place)
            buffers[name] = (node.node_id, tensor)
    return buffers


def _producers_first(nodes: Iterable[_Node], buffers: Mapping[str, tuple[str, Any]]) -> list[_Node]:
    """The nodes, each behind those that write its inputs."""
    by_id = {node.node_id: node for node in nodes}
    producers = {}
    for node in nodes:
        for name in node.inputs:
            if name not in buffers:
                raise _wrong(f"no node writes the input {shown(name)}", node.place)
        producers[node.node_id] = [buffers[name][0] for name in node.inputs]
    try:
        return [by_id[node_id] for node_id in TopologicalSorter(producers).static_order()]
    except CycleError as error:
        raise _wrong("the node reads what is computed from its own output", by_id[error.args[1][0]].place) from error


def _known_buffers(value: Any, buffers: Mapping[str, Any], path: str) -> list[str]:
    """The names of a graph's inputs or outputs, each written by a node and given once."""
    names = _names(value, path)
    for name in names:
        if name not in buffers:
            raise _wrong(f"no node writes {shown(name)}", path)
    if len(set(names)) < len(names):
        raise _wrong("a buffer is named twice", path)
    return names


def _names(value: Any, path: str) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise _wrong("a list of buffer names is needed here", path)
    return list(value)


def _mapping(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(f"a JSON object is needed here, not {shown(value)}", path)
    return dict(value)


def _member(path: str, key: str) -> str:
    """The JSON path of a member, on one line whatever its key is."""
    if len(key) > 200 or not IDENTIFIER.fullmatch(key):
        return f"{path}[{shown(key)}]"
    return f"{path}.{key}" if path else key


def _wrong(what: str, path: str) -> InputError:
    return InputError(what, hint=_HINT_DUMP, statement=path)


@contextmanager
def _refusals(path: str) -> Iterator[None]:
    """Refusals of what stands at ``path``, as errors that name it."""
    try:
        yield
    except Refusal as refusal:
        raise _wrong(str(refusal), path) from refusal
