"""Mutants of real kernels: each compiles to PTX or is refused by an error that is not ptxc's own fault.

A mutant is a kernel of the corpus with some random changes: names, operations, indices, types, extents and numbers
replaced by others, statements dropped, doubled, moved or wrapped. PTXC_MUTANTS says how many of each kernel are made.
"""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from conftest import SHARED
from emmy.compiler import dtype as emmy_dtypes
from emmy.compiler.dim import Dim
from emmy.compiler.dtype import DataType
from emmy.compiler.graph import Graph, Hints
from emmy.compiler.ir.axis import Axis
from emmy.compiler.ir.elementwise import ElementwiseImpl
from emmy.compiler.ir.expr import BinaryExpr, Builtin, CastExpr, Expr, FuncCallExpr, Literal, TernaryExpr, Var
from emmy.compiler.ir.stmt import Body
from emmy.compiler.ir.stmt.base import Stmt
from emmy.compiler.tensor import Tensor
from kernel_ir import Cond, Loop, StridedLoop, Sync

from ptxc.compilation import Options
from ptxc.driver import compile_kernel
from ptxc.errors import CompileError, InternalError
from ptxc.frontend.elementwise import ARITY
from ptxc.frontend.reader import KernelNode, kernel_nodes, read_graph
from ptxc.toolchain import find_tool

MUTANTS = int(os.environ.get("PTXC_MUTANTS", "25"))

#: The kernels that mutants are made of: small ones that together have every statement.
SOURCES = (
    "p02_scale_shift/*dyn*", "r01_array_sum/*", "r04_row_sum/*", "f01_rmsnorm/*", "f02_row_softmax/*",
    "m02_matmul_rect/*", "a01_attention/*", "x01_zero_prologue/*", "x02_fused_prologue/*", "x04_scan/*", "x05_wide/*",
    "x06_elementwise/*", "x07_synthetic/treehalve_flat_state2", "x07_synthetic/treehalve_named_barrier",
    "x07_synthetic/cond_else", "x07_synthetic/loops", "x07_synthetic/cpasync_swizzle_lane_B64",
    "x07_synthetic/cpasync_valid_zero_fill", "x07_synthetic/write_swizzle_vec4_B128s7",
    "x07_synthetic/sync_warp_predicates", "x07_synthetic/shuffle_segment4", "x07_synthetic/atomic_many_to_one",
)  # fmt: skip

NAMES = ("", "add", "tid", "_smem_pool", "lane", "warp", "ü", "x y", "%r1", "1x", "ret", "i", "nan", "x.y", "$")
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    31,
    32,
    33,
    64,
    128,
    255,
    1000,
    1024,
    32768,
    32769,
    2**31 - 1,
    2**31,
    2**40,
    -(2**31),
    2**63,
)
OPERATORS = (
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "<",
    "<=",
    ">",
    ">=",
    "==",
    "!=",
    "&&",
    "||",
    "^",
    "&",
    "|",
    "<<",
    ">>",
    "**",
)
OPERATIONS = (*ARITY, "sum", "prod", "amax", "remainder", "left_shift", "right_shift", "bitwise_xor", "bitwise_count",
              "bitcast", "arange", "silu", "from_f4e2m1", "next")  # fmt: skip
CASTS = ("int", "float", "long long", "unsigned int", "short", "half", "double", "bool", "unsigned char", "nonsense")
TYPES = tuple(value for value in vars(emmy_dtypes).values() if isinstance(value, DataType))
MODES = ("NONE", "B128", "B64", "B32", "B128@7", "B128@2", "B128@x", "B7", "VOLTA_CROSSWISE")


class Mutator:
    """Makes random changes to a kernel."""

    def __init__(self, seed: str, names: list[str]) -> None:
        self.random = random.Random(seed)
        self.names = names

    def name(self) -> str:
        return self.random.choice(self.names if self.random.random() < 0.8 else NAMES)

    def number(self) -> int:
        return self.random.choice(NUMBERS)

    # ---------------------------------------------------------------------------------------------- expressions

    def leaf(self) -> Expr:
        roll = self.random.random()
        if roll < 0.5:
            return Var(self.name())
        if roll < 0.8:
            return Literal(self.number(), "int")
        return self.random.choice(
            (Literal(1.5, "float"), Literal(True, "bool"), Builtin("thread_idx.x"), Builtin("odd"))
        )

    def expr(self, old: Expr) -> Expr:
        """``old`` with one of its parts changed."""
        parts = list(old.subterms())  # type: ignore[no-untyped-call]
        part = self.random.choice(parts)
        new = self.part(part)
        changed = False

        def swap(node: Expr) -> Expr:
            nonlocal changed
            if not changed and node == part:
                changed = True
                return new
            return node

        return old.rebuild(swap)

    def part(self, part: Expr) -> Expr:
        roll = self.random.random()
        if roll < 0.35:
            return self.leaf()
        if roll < 0.45:
            return BinaryExpr(self.random.choice(OPERATORS), part, self.leaf())
        if roll < 0.5:
            return CastExpr(self.random.choice(CASTS), part)
        if roll < 0.55:
            return TernaryExpr(BinaryExpr("<", part, self.leaf()), part, self.leaf())
        if roll < 0.6:
            return FuncCallExpr(self.random.choice(("exp", "fmax", "bitwise_count", "sqrt", "odd")), (part,))
        if isinstance(part, BinaryExpr):
            return dataclasses.replace(part, op=self.random.choice(OPERATORS))
        if isinstance(part, Literal):
            return Literal(self.number(), "int")
        return self.leaf()

    def hints(self) -> dict[str, Any]:
        """Hints that make some buffer indirect or paged."""
        name, start = self.name(), self.random.choice((None, self.name()))
        paged = [name, self.random.randrange(-1, 3), self.random.choice((1, 2, 32, 4096, 0)), start]
        return self.random.choice(({}, {"cuda.indirect_inputs": [name]}, {"cuda.paged_buffers": [paged]}))

    # ------------------------------------------------------------------------------------------------- anything

    def value(self, old: Any) -> Any:
        """Something like ``old``, a field of a statement."""
        if isinstance(old, bool):
            return not old
        if isinstance(old, int):
            return self.number()
        if isinstance(old, float):
            return self.random.choice((0.0, 1.0, -1e30, 1e300, float("nan"), float("inf")))
        if isinstance(old, str):
            return self.random.choice(
                (self.name(), self.name(), *self.random.sample(MODES, 2), *self.random.sample(CASTS, 1))
            )
        if isinstance(old, Expr):
            return self.expr(old)
        if isinstance(old, ElementwiseImpl):
            return ElementwiseImpl(self.random.choice(OPERATIONS))
        if isinstance(old, DataType):
            return self.random.choice(TYPES)
        if isinstance(old, Axis):
            return self.axis(old)
        if isinstance(old, Dim):
            return self.dim(old)
        if isinstance(old, Body):
            return self.body(old)
        if isinstance(old, tuple):
            return self.items(old)
        if dataclasses.is_dataclass(old) and not isinstance(old, type):
            return self.fields(old)
        return old

    def absent(self, field: str) -> Any:
        """Something for a field that is None."""
        match field:
            case "dtype" | "value_dtype":
                return self.random.choice(TYPES)
            case "block_threads" | "count" | "barrier_count" | "raster_group":
                return self.number()
            case "valid" | "end":
                return self.expr(Var(self.name()))
            case "lane_index":
                return (self.leaf(), self.leaf())
            case "inner":
                return (self.name(), self.number())
            case "raster_axes":
                return (self.name(), self.name())
            case "base":
                return self.name()
        return None

    def fields(self, old: Any) -> Any:
        """``old`` with one field changed."""
        field = self.random.choice([field.name for field in dataclasses.fields(old)])
        value = getattr(old, field)
        changes = {field: self.absent(field) if value is None or field == "inner" else self.value(value)}
        if type(old).__name__ in ("Load", "Write"):
            kept = {item.name: getattr(old, item.name) for item in dataclasses.fields(old)}
            return type(old)(**{**kept, **changes})
        return dataclasses.replace(old, **changes)

    def axis(self, old: Axis) -> Axis:
        if self.random.random() < 0.3:
            return dataclasses.replace(old, name=self.name())
        return dataclasses.replace(old, extent=self.dim(old.extent))

    def dim(self, old: Dim) -> Dim:
        roll = self.random.random()
        if roll < 0.7:
            return Dim(self.number())
        return Dim(self.name()) if roll < 0.85 else Dim(self.expr(old.expr))

    def items(self, old: tuple[Any, ...]) -> tuple[Any, ...]:
        items = list(old)
        at = self.random.randrange(len(items)) if items else 0
        match self.random.randrange(5):
            case 0 if items:
                del items[at]
            case 1 if items:
                items.insert(at, items[at])
            case 2:
                self.random.shuffle(items)
            case _ if items:
                items[at] = self.value(items[at])
        return tuple(items)

    # ------------------------------------------------------------------------------------------------ statements

    def body(self, old: Body) -> Body:
        """``old`` with one statement, here or further inside, changed, dropped, doubled, moved or wrapped."""
        stmts = list(old)
        if not stmts:
            return Body((Sync(),))
        at = self.random.randrange(len(stmts))
        stmt = stmts[at]
        nested = [index for index, inner in enumerate(stmt.nested()) if len(inner)]
        if nested and self.random.random() < 0.85:
            bodies = list(stmt.nested())
            which = self.random.choice(nested)
            bodies[which] = self.body(bodies[which])
            stmts[at] = stmt.with_bodies(tuple(bodies))
            return Body(tuple(stmts))
        roll = self.random.random()
        if roll < 0.6:
            stmts[at] = self.fields(stmt)
        elif roll < 0.7:
            del stmts[at]
        elif roll < 0.78:
            stmts.insert(self.random.randrange(len(stmts) + 1), stmt)
        elif roll < 0.86:
            stmts.insert(self.random.randrange(len(stmts)), stmts.pop(at))
        elif roll < 0.94:
            stmts[at] = self.wrapped(stmt)
        else:
            stmts[at : at + 1] = [inner for body in stmt.nested() for inner in body]
        return Body(tuple(stmts))

    def wrapped(self, stmt: Stmt) -> Any:
        axis = Axis(self.name(), Dim(self.random.choice((1, 2, 3, 40))))
        match self.random.randrange(4):
            case 0:
                return Cond(BinaryExpr("<", self.leaf(), self.leaf()), (stmt,))
            case 1:
                return Cond(BinaryExpr(">", self.leaf(), self.leaf()), (Sync(),), (stmt,))
            case 2:
                return Loop(axis, (stmt,), unroll=self.random.random() < 0.5)
        return StridedLoop(axis, self.leaf(), self.leaf(), (stmt,))


@cache
def sources() -> list[tuple[str, Graph, KernelNode]]:
    """The kernels to mutate, each with its graph: the smallest file of each problem."""
    found = []
    for pattern in SOURCES:
        files = [p for p in SHARED.glob(f"bench15/kernels/{pattern}/**/*.json") if not p.name.endswith(".meta.json")]
        if pattern.endswith("*"):
            files = sorted(files, key=lambda p: (p.stat().st_size, str(p)))[: len(files) // 2 + 1]
            files = [files[0], files[len(files) // 2], files[-1]]
        for path in dict.fromkeys(sorted(files)[:3]):
            graph = read_graph(path)
            found += [(f"{path.relative_to(SHARED)}", graph, node) for node in kernel_nodes(graph)[:1]]
    return found


def mutant(seed: str, graph: Graph, node: KernelNode) -> tuple[KernelNode, Graph] | None:
    """A changed kernel, None where Emmy's classes refuse the change."""
    names = [*node.op.inputs, *node.op.outputs]
    for stmt in node.op.body.iter():
        names += [*stmt.defines(), *stmt.binds_axes(), *stmt.local_decls()]
    mutator = Mutator(seed, list(dict.fromkeys(names)))
    op = node.op
    try:
        for _ in range(mutator.random.choice((1, 1, 1, 2, 3, 6))):
            op = dataclasses.replace(op, body=mutator.body(op.body))
        changed = graph.copy() if mutator.random.random() < 0.1 else graph
        if changed is not graph:
            edges = changed.nodes[node.node_id]
            edges.outputs = tuple(_tensor(mutator, tensor) for tensor in edges.outputs)
            changed.hints = Hints.from_dict(mutator.hints())
        for stmt in op.body.iter():
            stmt.nested()
    except Exception:
        return None
    return KernelNode(node.node_id, op), changed


def _tensor(mutator: Mutator, tensor: Tensor) -> Tensor:
    if mutator.random.random() < 0.5:
        return dataclasses.replace(tensor, dtype=mutator.random.choice(TYPES))
    return dataclasses.replace(tensor, shape=mutator.items(tensor.shape))


def outcome(node: KernelNode, graph: Graph, target: str) -> tuple[str, str]:
    """``("ptx", text)``, ``("error", message)`` or ``("fault", what happened)``."""
    try:
        kernel = compile_kernel(node, graph, Options(target=target, verify_each=True))
    except InternalError as error:
        return "fault", f"{error}\n{''.join(traceback.format_exception(error.__cause__ or error)[-3:])}"
    except CompileError as error:
        return "error", str(error)
    except Exception as error:
        return "fault", "".join(traceback.format_exception(error)[-3:])
    return "ptx", kernel.ptx


def mutants(count: int, seed: str) -> Iterator[tuple[str, KernelNode, Graph]]:
    for name, graph, node in sources():
        for number in range(count):
            made = mutant(f"{seed}{name}{number}", graph, node)
            if made is not None:
                yield f"{name} {seed}{number}", *made


def test_mutants_compile_or_are_refused(shared: Path, tmp_path: Path) -> None:
    faults, texts = [], []
    refused = 0
    for number, (label, node, graph) in enumerate(mutants(MUTANTS, "")):
        kind, text = outcome(node, graph, ("sm_70", "sm_80", "sm_90", "sm_120")[number % 4])
        if kind == "fault":
            faults.append(f"{label}: {text}")
        elif kind == "error":
            refused += 1
            assert "\n" not in text
            assert len(text) < 2000
        else:
            texts.append((label, text))
    assert not faults, "\n\n".join(faults[:5])
    assert refused > len(texts) // 10
    check_ptxas([texts[at] for at in range(0, len(texts), max(1, len(texts) // 40))], tmp_path)


def check_ptxas(texts: list[tuple[str, str]], folder: Path) -> None:
    """ptxas must take every text, where there is one."""
    try:
        ptxas = find_tool("ptxas")
    except CompileError:
        return
    for label, text in texts:
        target = text.split(".target ")[1].split()[0]
        if target == "sm_70":
            continue
        path = folder / "k.ptx"
        path.write_text(text)
        command = [str(ptxas), f"-arch={target}", "-O0", "-o", str(folder / "k.cubin"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{label}: {done.stderr}\n{text}"
